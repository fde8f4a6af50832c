#!/usr/bin/env python3
"""Writes files of torch.save beside itself: torch_state.pt has nested containers, views and tied tensors of every dtype
that is here, and torch_old.pt and torch_protocol4.pt the same in other formats; torch_adamw.pt is an optimizer's state;
torch_dtypes.pt has dtypes that are not here; torch_parallel.pt is of a wrapped module; torch_python.pt has values of Python
and NumPy, some of which are not read.

usage: make_torch_files.py    (with torch 2.15)"""
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path, PurePosixPath

import numpy
import torch
from torch import nn

FOLDER = Path(__file__).parent
DTYPES = "float64 float32 float16 bfloat16 int64 int32 uint8 bool".split()

grid = torch.arange(24.0).reshape(4, 6)
weight = nn.Parameter(torch.tensor([[1.5, -2.0], [0.25, 4.0]]))
state = OrderedDict(
    model=OrderedDict(weight=weight, tied=weight, bias=torch.tensor([0.5, -0.5])),
    views={"grid": grid, "turned": grid.t(), "row": grid[2], "steps": grid[1::2, 1::2], "wide": grid[0, :3].expand(2, 3)},
    dtypes={name: torch.tensor([0, 1, 1], dtype=getattr(torch, name)) for name in DTYPES},
    scalar=torch.tensor(7),
    empty=torch.zeros(0, 3),
    images=torch.arange(16.0).reshape(1, 2, 2, 4).contiguous(memory_format=torch.channels_last),
    epoch=3,
    large=-(2**40),
    rate=0.125,
    done=True,
    best=None,
    note="größer",
    betas=(0.9, 0.999),
    sizes=[1, 2, 3],
    shape=torch.Size([4, 6]),
    milestones=Counter([10, 20, 20]),
    mixed=[torch.tensor([1.0]), 2, "three", {4: 5.0}],
    device=torch.device("cpu"),
    nothing=[{}, (), None],
)
torch.save(state, FOLDER / "torch_state.pt")
torch.save(state, FOLDER / "torch_protocol4.pt", pickle_protocol=4)
torch.save(state, FOLDER / "torch_old.pt", _use_new_zipfile_serialization=False)

torch.manual_seed(1)
net = nn.Linear(3, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, betas=(0.8, 0.95))
for _ in range(2):
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, FOLDER / "torch_adamw.pt")
torch.save(nn.DataParallel(net).state_dict(), FOLDER / "torch_parallel.pt")
numbers = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
torch.save({"here": numbers, **{name: numbers.to(getattr(torch, name)) for name in ("int16", "complex64", "uint16", "float8_e4m3fn")}},
           FOLDER / "torch_dtypes.pt")

columns = numpy.asfortranarray(numpy.arange(6, dtype="f4").reshape(2, 3))
torch.save({
    "weight": numbers, "args": Namespace(lr=0.5, data="digits", more=Namespace(depth=[2, 3])),
    "counts": defaultdict(int, {"a": 1, "b": 2}), "bytes": b"\0A\x80\xff", "no_bytes": b"", "array_of_bytes": bytearray(b"\x90"),
    "numpy": {
        "f64": numpy.float64(0.25), "f32": numpy.float32(1.5), "i64": numpy.int64(-3), "bool": numpy.bool_(True),
        "grid": columns.copy("C"), "columns": columns, "none": numpy.zeros((0, 2), "i4"), "scalar": numpy.array(7, "u2"),
    },
    "refused": {
        "words": numpy.array(["a", "b"]), "complex": 1j, "path": PurePosixPath("a/b"), "net": net, "function": torch.relu,
        "keys": {(1, 2): 3}, "large": 2**80, "list": [1, PurePosixPath("c")], "quantized": torch.quantize_per_tensor(numbers, 1, 0, torch.qint8),
    },
}, FOLDER / "torch_python.pt")
