#!/usr/bin/env python3
"""Checks that the tests ran every CUDA kernel on the emulator: each __global__ function of kernels/cuda was launched by
some test program since that was built. Reports tell kernels apart by name alone, so no two may share one.

usage: check_kernels.py BUILD_DIR    reads BUILD_DIR/launched/, which tests write; exits 77 if there is nothing"""
import re
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
BOUNDS = re.compile(r"__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
KERNEL = re.compile(r"__global__\s+(?:static\s+)?void\s+(\w+)\(")


def declared(root: Path) -> dict[str, list[str]]:
    """The files that define each kernel name; a report is only clear if there is one."""
    files: dict[str, list[str]] = {}
    for file in sorted((root / "kernels" / "cuda").rglob("*.cu*")):
        for name in KERNEL.findall(BOUNDS.sub("", file.read_text())):
            files.setdefault(name, []).append(file.name)
    return files


def launched(build: Path) -> set[str]:
    """The names of the launched functions, without namespaces and template arguments."""
    places: dict[Path, set[int]] = {}
    for report in (build / "launched").glob("*"):
        program = build / "tests" / report.name.rpartition("-")[0]
        if program.exists() and report.stat().st_mtime > program.stat().st_mtime:
            places.setdefault(program, set()).update(int(line, 16) for line in report.read_text().split())
    names = set()
    for program, wanted in places.items():
        symbols = subprocess.run(["nm", "--defined-only", program], capture_output=True, text=True, check=True).stdout
        mangled = [line.split()[2] for line in symbols.splitlines() if int(line.split()[0], 16) in wanted]
        plain = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True, check=True).stdout
        for line in plain.splitlines():
            found = re.search(r"cuda::(?:\(anonymous namespace\)::)?(\w+)[<(]", line)
            if found:
                names.add(found[1])
    return names


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    ran = launched(Path(arguments[0]))
    if not ran:
        print("no test program said which kernels it launched")
        return SKIPPED
    kernels = declared(Path(__file__).resolve().parent.parent)
    doubled = sorted(name for name, files in kernels.items() if len(files) > 1)
    for name in doubled:
        print(f"{', '.join(kernels[name])}: two kernels are named {name}")
    missed = sorted(set(kernels) - ran)
    for name in missed:
        print(f"{kernels[name][0]}: {name} was launched by no test")
    print(f"{len(kernels) - len(missed)} of {len(kernels)} kernels ran")
    return 1 if missed or doubled or not kernels else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
