#!/usr/bin/env python3
"""Checks that clang++ compiles the library, which another compiler builds: with -Dwerror=true, without warnings.

usage: check_clang.py BUILD

Reads the files and their flags from BUILD/compile_commands.json, and checks the syntax alone. Skipped (77) without clang++."""
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LAYERS = ("core/", "kernels/", "autograd/", "nn/", "optim/", "io/", "amp/", "dist/", "train/")
TAKEN = ("-I", "-isystem", "-D", "-std=", "-m", "-W")  # flags that decide how a source reads, and warnings


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    if not shutil.which("clang++"):
        print("clang++ did not check the library: it is absent")
        return 77
    commands = [entry for entry in json.loads(Path(arguments[0], "compile_commands.json").read_text())
                if entry["file"].endswith(".cpp") and entry["output"].startswith(LAYERS)
                and "libmixtape_cuda" not in entry["output"]]

    def complaints(entry: dict[str, str]) -> str:
        flags = [flag for flag in shlex.split(entry["command"]) if flag.startswith(TAKEN)]
        command = ["clang++", *flags, "-fsyntax-only", "-Wno-unknown-warning-option", entry["file"]]
        run = subprocess.run(command, cwd=entry["directory"], text=True, capture_output=True)
        return run.stderr if run.returncode else ""

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = [text for text in pool.map(complaints, commands) if text]
    print(*found, f"clang++ read {len(commands)} files of the library; {len(found)} do not compile", sep="\n")
    return 1 if found or not commands else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
