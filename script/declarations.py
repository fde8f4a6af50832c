"""Reader of our own headers: declarations with their comments. It is not a C++ parser but knows the house style: a comment
stands above a declaration or behind its lines, a section opens with "// --- name: note ---"."""
import re
from collections.abc import Iterator
from dataclasses import dataclass, field


class DocError(Exception):
    pass


@dataclass
class Parameter:
    type: str
    name: str
    default: str = ""

    def __str__(self) -> str:
        """Its text; a tensor is its name alone."""
        typed = self.name if self.type == "Tensor" else f"{self.type} {self.name}".strip()
        return typed + (f" = {self.default}" if self.default else "")


@dataclass
class Declaration:
    code: str  # in one line, without comments
    lines: list[str]  # with comments
    comment: str  # above it or behind its lines; a comment above a run of functions is that of all without one

    @property
    def type_name(self) -> str | None:
        """The name of a struct or class."""
        m = re.match(r"(?:template <.*?> )?(?:struct|class) ([\w:]*\w)", self.code)
        return m and m[1]

    def function(self) -> tuple[str, str, list[Parameter]] | None:
        """Result, name and parameters of a function, else None."""
        return function(self.code)

    def members(self) -> list["Declaration"]:
        """The members of a struct whose body spans lines."""
        codes = [without_comment(line)[0] for line in self.lines]
        opening = next((i for i, code in enumerate(codes) if code.endswith("{")), len(codes))
        body = "\n".join(self.lines[opening + 1 : -1])
        return [member for part in sections(body) for member in part.declarations]


@dataclass
class Section:
    name: str
    note: str = ""
    declarations: list[Declaration] = field(default_factory=list)


def short(type: str) -> str:
    plain = re.sub(r"\bconst\b ?|\bstd::|&", "", type).strip()
    return re.sub(r"convertible_to<(\w+)> auto", r"\1", plain)


def split(text: str) -> list[str]:
    """The parts between commas outside of all brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([{<") - (c in ")]}>")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def closing(text: str, start: int) -> int:
    """The position at which the bracket that opens at `start` closes."""
    pairs = {"(": ")", "{": "}"}
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == text[start]) - (text[i] == pairs[text[start]])
        if depth == 0:
            return i
    raise DocError(f"no end of: {text[start : start + 60]}")


def parameters(text: str) -> list[Parameter]:
    found = []
    for part in split(text):
        declared, _, default = (piece.strip() for piece in part.partition("="))
        m = re.match(r"(.*[\s&>*])(\w+)$", declared)
        found.append(Parameter(short(m[1]) if m else short(declared), m[2] if m else "", default))
    return found


def function(code: str) -> tuple[str, str, list[Parameter]] | None:
    code = re.sub(r"^template <[^>]*> ", "", code)
    m = re.match(r"((?:inline |explicit )?)((?:[\w:<>,*]+[\s&]+)*)((?:operator\W+|\w+))\(", code)
    if not m or re.match(r"(struct|class|enum|using|namespace|return|if|for)\b", code):
        return None
    return short(m[2]), m[3], parameters(code[m.end() : closing(code, m.end() - 1)])


def without_comment(line: str) -> tuple[str, str]:
    code, _, comment = line.partition("//")
    return code.rstrip(), comment.strip()


def balanced(text: str) -> bool:
    return sum((c in "({") - (c in ")}") for c in text) == 0


def joined(comments: list[str]) -> str:
    return " ".join(c for c in comments if c)


SECTION = re.compile(r"--- (.*?)(?:: (.*))? ---$")
TYPE = re.compile(r"(?:template <.*?> )?(?:struct|class|enum)\b")


def sections(text: str) -> list[Section]:
    """The sections of a header. The first has what precedes all section headers; its note is the comment that opens the file."""
    found = [Section("")]
    above: list[str] = []  # comments since the last declaration
    run = ""  # the comment above this run of declarations
    lines: list[str] = []  # of the declaration that has begun
    behind: list[str] = []  # the comments in it
    own = False  # a comment stands right above it
    for line in text.splitlines():
        code, comment = without_comment(line)
        code = code.strip()
        if not lines:
            section = found[-1]
            unused = section.note if section.declarations else joined([section.note, *above])
            if not code:
                if m := SECTION.match(comment):
                    found.append(Section(m[1], (m[2] or "") and m[2] + "."))
                elif comment.startswith("--- "):
                    raise DocError(f"the header of a section needs one line, ending with ---: // {comment}")
                elif comment:
                    above.append(comment)
                else:  # a comment by itself is the section's
                    section.note, above, run = unused, [], ""
                continue
            if re.match(r"#|namespace\b|}$|(public|private|protected):$", code):
                continue
            if section.name and not section.declarations:  # and so is one right below its header
                section.note, above = unused, []
            own = bool(above)
            if own or TYPE.match(code):  # a comment on options is also that of the functions below them
                run = joined(above)
            above = []
        lines.append(line)
        so_far = " ".join(without_comment(each)[0].strip() for each in lines)
        if comment and (len(lines) == 1 or not TYPE.match(so_far) or so_far.count("{") == 1 and code.endswith("{")):
            behind.append(comment)
        if balanced(so_far) and re.search(r";$|\).*}$|^MIXTAPE_FIELDS\(.*\)$", so_far):
            comment = joined([run if own or not behind else "", *behind])
            found[-1].declarations.append(Declaration(so_far, lines, comment))
            if behind:
                run = ""
            lines, behind = [], []
    if lines:
        raise DocError(f"no end of: {lines[0].strip()}")
    return found


def bodies(text: str) -> Iterator[tuple[str, list[Parameter], str]]:
    """The functions that a source defines at its margin: name, parameters, body."""
    text = "\n".join(without_comment(line)[0] for line in text.splitlines())
    for m in re.finditer(r"^(?!struct|class|namespace|template|using|#)[\w:<>,&\s]*?[\s&](?:ops::)?(\w+)\(", text, re.MULTILINE):
        end = closing(text, m.end() - 1)
        opened = re.match(r"\)\s*(?:const\s*)?\{", text[end:])
        if opened:
            start = end + opened.end() - 1
            yield m[1], parameters(" ".join(text[m.end() : end].split())), text[start : closing(text, start)]
