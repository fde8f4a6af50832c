"""References besides the lists of ops and modules: every public name of a layer's headers, with its comment and its
file. script/docs writes them to docs/reference/."""
import re
from pathlib import Path

from declarations import Declaration, Parameter, closing, function, sections, split
from markdown import cell, code, table

# The headers of a layer that has a list of its own besides: nn.md, ops.md.
ONLY = {"nn": {"fields", "functional_call", "hooks", "init", "lora", "module", "parametrize", "summary"}}
# Headers elsewhere whose structs are a layer's options.
OPTIONS = {"optim": ["kernels/common/optimizers.h", "kernels/common/optimizers_more.h"]}
# Headers that only our own sources include.
INTERNAL = {
    "core": {"arena", "asan", "capture", "cxx20", "dlpack_abi", "draw", "float_mode", "inline_vector", "no_copy", "parse", "philox", "pinned_blocks", "pooled", "readback", "runtime"},
    "autograd": {"backward_state", "hook_list", "on_vectors", "ops", "quantised"},
    "dist": {"bucket", "division", "exchange", "levels", "mpi_engine", "mpi_plugin", "nccl", "nccl_engine", "peers", "socket", "tcp_engine"},
    "io": {"crc", "elements", "formats", "pickle", "protobuf", "text", "zip"},
    "train": {"config_reader", "stack", "tokenizer_file"},
}
# Members that a template asks of many structs, and explains itself.
EXPLAINED_ONCE = {"optim/schedules.h": {"validate", "rate"}}  # by ClosedForm
# Layers whose public functions all have a comment.
COMMENTED = ("amp", "core", "io", "optim", "train")
TITLES = {
    "core": "tensors, dtypes, devices and what surrounds a call",
    "autograd": "the tape, backward, functions of your own",
    "nn": "what modules have in common, initial values, hooks",
    "optim": "optimizers, schedules, clipping, averages",
    "amp": "autocast, loss scaling, reports",
    "dist": "training on several processes",
    "io": "files",
    "train": "Learner, callbacks, metrics, data",
}


def sentence(text: str) -> str:
    """Capitalised, unless it begins with code."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+[ ,:]", text[1:]) or text[:2] in ("a ", "A ") else text


def public_lines(d: Declaration) -> str:
    """The lines of a struct's or class's body that its users may name."""
    codes = [line.partition("//")[0].rstrip() for line in d.lines]
    opening = next((i for i, line in enumerate(codes) if line.endswith("{")), len(codes))
    hidden, depth, kept = bool(re.match(r"(?:template <.*?> )?class\b", d.code)), 0, []
    for line, text in zip(d.lines[opening + 1 : -1], codes[opening + 1 : -1]):
        if depth == 0 and (label := re.match(r"\s*(public|protected|private):$", text)):
            hidden = label[1] != "public"
        elif not hidden:
            kept.append(line)
        depth += text.count("{") - text.count("}")
    return "\n".join(kept)


def after_brackets(text: str, start: int) -> int:
    """Where what follows the <...> that opens at `start` begins."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == "<") - (text[i] == ">" and text[i - 1] != "-")
        if depth == 0:
            return i + 1
    return len(text)


def without_constraint(text: str) -> str:
    """A declaration without `template <...>` and `requires ...` before it."""
    while text.startswith("template <"):
        text = text[after_brackets(text, len("template ")) :].lstrip()
    if m := re.match(r"requires ?\(", text):
        return text[closing(text, m.end() - 1) + 1 :].lstrip()
    if m := re.match(r"requires [\w:]+<", text):
        return text[after_brackets(text, m.end() - 1) :].lstrip()
    return text


def plain(text: str) -> str:
    """Code without qualifiers that say nothing to a reader."""
    text = re.sub(r"\bstd::|&+(?=\S)|(?<=\S)&+|\b(?:const|constexpr|virtual|inline|explicit|consteval|constinit)\b ?", "", text)
    return re.sub(r" +", " ", text).replace("span< ", "span<").replace("vector< ", "vector<").replace("function< ", "function<").replace("( ", "(").strip()


def shown(d: Declaration) -> str | None:
    """A function, variable or alias as its user needs it; None if it is for the compiler alone."""
    text = without_constraint(re.sub(r"\[\[.*?\]\] ?|\bMIXTAPE_HD ", "", d.code)).replace("decltype(auto)", "auto")
    if re.match(r"requires\b|friend |using enum|using [\w:]+;|~|(class|struct) [\w:]+;|static_assert|namespace\b", text):
        return None
    if text.startswith("virtual ~") and not d.comment:
        return None
    if re.search(r"= (default|delete);$|\boverride\b", text) or re.match(r"(?:[\w<>,&*:]+ )*\w+::(operator|~?\w+\()", text):
        return None
    if m := re.match(r"using (\w+) = (.*);$", text):
        return f"{m[1]} = {plain(m[2])}"
    if m := re.match(r"(?:explicit |constexpr )*operator ([\w& ]+)\(", text):
        return f"operator {plain(m[1])}()"
    if found := function(re.sub(r"^((?:inline|virtual|constexpr|consteval|explicit|extern) )+", "", text)):
        result, name, parameters = found
        if not result and len(parameters) == 1 and parameters[0].type in (f"{name}&&", name):  # copies or moves
            return None
        if name.startswith("operator") or "operator" in result:
            return None
        return plain(f"{result} {name}({', '.join(map(typed, parameters))})")
    text = plain(text.rstrip(";").removeprefix("extern "))
    return None if "operator" in text else re.sub(r"\{.*\}$", "", text) if "(" in text else text


def name_of(text: str) -> str:
    """The name in a text of shown()."""
    while "<" in (head := re.split(r" = |\(|\{|\[", text)[0]):
        text = head[: head.index("<")] + text[after_brackets(text, head.index("<")) :]
    return re.findall(r"\w+", head.partition(",")[0])[-1]


def typed(p: Parameter) -> str:
    return f"{p.type} {p.name}".strip() + (f" = {p.default}" if p.default else "")


def related(text: str, other: str) -> bool:
    """Functions that one comment explains: overloads, state_dict() and load_state_dict(), or with results of one type
    read_torch() and parse_torch()."""
    name, before = name_of(text), name_of(other)
    if name in before or before in name:
        return True
    results = {each[: each.index(n)].strip() for each, n in ((text, name), (other, before))}
    return (len(results) == 1 and results.isdisjoint({"void", "bool", ""})
            and any(len(word) > 3 for word in set(name.split("_")) & set(before.split("_"))))


def declarators(d: Declaration) -> list[Declaration]:
    """One for each function of a declaration: of `Tensor exp() const, log() const;` two."""
    first, *others = split(d.code.removesuffix(";"))
    if not others or not all(re.match(r"\w+\(.*\) const$", other) for other in others):
        return [d]
    result = first[: re.search(r"\w+\(", first).start()]
    return [Declaration(code, d.lines, d.comment) for code in (first + ";", *(f"{result}{other};" for other in others))]


def groups(declarations: list[Declaration], explained: set[str]) -> list[tuple[list[str], str]]:
    """Names with their comment: one, or those of one comment."""
    found: list[tuple[list[str], str]] = []
    last = ""
    for d in declarations:
        if d.type_name or d.code.startswith("enum"):
            continue
        text, *others = map(shown, declarators(d))
        if not text:
            continue
        comment = d.comment
        last, inherited = comment, comment == last
        if not comment and name_of(text) in explained or (not comment or inherited) and any(text in texts for texts, _ in found):
            continue  # (The latter: of an lvalue and of an rvalue.)
        if found and comment and inherited:  # that of the one before, not its own
            if "(" in text and related(text, found[-1][0][0]):
                found[-1][0].extend([text, *others])
                continue
            comment = ""
        found.append(([text, *others], comment))
    return found


def rows(declarations: list[Declaration], explained: set[str]) -> list[list[str]]:
    found = groups(declarations, explained)
    return [["<br>".join(map(code, dict.fromkeys(texts))), cell(comment)] for texts, comment in found]


def enumerations(declarations: list[Declaration]) -> list[str]:
    lines = []
    for d in declarations:
        if m := re.match(r"enum class (\w+)(?: : \w+)? \{ (.*) \};$", d.code):
            values = ", ".join(code(v.strip()) for v in m[2].split(",") if v.strip())
            lines.append(f"- {code(m[1])}: {values}{'. ' + cell(sentence(d.comment)) if d.comment else ''}")
    return lines


def is_type(d: Declaration) -> bool:
    return bool(d.type_name) and d.code.endswith("};") and "fmt::formatter" not in d.code


def is_option(member: Declaration) -> bool:
    return not member.type_name and not member.function() and not re.match(r"static|template|using", member.code)


def public_members(d: Declaration) -> list[Declaration]:
    return [member for part in sections(public_lines(d)) for member in part.declarations]


def type_parts(d: Declaration, explained: set[str], outer: str = "", options: bool = False) -> list[str]:
    """The heading of a struct, what it is, its public members, and those of the types in it; of options, the fields."""
    name = outer + (d.type_name or "")
    members = public_members(d)
    if options:
        members = [member for member in members if is_option(member)]
    parts = [f"### {name}"]
    base = re.match(r"(?:template <.*?> )?(?:class|struct) \w+(?: final)? : (?:public )?([\w:]+)", d.code)
    derived = [f"Derives from {code(base[1])}."] if base and base[1] not in ("NoCopy", "ScopedValue") else []
    if d.comment or derived:
        parts.append(" ".join([cell(sentence(d.comment))] * bool(d.comment) + derived))
    if found := rows(members, explained):
        parts.append(table(["member", ""], found).rstrip())
    if lines := enumerations(members):
        parts.append("\n".join(lines))
    for member in members:
        if is_type(member):
            parts += type_parts(member, explained, name + "::")
    return parts


def public_text(header: Path) -> str:
    """A header's text without private parts and without macros of several lines."""
    text = re.sub(r"^#define (?:.*\\\n)+.*", "", header.read_text(), flags=re.MULTILINE)
    return re.sub(r"^namespace (\[\[.*?\]\] )?(mixtape::)?detail \{$.*?^\}  // namespace (mixtape::)?detail$", "", text, flags=re.MULTILINE | re.DOTALL)


def header_parts(root: Path, header: Path, up: str) -> tuple[list[str], list[str]]:
    """A section of a header, and the names that it declares."""
    found = sections(public_text(header))
    declarations = [d for part in found for d in part.declarations]
    options = header.relative_to(root).parts[0] == "kernels"
    if options:  # structs with a name and fields
        declarations = [d for d in declarations if "string_view name =" in d.code and any(map(is_option, d.members()))]
    types = [d for d in declarations if is_type(d)]
    name = header.relative_to(root).as_posix()
    explained = EXPLAINED_ONCE.get(name, set())
    free, values = rows(declarations, explained), enumerations(declarations)
    if not types and not free and not values:
        return [], []
    parts = [f"## [{name}]({up}{name})"]
    if found[0].note:
        parts.append(cell(found[0].note))
    if free:
        parts.append(table(["name", ""], free).rstrip())
    if values:
        parts.append("\n".join(values))
    for d in types:
        parts += type_parts(d, explained, options=options)
    others = [name_of(text) for d in declarations if not d.type_name and not d.code.startswith("enum") and (text := shown(d))]
    enums = [m[1] for d in declarations if (m := re.match(r"enum class (\w+)", d.code))]
    return parts, list(dict.fromkeys([*(d.type_name or "" for d in types), *enums, *others]))


def public_headers(root: Path, layer: str) -> list[Path]:
    headers = sorted((root / layer).rglob("*.h"), key=lambda path: (path.parent != root / layer, path))
    return [h for h in headers if h.stem not in INTERNAL.get(layer, ()) and h.stem in ONLY.get(layer, {h.stem})
            and h.parent not in (root / "autograd/ops", root / "train/onnx")]


def without_comment(declarations: list[Declaration], explained: set[str], outer: str = "") -> list[str]:
    """The functions among them, and in the types among them, that the reference lists without a word."""
    found = [outer + text for texts, comment in groups(declarations, explained) if not comment
             for text in texts if re.match(r"(?:[\w:<>,*\[\] ]+ )?\w+\(.*\)$", text)]
    for d in declarations:
        if is_type(d):
            found += without_comment(public_members(d), explained, f"{outer}{d.type_name}: ")
    return found


def uncommented(root: Path) -> list[str]:
    """The public functions without a comment in layers where all have one, and a complaint for each such layer."""
    complaints = []
    for layer in COMMENTED:
        lacking = []
        for header in public_headers(root, layer):
            name = header.relative_to(root).as_posix()
            declarations = [d for part in sections(public_text(header)) for d in part.declarations]
            lacking += [f"{name}: {each}" for each in without_comment(declarations, EXPLAINED_ONCE.get(name, set()))]
        if lacking:
            complaints += [*lacking, f"{layer}: {len(lacking)} public functions have no comment: say in a line what each does"]
    return complaints


def references(root: Path, generated: str) -> dict[Path, str]:
    """The document of each layer that has headers here."""
    made = {}
    for layer, title in TITLES.items():
        index, body = [], []
        options = [root / name for name in OPTIONS.get(layer, ()) if (root / name).exists()]
        for header in [*public_headers(root, layer), *options]:
            parts, names = header_parts(root, header, "../../")
            if parts:
                body += parts
                index.append(f"| `{header.relative_to(root).as_posix()}` | {' '.join(map(code, names))} |")
        if body:
            head = [f"# {layer}: {title}", generated.format(layer + "/"),
                    "The public names by header, with the comment of each; [the guides](../README.md) explain their use. "
                    "`const`, `&` and `std::` are left out, and so are members that override.",
                    "| header | names |\n|---|---|\n" + "\n".join(index)]
            made[root / "docs/reference" / f"{layer}.md"] = "\n\n".join(head + body) + "\n"
    return made
