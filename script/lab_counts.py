#!/usr/bin/env python3
"""Counts a warp's work on each rung of the ladder of matrix products (bench/lab/gemm): its instructions in a turn of the
loop over k, on the fast path, for each instruction that multiplies, and the multiply-adds of such a turn for each instruction.
Needs nvcc, cuobjdump and nvdisasm (script/bootstrap --cuda-tools), but no GPU."""
import argparse
import re
import sys
import tempfile
from pathlib import Path

import sass
from sass import ROOT, demangled, run

LAB = ROOT / "bench" / "lab" / "gemm"
# The multiply-adds of an instruction, for one warp. (Four warps share an HGMMA.)
MULTIPLY_ADDS = {"FFMA": 32, "HMMA": 16 * 8 * 16, "HGMMA": 64 * 256 * 16 // 4}


def rungs() -> list[tuple[str, str]]:
    """Idea and kernel of each."""
    return re.findall(r'\{"([^"]+)",\s*"([^"]+)",', (LAB / "rungs.cu").read_text())


def turn(body: list[sass.Instruction]) -> list[sass.Instruction]:
    """A turn of the loop over k: its fast path or, without tensor cores, all of the loop that multiplies most."""
    if any(i.is_one_of(sass.MMA) for i in body):
        loop = sass.fast_path(body)
        return loop.path if loop else []
    loops = [body[first:last + 1] for first, last in sass.loops_of(body)]
    return max(loops, key=lambda loop: sum(i.name == "FFMA" for i in loop))


def counts(arch: str) -> dict[str, tuple[str, int, int]]:
    """By kernel: the instruction that multiplies, how many of them there are in a turn, and how many instructions."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "rungs.cubin"
        run("nvcc", "-std=c++20", "-gencode", f"arch={arch.replace('sm', 'compute')},code={arch}", "-cubin", "-O3",
            "--expt-relaxed-constexpr", f"-I{ROOT}", LAB / "rungs.cu", "-o", cubin)
        text = run("cuobjdump", "-sass", cubin)
    found = {}
    for mangled, body in sass.kernels(text):
        name = re.sub(r"\(.*|void |\(int\)", "", demangled([mangled])[0])
        opcodes = [i.name.split(".")[0] for i in turn(body)] if body else []
        which = next((w for w in ("HGMMA", "HMMA", "FFMA") if w in opcodes), None)
        if which:
            found[name] = which, opcodes.count(which), len(opcodes)
    return found


def columns(found: tuple[str, int, int] | None) -> str:
    if found is None:
        return " | |"
    which, multiplying, all_of_them = found
    return f"{all_of_them / multiplying:.1f} per {which} | {MULTIPLY_ADDS[which] * multiplying / all_of_them:,.0f} |"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a", help="sm_90a (the default) or another that nvcc knows")
    parser.add_argument("table", nargs="?", type=Path, help="what lab_gemm printed: the counts are added to its lines")
    options = parser.parse_args(arguments)
    found = counts(options.arch)
    headings = f"instructions ({options.arch}) | multiply-adds per instruction |"
    if options.table is None:
        print(f"| rung | idea | {headings}\n|--:|---|--:|--:|")
        for number, (idea, kernel) in enumerate(rungs()):
            print(f"| {number} | {idea} | {columns(found.get(kernel))}")
        return 0
    for line in options.table.read_text().splitlines():
        if line.startswith("| rung"):
            line += f" {headings}"
        elif line.startswith("|--"):
            line += "--:|--:|"
        elif number := re.match(r"\| (\d+) \|", line):
            line += f" {columns(found.get(rungs()[int(number[1])][1]))}"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
