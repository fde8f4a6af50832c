#!/usr/bin/env python3
"""Checks that every header outside of kernels/cpu/ and kernels/cuda/ compiles alone, and twice in one file, without a warning.

usage: check_headers.py ROOT FOLDER COMPILER FLAG...

FOLDER is for files that only include a header. They are compiled there, by paths relative to it: through ccache, a header
that has not changed costs nothing, wherever the checkout lies."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
from public_headers import FROM_ELSEWHERE, KERNELS, headers


def complaints(root: Path, folder: Path, compiler: list[str], header: str) -> str:
    """The compiler's messages about a file that only includes `header`; empty if there are none."""
    name = header.replace("/", "_")
    (folder / f"{name}.cpp").write_text(f'#include "{header}"\n' * 2)
    command = [*compiler, f"-I{os.path.relpath(root, folder)}", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror",
               "-c", f"{name}.cpp", "-o", f"{name}.o"]
    run = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    return run.stderr if run.returncode else ""


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    root, folder, compiler = Path(arguments[0]).resolve(), Path(arguments[1]).resolve(), arguments[2:]
    names = headers(root, KERNELS) + [name for name in [*FROM_ELSEWHERE, "mixtape.h"] if (root / name).exists()]
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda header: complaints(root, folder, compiler, header), names))
    bad = [(header, text) for header, text in zip(names, results) if text]
    for header, text in bad:
        print(f"{header} does not compile alone:\n{text}")
    print(f"{len(names)} headers, {len(bad)} do not compile alone")
    return int(bool(bad) or not names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
