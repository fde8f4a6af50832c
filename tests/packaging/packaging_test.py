#!/usr/bin/env python3
"""Installs the build into an empty folder, then compiles and runs hello.cpp against that copy alone,
with the flags that pkg-config gives. Usage: packaging_test.py BUILD COMPILER..."""
import os
import pathlib
import subprocess
import sys
import tempfile

build, compiler = sys.argv[1], sys.argv[2:]
source = pathlib.Path(__file__).parent / "hello.cpp"

with tempfile.TemporaryDirectory() as temp:
    subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", temp], check=True)
    [pc] = pathlib.Path(temp).rglob("mixtape.pc")
    environment = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent), PKG_CONFIG_SYSROOT_DIR=temp)
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "mixtape"], check=True,
                           capture_output=True, text=True, env=environment).stdout.split()
    program = pathlib.Path(temp) / "hello"
    subprocess.run([*compiler, "-std=c++20", str(source), *flags, "-o", str(program)], check=True)
    libraries = pc.parent.parent
    subprocess.run([str(program)], check=True, env=dict(os.environ, LD_LIBRARY_PATH=str(libraries)))
print("1 passed, 0 failed")
