#!/usr/bin/env python3
"""Checks that every header outside of kernels/cpu/ and kernels/cuda/ compiles alone, and twice in one file, without a warning.

usage: check_headers.py ROOT FOLDER COMPILER FLAG...

FOLDER is for files that only include a header. They are compiled there, by paths relative to it: through ccache, a header
that has not changed costs nothing, wherever the checkout lies. What includes a header of BASES anyway begins with that one,
precompiled: since each is checked alone too, nothing else can hide what the header lacks."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
from public_headers import FROM_ELSEWHERE, INCLUDE, KERNELS, headers

BASES = ["nn/module.h", "core/tensor.h", "core/view.h"]  # of many headers, the largest first


def included(root: Path, header: str, known: dict[str, set[str]]) -> set[str]:
    """The project's headers that `header` includes, at any depth."""
    if header not in known:
        known[header] = set()
        if (root / header).exists():
            names = [match[2] for match in INCLUDE.finditer((root / header).read_text())]
            known[header] = set(names).union(*(included(root, name, known) for name in names))
    return known[header]


class Checker:
    def __init__(self, root: Path, folder: Path, compiler: list[str]) -> None:
        self.root, self.folder = root, folder
        self.command = [*compiler, f"-I{os.path.relpath(root, folder)}", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]
        self.environment = os.environ | {"CCACHE_SLOPPINESS": "pch_defines,time_macros"}
        self.known: dict[str, set[str]] = {}

    def compile(self, source: str, text: str, *arguments: str) -> str:
        """The compiler's messages about a file of this text; empty if it compiles."""
        (self.folder / source).write_text(text)
        run = subprocess.run([*self.command, *arguments, source], cwd=self.folder, env=self.environment, text=True,
                             capture_output=True)
        return run.stderr if run.returncode else ""

    def precompile(self, base: str) -> None:
        name = "base_" + base.replace("/", "_")
        (self.folder / f"{name}.gch").unlink(missing_ok=True)  # which the compiler would not compare with its sources
        self.compile(name, f'#include "{base}"\n', "-x", "c++-header", "-o", f"{name}.gch")

    def complaints(self, header: str) -> str:
        """The compiler's messages about a file that only includes `header`, twice, and a base that this includes itself."""
        name = header.replace("/", "_")
        within = included(self.root, header, self.known)
        bases = [base for base in BASES if base in within][:1]
        text = "".join(f'#include "base_{base.replace("/", "_")}"\n' for base in bases) + f'#include "{header}"\n' * 2
        return self.compile(f"{name}.cpp", text, "-fpch-preprocess", "-c", "-o", f"{name}.o")


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    root, folder, compiler = Path(arguments[0]).resolve(), Path(arguments[1]).resolve(), arguments[2:]
    names = headers(root, KERNELS) + [name for name in [*FROM_ELSEWHERE, "mixtape.h"] if (root / name).exists()]
    folder.mkdir(exist_ok=True)
    checker = Checker(root, folder, compiler)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(checker.precompile, [base for base in BASES if base in names]))
        results = list(pool.map(checker.complaints, names))
    bad = [(header, text) for header, text in zip(names, results) if text]
    for header, text in bad:
        print(f"{header} does not compile alone:\n{text}")
    print(f"{len(names)} headers, {len(bad)} do not compile alone")
    return int(bool(bad) or not names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
