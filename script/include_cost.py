#!/usr/bin/env python3
"""Measures the cost of compiling one file: the best of three runs, and the compiler's peak memory.

usage: include_cost.py [--strict | --strict-memory] COMPILER FLAG... FILE
--strict exits 1 above the budget, --strict-memory above that of memory"""
import os
import resource
import subprocess
import sys
import time

SECONDS, MEGABYTES = 1.5, 250  # the budget on a developer's machine of 2024


def compile_once(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run([*command, "-c", "-o", os.devnull], check=True, env={**os.environ, "CCACHE_DISABLE": "1"})
    return time.perf_counter() - start


def main(arguments: list[str]) -> int:
    strict = arguments[0] if arguments[0].startswith("--strict") else ""
    command = arguments[bool(strict):]
    try:
        seconds = min(compile_once(command) for _ in range(3))
    except subprocess.CalledProcessError:
        return 1
    megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1000
    print(f"include cost: {seconds:.1f} s, {megabytes:.0f} MB")
    return int(bool(strict) and (megabytes > MEGABYTES or (strict == "--strict" and seconds > SECONDS)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
