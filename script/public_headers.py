#!/usr/bin/env python3
"""Prints the headers that a program may include: all but the internal ones of kernels and ops."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS = ["core", "kernels", "autograd", "nn", "optim", "amp", "io", "train"]
PRIVATE = ("kernels/cpu/", "kernels/cuda/", "autograd/ops/")

for layer in LAYERS:
    for path in sorted((ROOT / layer).rglob("*.h")):
        name = path.relative_to(ROOT)
        if not name.as_posix().startswith(PRIVATE):
            print(name)
