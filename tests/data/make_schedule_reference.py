"""Prints schedule_reference.inc: the rates and momenta that torch.optim.lr_scheduler sets. Not part of the build.
Written with the scheduler module of torch 2.2.2 (it is pure Python; a stand-in held the parameter groups):
    python3 tests/data/make_schedule_reference.py > tests/data/schedule_reference.inc"""
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR


def run(name: str, steps: int, make) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4, momentum=0.9)
    schedule = make(optimizer)
    group = optimizer.param_groups[0]
    rows = []
    for _ in range(steps):
        rows.append((group["lr"], group["momentum"]))
        optimizer.step()
        schedule.step()
    print(f'{{"{name}", {{{", ".join(repr(lr) for lr, _ in rows)}}}, {{{", ".join(repr(m) for _, m in rows)}}}}},')


print("// Printed by make_schedule_reference.py: schedule, rates, momenta.")
run("one_cycle", 10, lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=10))
run("one_cycle/linear", 12, lambda opt: OneCycleLR(opt, max_lr=2.0, total_steps=12, pct_start=0.45, div_factor=10,
    final_div_factor=100, anneal_strategy="linear", base_momentum=0.7, max_momentum=0.8))
run("one_cycle/steady", 7, lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=7, pct_start=0.5, cycle_momentum=False))
run("one_cycle/falls", 6, lambda opt: OneCycleLR(opt, max_lr=0.1, total_steps=6, pct_start=0.0))
run("cosine", 9, lambda opt: CosineAnnealingLR(opt, T_max=8, eta_min=0.01))
