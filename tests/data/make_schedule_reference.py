"""Writes schedule_reference.inc: the rates and momenta that torch.optim.lr_scheduler sets. Not part of the build.
Written with torch 1.13:
    python3 tests/data/make_schedule_reference.py > tests/data/schedule_reference.inc"""
import warnings

import torch
from torch.optim import lr_scheduler as s

STEPS = 50


def metric(step: int) -> float:
    """Falls, stays, jumps: what Plateau is given. As in the test."""
    return [1.0, 0.5, 0.4999999, 0.6, 0.3, 0.3, 0.7][step % 7] / (1 + step // 20)


def run(name: str, make, steps: int = STEPS, with_metric: bool = False) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4, momentum=0.9)
    schedule = make(optimizer)
    group = optimizer.param_groups[0]
    rates, momenta = [], []
    for step in range(steps):
        rates.append(group["lr"])
        momenta.append(group["momentum"])
        optimizer.step()
        schedule.step(*([metric(step)] if with_metric else []))
    if len(set(momenta)) == 1:
        momenta = []
    print(f'{{"{name}", {{{", ".join(map(repr, rates))}}}, {{{", ".join(map(repr, momenta))}}}}},')


warnings.simplefilter("ignore")  # SequentialLR steps its parts in a way that it warns of
print("// Printed by make_schedule_reference.py: schedule, rates, momenta if they change.")
run("one_cycle", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=10), 10)
run("one_cycle/linear", lambda o: s.OneCycleLR(o, max_lr=2.0, total_steps=12, pct_start=0.45, div_factor=10,
    final_div_factor=100, anneal_strategy="linear", base_momentum=0.7, max_momentum=0.8), 12)
run("one_cycle/steady", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=7, pct_start=0.5, cycle_momentum=False), 7)
run("one_cycle/falls", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=6, pct_start=0.0), 6)
run("one_cycle/long", lambda o: s.OneCycleLR(o, max_lr=0.1, total_steps=50))
run("cyclic", lambda o: s.CyclicLR(o, base_lr=0.4, max_lr=1.0, step_size_up=4, step_size_down=7))
run("cyclic/halving", lambda o: s.CyclicLR(o, base_lr=0.4, max_lr=0.9, step_size_up=5, mode="triangular2", base_momentum=0.6,
    max_momentum=0.95))
run("cyclic/exponential", lambda o: s.CyclicLR(o, base_lr=0.4, max_lr=1.4, step_size_up=6, mode="exp_range", gamma=0.97,
    cycle_momentum=False))
run("constant", lambda o: s.ConstantLR(o))
run("constant/long", lambda o: s.ConstantLR(o, factor=0.6, total_iters=30))
run("multiplicative", lambda o: s.MultiplicativeLR(o, lambda step: 1 - 1 / (step + 3)))
run("cosine", lambda o: s.CosineAnnealingLR(o, T_max=8, eta_min=0.01))
run("cosine/long", lambda o: s.CosineAnnealingLR(o, T_max=50))
run("cosine_restarts", lambda o: s.CosineAnnealingWarmRestarts(o, T_0=7, eta_min=0.01))
run("cosine_restarts/longer", lambda o: s.CosineAnnealingWarmRestarts(o, T_0=3, T_mult=2))
run("step_lr", lambda o: s.StepLR(o, step_size=7, gamma=0.5))
run("multi_step", lambda o: s.MultiStepLR(o, milestones=[3, 20, 20, 41], gamma=0.3))
run("exponential", lambda o: s.ExponentialLR(o, gamma=0.9))
run("linear_warmup", lambda o: s.LinearLR(o))
run("linear_warmup/falls", lambda o: s.LinearLR(o, start_factor=0.9, end_factor=0.2, total_iters=30))
run("polynomial", lambda o: s.PolynomialLR(o, total_iters=40, power=2.5))
run("polynomial/linear", lambda o: s.PolynomialLR(o))
run("lambda", lambda o: s.LambdaLR(o, lambda step: 0.95**step + 0.1))
run("sequential", lambda o: s.SequentialLR(o, [s.LinearLR(o, start_factor=0.1, total_iters=10),
    s.CosineAnnealingLR(o, T_max=30), s.ExponentialLR(o, gamma=0.8)], milestones=[10, 40]))
run("chained", lambda o: s.ChainedScheduler([s.LinearLR(o, start_factor=0.1, total_iters=10), s.ExponentialLR(o, gamma=0.95),
    s.StepLR(o, step_size=15, gamma=0.5)]))
run("plateau", lambda o: s.ReduceLROnPlateau(o, patience=2), with_metric=True)
run("plateau/higher", lambda o: s.ReduceLROnPlateau(o, mode="max", factor=0.5, patience=1, threshold=0.2,
    threshold_mode="abs", cooldown=3, min_lr=0.03), with_metric=True)
run("plateau/eps", lambda o: s.ReduceLROnPlateau(o, patience=0, factor=0.2, threshold=0, eps=0.01), with_metric=True)
