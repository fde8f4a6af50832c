#!/usr/bin/env python3
"""Writes files of torch.save beside itself: torch_state.pt has nested containers, views and tied tensors of every dtype
that is here, and torch_old.pt and torch_protocol4.pt the same in other formats; torch_adamw.pt is an optimizer's state;
torch_dtypes.pt has dtypes that are not here; torch_parallel.pt is of a wrapped module.

usage: make_torch_files.py    (with torch 2.15)"""
from collections import Counter, OrderedDict
from pathlib import Path

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
