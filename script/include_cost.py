#!/usr/bin/env python3
"""Measures the cost of compiling one file: the best of three runs, in time and in the compiler's peak memory.

usage: include_cost.py [--strict | --strict-memory] COMPILER FLAG... FILE
--strict exits 1 above the budget, --strict-memory above that of memory"""
import os
import subprocess
import sys
import time

SECONDS, MEGABYTES = 1.5, 250  # the budget on a developer's machine of 2024


def compile_once(command: list[str]) -> tuple[float, float]:
    """Seconds, and megabytes."""
    # (Under meson, malloc fills memory with a byte, and touches more of it.)
    env = {k: v for k, v in os.environ.items() if k != "MALLOC_PERTURB_"} | {"CCACHE_DISABLE": "1"}
    start = time.perf_counter()
    compiler = subprocess.Popen([*command, "-c", "-o", os.devnull], env=env)
    _, status, used = os.wait4(compiler.pid, 0)
    compiler.returncode = os.waitstatus_to_exitcode(status)
    if compiler.returncode:
        raise subprocess.CalledProcessError(compiler.returncode, command)
    return time.perf_counter() - start, used.ru_maxrss / 1000


def main(arguments: list[str]) -> int:
    strict = arguments[0] if arguments[:1] in (["--strict"], ["--strict-memory"]) else ""
    command = arguments[bool(strict):]
    if len(command) < 2 or command[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    try:
        runs = [compile_once(command) for _ in range(3)]
    except subprocess.CalledProcessError:
        return 1
    seconds, megabytes = (min(of) for of in zip(*runs))
    print(f"include cost: {seconds:.1f} s, {megabytes:.1f} MB")
    return int(bool(strict) and (megabytes > MEGABYTES or (strict == "--strict" and seconds > SECONDS)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
