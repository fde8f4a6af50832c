#!/usr/bin/env python3
"""Times a training step as its batch, length or width grows, and prints how time and the peak of tensors grow with each: the
exponent between the two largest sizes (1: in proportion). Draws them, both axes logarithmic. Figures are medians.

usage: bench_growth.py BENCH_GROWTH DRAW [--out FILE.svg] [--repetitions N] [--filter REGEX]    both programs as built"""
from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys

Curve = dict[int, tuple[float, float]]  # by size: ms, MiB


def measure(program: str, repetitions: int, only: str) -> dict[tuple[str, ...], Curve]:
    """By (net, axis, dtype, threads)."""
    run = subprocess.run([program, f"--benchmark_repetitions={repetitions}", "--benchmark_report_aggregates_only=true",
                          "--benchmark_format=json", f"--benchmark_filter={only}"], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[tuple[str, ...], Curve] = {}
    for line in json.loads(run.stdout)["benchmarks"]:
        if line.get("aggregate_name") == "median":
            _, net, axis, size, dtype, threads, *_ = line["run_name"].split("/")
            curve = found.setdefault((net, axis, dtype, threads.removeprefix("threads:")), {})
            curve[int(size)] = line["real_time"], line["peak_bytes"] / 2**20
    return found


def exponents(curve: Curve) -> list[float]:
    """Exponents of time and memory between the two largest sizes; not a number if there is but one."""
    if len(curve) < 2:
        return [math.nan, math.nan]
    small, large = sorted(curve)[-2:]
    return [math.log(b / a) / math.log(large / small) for a, b in zip(curve[small], curve[large])]


def charts(found: dict[tuple[str, ...], Curve]) -> list[dict]:
    made = []
    for which, title, unit in (0, "Time of a step", "ms"), (1, "Peak of tensors", "MiB"):
        series = []
        for (net, axis, dtype, threads), curve in found.items():
            if threads != "1":
                continue
            sizes = sorted(curve)
            series.append({"name": f"{net} {axis}, {dtype}: n^{exponents(curve)[which]:.2f}",
                           "x": [n / sizes[0] for n in sizes], "y": [curve[n][which] for n in sizes], "dots": False,
                           "color": len(series), "notes": []})
        made.append({"title": f"{title} as one size grows, 1 thread", "x_label": "times its smallest", "y_label": unit,
                     "log": True, "width": 940, "series": series})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="BENCH_GROWTH")
    parser.add_argument("draw", metavar="DRAW")
    parser.add_argument("--out", help="where the picture goes")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--filter", default=".*", metavar="REGEX")
    options = parser.parse_args()
    found = measure(options.program, options.repetitions, options.filter)
    if not found:
        sys.exit(f"bench_growth.py: nothing is named {options.filter}")
    print("| step | grows | precision | threads | ms | MiB | time | memory |\n|---|---|---|---|---|---|---|---|")
    for (net, axis, dtype, threads), curve in found.items():
        sizes = sorted(curve)
        ms, mib = (", ".join(f"{curve[n][which]:.3g}" for n in sizes) for which in (0, 1))
        time, memory = (f"n^{e:.2f}" for e in exponents(curve))
        print(f"| {net} | {axis} {', '.join(map(str, sizes))} | {dtype} | {threads} | {ms} | {mib} | {time} | {memory} |")
    if options.out:
        drawn = subprocess.run([options.draw], input=json.dumps(charts(found)), text=True, stdout=subprocess.PIPE, check=True)
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(drawn.stdout)


if __name__ == "__main__":
    main()
