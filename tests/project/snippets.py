"""The C++ blocks of a document as one program, and its `text` blocks as the expected output.

A block that opens with a declaration (struct, template, namespace, #include, using) stands at file scope. All others are
the body of main, in their order, so a block sees the variables of those before it. A document whose blocks define main is
taken as it is. A block with parameters in its fence, ```cpp (Tensor x), is a function with these parameters below its
#include lines: compiled, but not run.

usage: snippets.py write DOCUMENT PROGRAM.cpp    extracts
       snippets.py check DOCUMENT PROGRAM        runs the program and compares what it prints"""
import difflib
import pathlib
import re
import subprocess
import sys
import tempfile

AT_FILE_SCOPE = ("struct ", "template", "namespace ", "#include", "using ")


def blocks(document: pathlib.Path, language: str) -> list[tuple[int, str | None, str]]:
    """The first line of each block of a language, its parameters, and its text."""
    text = document.read_text()
    found = re.finditer(rf"^```{language}(?: (\([^\n]*\)))?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(2)) + 1, match[1], match[2]) for match in found]


def program(document: pathlib.Path) -> str:
    outside, inside = "", ""
    has_main, lines = False, []
    lost = [line for line, *_ in blocks(document, r"(?:c\+\+|cpp [^(\n]+)")]
    for line, given, code in blocks(document, "cpp"):
        has_main = has_main or "int main(" in code
        if given:
            includes, body = re.fullmatch(r"((?:#include[^\n]*\n)*)(.*)", code, re.DOTALL).groups()
            code = f"{includes}void block_{line}{given} {{ {body}}}\n"
        placed = f'#line {line} "{document.name}"\n{code}\n'  # so that the compiler names the document
        if given or code.startswith(AT_FILE_SCOPE):
            outside += placed
        else:
            inside += placed
            lines.append(line)
    if lost := lost + lines * has_main:
        sys.exit(f"{document}:{min(lost)}: a block that would not be compiled")
    if has_main:
        return outside
    return f"#include <mixtape.h>\n\nusing namespace mixtape;\n\n{outside}int main() {{\n{inside}}}\n"


def check(document: pathlib.Path, executable: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as folder:  # for files of the program
        run = subprocess.run([executable.resolve()], cwd=folder, text=True, capture_output=True)
    if run.returncode != 0 and re.search(r"this build (has no|lacks) \S+", run.stderr):
        print(run.stderr, end="")
        return 77  # skipped
    expected = "".join(text for *_, text in blocks(document, "text"))
    print(run.stderr, end="")
    sys.stdout.writelines(difflib.unified_diff(expected.splitlines(True), run.stdout.splitlines(True), document.name, "printed"))
    return int(run.returncode != 0 or run.stdout != expected)


if __name__ == "__main__":
    action, document, target = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    if action == "write":
        target.write_text(program(document))
    else:
        sys.exit(check(document, target))
