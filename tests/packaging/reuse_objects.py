#!/usr/bin/env python3
"""A compiler that copies an object of Mixtape as a subproject from a build of the same source, where that compiled it with
the same flags, and compiles all else. Usage: reuse_objects.py BUILD COMPILER ARGUMENTS..."""
import json
import os
import pathlib
import shlex
import shutil
import sys

build, command = pathlib.Path(sys.argv[1]), sys.argv[2:]


def flags(arguments: list[str]) -> list[str]:
    """Without those that name places in one build."""
    return [argument for argument in arguments[:arguments.index("-MD")] if not argument.startswith("-I")]


if "-c" in command:
    target = command[command.index("-o") + 1]
    name = target.removeprefix("subprojects/mixtape/")
    for known in json.loads((build / "compile_commands.json").read_text()):
        if name != target and known["output"] == name and flags(shlex.split(known["command"])) == flags(command):
            shutil.copyfile(build / name, target)
            sys.exit()
os.execvp(command[0], command)
