#!/usr/bin/env python3
"""Checks that every public header compiles alone, and twice in one file, without a warning.

usage: check_headers.py ROOT FOLDER COMPILER FLAG...

FOLDER is for files that only include a header. They are compiled there, by paths relative to it: through ccache, a header
that has not changed costs nothing, wherever the checkout lies."""
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAYERS = ["core", "kernels", "autograd", "nn", "optim", "amp", "io", "dist", "train"]
INTERNAL = ("kernels/cpu/", "kernels/cuda/")  # shared among kernels, compiled for one processor


def public_headers(root: Path) -> list[str]:
    found = (header.relative_to(root).as_posix() for layer in LAYERS for header in (root / layer).rglob("*.h"))
    headers = sorted(name for name in found if not name.startswith(INTERNAL))
    return headers + (["mixtape.h"] if (root / "mixtape.h").exists() else [])


def complaints(root: Path, folder: Path, compiler: list[str], header: str) -> str:
    """The compiler's messages about a file that only includes `header`; empty if there are none."""
    name = header.replace("/", "_")
    (folder / f"{name}.cpp").write_text(f'#include "{header}"\n' * 2)
    command = [*compiler, f"-I{os.path.relpath(root, folder)}", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror",
               "-c", f"{name}.cpp", "-o", f"{name}.o"]
    run = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    return run.stderr if run.returncode else ""


def main(root: Path, folder: Path, compiler: list[str]) -> int:
    headers = public_headers(root)
    folder.mkdir(exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda header: complaints(root, folder, compiler, header), headers))
    bad = [(header, text) for header, text in zip(headers, results) if text]
    for header, text in bad:
        print(f"{header} does not compile alone:\n{text}")
    print(f"{len(headers)} headers, {len(bad)} do not compile alone")
    return int(bool(bad) or not headers)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3:]))
