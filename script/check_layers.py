#!/usr/bin/env python3
"""Checks that includes only point down the layers, that headers seen by nvcc or a user's compiler stay light, and that
files include the headers of fmt that they need with every version of it.

usage: check_layers.py [ROOT]    prints "file:line: what is wrong" and exits 1 where something is"""
import re
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tree import files

# The layers, or single headers, that a layer may include besides itself.
BELOW = {
    "core": [],
    "emulator": ["core", "kernels/cpu/loops/parallel.h"],
    "kernels": ["core", "emulator/simt/simt.h", "emulator/simt/tensor.h", "emulator/simt/hopper.h",
                "emulator/simt/runtime.h"],  # where nvcc does not compile
    "autograd": ["core", "kernels"],
    "nn": ["core", "autograd"],
    "optim": ["core", "kernels", "autograd/autograd_meta.h", "autograd/tape.h"],  # for gradients, and writes in place
    "amp": ["core", "kernels", "autograd", "optim", "io/crc.h", "io/file.h", "io/text.h", "io/svg.h", "io/safetensors.h"],  # files of overrides, tables, pictures, capsules
    "io": ["core"],
    "dist": ["core", "kernels", "autograd", "nn", "optim", "amp"],
    "train": ["core", "kernels", "autograd", "nn", "optim", "amp", "io", "dist"],
}
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
UNPORTABLE = re.compile(r"fmt/|Eigen/|unsupported/Eigen/")  # nvcc rejects these, or warns for pages
HEAVY = re.compile(r"Eigen/|unsupported/Eigen/|nlohmann/|CLI/")  # seconds of compile time for every user
# fmt's functions that no other header has in every version since 9, and the headers with which each comes.
FMT = {"fmt::format": ("format", "ranges", "chrono"), "fmt::to_string": ("format", "ranges", "chrono"), "fmt::join": ("ranges",)}
OUTSIDE = re.compile(r"\.\./" + r"shared\b")
MAY_LOOK_OUTSIDE = {"script/test"}  # real data beside the checkout, and its tests skip without


class Tree:
    def __init__(self, root: Path):
        self.root = root
        self.includes = cache(self._includes)

    def _includes(self, name: str) -> list[tuple[int, str, bool]]:
        """(line, name, quoted) of each include."""
        try:
            lines = (self.root / name).read_text().splitlines()
        except OSError:
            return []
        found = ((number, INCLUDE.match(line)) for number, line in enumerate(lines, 1))
        return [(number, m[1] or m[2], m[1] is not None) for number, m in found if m]

    def reaches(self, start: str, what: re.Pattern[str]) -> tuple[int, str] | None:
        """The line of `start` and the chain of includes that leads to a name matching `what`."""
        queue = deque((number, [name]) for number, name, _ in self.includes(start))
        seen = set()
        while queue:
            line, chain = queue.popleft()
            if what.match(chain[-1]):
                return line, " -> ".join(chain)
            if chain[-1] not in seen:
                seen.add(chain[-1])
                queue.extend((line, [*chain, name]) for _, name, _ in self.includes(chain[-1]))
        return None


def check_includes(tree: Tree, path: Path) -> Iterator[tuple[int, str]]:
    layer, name = path.parts[0], path.as_posix()
    inner = name.startswith(("kernels/cpu/", "kernels/cuda/"))
    if layer in BELOW:
        allowed = [layer, *BELOW[layer]]
        for line, target, quoted in tree.includes(name):
            top = target.split("/")[0]
            if quoted and (top not in BELOW or "/" not in target):
                yield line, f'"{target}" does not start with a layer'
            elif (quoted or top in BELOW) and target not in allowed and top not in allowed:
                yield line, f"{layer} must not include {target}"
            elif target == "mixtape.h":
                yield line, f"{layer} must not include <mixtape.h>, which includes every layer"
        if layer == "kernels" and (hit := tree.reaches(name, re.compile(r"core/tensor\.h"))):
            yield hit[0], f"kernels see Views, never Tensors: {hit[1]}"
        if path.suffix == ".h" and not inner and (hit := tree.reaches(name, HEAVY)):
            yield hit[0], f"too heavy for a public header: {hit[1]}"
    device = path.suffix in {".cu", ".cuh"} or layer == "kernels" and path.suffix == ".h"
    if device and not name.startswith("kernels/cpu/") and (hit := tree.reaches(name, UNPORTABLE)):
        yield hit[0], f"nvcc must see neither fmt nor Eigen: {hit[1]}"


def check_fmt(tree: Tree, path: Path) -> Iterator[tuple[int, str]]:
    included = {name for _, name, _ in tree.includes(path.as_posix())}
    for number, line in enumerate((tree.root / path).read_text().splitlines(), 1):
        for called in re.findall(r"\bfmt::\w+(?=\()", line.partition("//")[0]):
            if called in FMT and not included & {f"fmt/{header}.h" for header in FMT[called]}:
                yield number, f"{called} needs <fmt/{FMT[called][0]}.h> in this file: fmt's other headers lack it since version 11"


def check_outside(root: Path, path: Path) -> Iterator[tuple[int, str]]:
    if path.as_posix() in MAY_LOOK_OUTSIDE:
        return
    try:
        lines = (root / path).read_text().splitlines()
    except UnicodeDecodeError:
        return
    for number, line in enumerate(lines, 1):
        if hit := OUTSIDE.search(line):
            yield number, f"{hit[0]} lies outside the project"


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments and arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    root = Path(*arguments or [Path(__file__).parent.parent]).resolve()
    tree = Tree(root)
    bad = 0
    for path in (path.relative_to(root) for path in files(root)):
        found = list(check_outside(root, path))
        if path.suffix in SOURCES:
            found += [*check_includes(tree, path), *check_fmt(tree, path)]
        for line, what in found:
            print(f"{path}:{line}: {what}")
        bad += len(found)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
