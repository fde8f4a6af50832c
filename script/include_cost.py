#!/usr/bin/env python3
"""Measures the cost of compiling one file, and of its includes alone: the best of three runs, in time and in the compiler's peak
memory.

usage: include_cost.py [--strict | --strict-memory] COMPILER FLAG... FILE
--strict exits 1 if the includes alone take more than the budget of time, or the file more than that of memory; --strict-memory looks
at memory only"""
import contextlib
import os
import pathlib
import subprocess
import sys
import time

SECONDS, MEGABYTES = 1.5, 250  # the budget on a developer's machine of 2024


def compile_once(command: list[str], source: str) -> tuple[float, float]:
    """Seconds, and megabytes."""
    # (Under meson, malloc fills memory with a byte, and touches more of it.)
    env = {k: v for k, v in os.environ.items() if k != "MALLOC_PERTURB_"} | {"CCACHE_DISABLE": "1"}
    start = time.perf_counter()
    with subprocess.Popen([*command, "-x", "c++", "-c", "-o", os.devnull, "-"], env=env, stdin=subprocess.PIPE, text=True) as compiler:
        with contextlib.suppress(BrokenPipeError):  # it failed before it read all
            compiler.stdin.write(source)
            compiler.stdin.close()
        _, status, used = os.wait4(compiler.pid, 0)
        compiler.returncode = os.waitstatus_to_exitcode(status)
    if compiler.returncode:
        raise subprocess.CalledProcessError(compiler.returncode, command)
    return time.perf_counter() - start, used.ru_maxrss / 1000


def main(arguments: list[str]) -> int:
    strict = arguments[0] if arguments[:1] in (["--strict"], ["--strict-memory"]) else ""
    *command, file = arguments[bool(strict):] or [""]
    if not command or command[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    try:
        whole = pathlib.Path(file).read_text()
    except OSError as e:
        print(f"include_cost.py: {e}", file=sys.stderr)
        return 1
    includes = "".join(line for line in whole.splitlines(keepends=True) if line.startswith("#include"))
    try:
        runs = [(compile_once(command, includes), compile_once(command, whole)) for _ in range(3)]
    except subprocess.CalledProcessError:
        return 1
    (seconds, _), (of_whole, megabytes) = (tuple(min(of) for of in zip(*each)) for each in zip(*runs))
    print(f"include cost: {seconds:.1f} s; {file}: {of_whole:.1f} s, {megabytes:.1f} MB")
    return int(bool(strict) and (megabytes > MEGABYTES or (strict == "--strict" and seconds > SECONDS)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
