#!/usr/bin/env python3
"""The headers that a program may include: all but the internal ones of kernels, ops and the tables of ONNX.

usage: public_headers.py                   prints their names
       public_headers.py FOLDER [DEPFILE]  writes them to FOLDER as programs see them: <mixtape.h> and
                                           <mixtape/LAYER/NAME.h>, which include each other by these names, since a program
                                           has folders such as core/ of its own. DEPFILE tells ninja what they are made of."""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ["core", "kernels", "autograd", "nn", "optim", "amp", "io", "dist", "train"]
FROM_ELSEWHERE = ["emulator/simt/record.h"]  # which kernels of builds with -Dcuda=emulated include
KERNELS = ("kernels/cpu/", "kernels/cuda/")  # shared among kernels, compiled for one processor
PRIVATE = (*KERNELS, "autograd/ops/", "train/onnx/")
INCLUDE = re.compile(r'^(\s*#\s*include )"(.+)"', re.MULTILINE)


def headers(root: Path, without: tuple[str, ...]) -> list[str]:
    """Those of the layers, without some folders."""
    found = (path.relative_to(root).as_posix() for layer in LAYERS for path in sorted((root / layer).rglob("*.h")))
    return [name for name in found if not name.startswith(without)]


def public_headers() -> list[str]:
    return headers(ROOT, PRIVATE) + FROM_ELSEWHERE


def stage(folder: Path) -> list[str]:
    """Writes all headers, and returns the names of their sources. What is the same keeps its date, but for <mixtape.h>, whose
    date is that of the latest change."""
    staged = {"mixtape.h": "mixtape.h"} | {f"mixtape/{name}": name for name in public_headers()}
    changed = False
    for old in folder.glob("mixtape/**/*.h"):
        if old.relative_to(folder).as_posix() not in staged:
            old.unlink()
            changed = True
    for target, name in staged.items():
        text = INCLUDE.sub(r"\1<mixtape/\2>", (ROOT / name).read_text())
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed = True
    if changed:
        os.utime(folder / "mixtape.h")
    return list(staged.values())


def main(arguments: list[str]) -> int:
    if len(arguments) > 2 or arguments and arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    if not arguments:
        print(*public_headers(), sep="\n")
        return 0
    folder, *depfile = arguments
    names = stage(Path(folder))
    if depfile:
        folders = sorted({str(Path(name).parent) for name in names} - {"."})  # whose dates change with the list of headers
        paths = [str(ROOT / name).replace(" ", "\\ ") for name in [*names, *folders]]
        Path(depfile[0]).write_text(f"{folder}/mixtape.h: {' '.join(paths)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
