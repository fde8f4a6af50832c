"""Writes what PyTorch's optimizers do to the problem of optim_problem.h, in f64: optim_reference.inc, and
torch_optim_state.safetensors, their state after half of the steps. Not part of the build. Written with torch 1.13:
    python3 tests/data/make_optim_reference.py
PyTorch 1.13 has no Lion, LAMB, LARS, schedule-free AdamW or Muon: they are written out below, from the papers, as plainly as can be."""
import json
import pathlib
import struct

import numpy as np
import torch

SHAPES = [(1, 3), (2, 9), (1, 1), (5, 3)]
STEPS, LATE, HALF = 20, 6, 10
FOLDER = pathlib.Path(__file__).parent


def value(k: int, i: int, t: int) -> float:
    """As in optim_problem.h."""
    x = ((t * 64 + k) * 64 + i + 1) * 2654435761 % 2**32
    x ^= x >> 15
    x = x * 0x85EBCA6B % 2**32
    x ^= x >> 13
    return (x >> 8) / 2**23 - 1


def values(k: int, t: int) -> np.ndarray:
    rows, columns = SHAPES[k]
    return np.array([value(k, i, t) for i in range(rows * columns)]).reshape(rows, columns)


class Lion:
    """Chen et al. 2023, algorithm 2."""

    def __init__(self, lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0, maximize=False):
        self.o = locals()

    def step(self, p, g, state, t):
        o = self.o
        g = -g if o["maximize"] else g
        m = state.get("m", 0 * p)
        c = o["beta1"] * m + (1 - o["beta1"]) * g
        state["m"] = o["beta2"] * m + (1 - o["beta2"]) * g
        return p - o["lr"] * (np.sign(c) + o["weight_decay"] * p)


class Lamb:
    """You et al. 2020, algorithm 2, with phi limiting the norm to a range, and the ratio limited as well."""

    def __init__(self, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, norms=(0, np.inf), trusts=(0, np.inf),
                 maximize=False):
        self.o = locals()

    def step(self, p, g, state, t):
        o = self.o
        g = -g if o["maximize"] else g
        state["m"] = o["beta1"] * state.get("m", 0) + (1 - o["beta1"]) * g
        state["v"] = o["beta2"] * state.get("v", 0) + (1 - o["beta2"]) * g**2
        m, v = state["m"] / (1 - o["beta1"]**t), state["v"] / (1 - o["beta2"]**t)
        u = m / (np.sqrt(v) + o["eps"]) + o["weight_decay"] * p
        norm, length = np.clip(np.sqrt((p**2).sum()), *o["norms"]), np.sqrt((u**2).sum())
        trust = norm / length if norm > 0 and length > 0 else 1.0
        return p - o["lr"] * np.clip(trust, *o["trusts"]) * u


class Lars:
    """You et al. 2017, algorithm 1, but with lr outside of the momentum, and the trust ratio limited to a range."""

    def __init__(self, lr=1.0, momentum=0.9, weight_decay=0.0, coefficient=1e-3, trusts=(0, np.inf), nesterov=False,
                 maximize=False):
        self.o = locals()

    def step(self, p, g, state, t):
        o = self.o
        g = -g if o["maximize"] else g
        norm, length = np.sqrt((p**2).sum()), np.sqrt((g**2).sum())
        trust = o["coefficient"] * norm / (length + o["weight_decay"] * norm) if norm > 0 and length > 0 else 1.0
        g = np.clip(trust, *o["trusts"]) * (g + o["weight_decay"] * p)
        state["b"] = o["momentum"] * state.get("b", 0) + g
        return p - o["lr"] * (g + o["momentum"] * state["b"] if o["nesterov"] else state["b"])


class ScheduleFreeAdamW:
    """Defazio et al. 2024, algorithm 1, with x as a variable of its own. Returns y."""

    def __init__(self, lr=2.5e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, warmup=0, maximize=False):
        self.o = locals()

    def step(self, p, g, state, t):
        o = self.o
        g = -g if o["maximize"] else g
        x, z = state.get("x", p), state.get("z", p)
        y = (1 - o["beta1"]) * z + o["beta1"] * x
        lr = o["lr"] * min(1, t / o["warmup"]) if o["warmup"] else o["lr"]
        state["v"] = o["beta2"] * state.get("v", 0) + (1 - o["beta2"]) * g**2
        d = g / (np.sqrt(state["v"] / (1 - o["beta2"]**t)) + o["eps"])
        z = z - lr * d - lr * o["weight_decay"] * y
        state["sum"] = state.get("sum", 0) + lr**2
        c = lr**2 / state["sum"]
        x = (1 - c) * x + c * z
        state["x"], state["z"] = x, z
        return (1 - o["beta1"]) * z + o["beta1"] * x


class Muon:
    """Jordan 2024; match_adam: Liu et al. 2025, equation 4."""

    def __init__(self, lr=0.02, momentum=0.95, eps=1e-7, weight_decay=0.0, nesterov=True, match_adam=False, maximize=False):
        self.o = locals()

    def step(self, p, g, state, t):
        o = self.o
        g = -g if o["maximize"] else g
        state["m"] = o["momentum"] * state.get("m", 0) + (1 - o["momentum"]) * g
        x = o["momentum"] * state["m"] + (1 - o["momentum"]) * g if o["nesterov"] else state["m"]
        x = x / (np.sqrt((x**2).sum()) + o["eps"])
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        rows, columns = p.shape
        factor = 0.2 * max(rows, columns)**0.5 if o["match_adam"] else max(1, rows / columns)**0.5
        return p - o["lr"] * (factor * x + o["weight_decay"] * p)


def is_late(name: str, k: int, t: int) -> bool:
    return name.endswith("/late") and k == 1 and t < LATE


def solve_plainly(name: str, optimizer) -> list[np.ndarray]:
    params = [values(k, 0) for k in range(len(SHAPES))]
    for k, p in enumerate(params):
        state, steps = {}, 0
        for t in range(1, STEPS + 1):
            if not is_late(name, k, t):
                steps += 1
                params[k] = optimizer.step(params[k], values(k, t), state, steps)
    return params


def flattened(name: str, optimizer) -> dict[str, torch.Tensor]:
    """optimizer.state_dict() by names, as tensors, without what is not a number."""
    saved = optimizer.state_dict()
    flat = {f"state.{n}.{field}": x for n, state in saved["state"].items() for field, x in state.items() if x is not None}
    for g, group in enumerate(saved["param_groups"]):
        for option, x in group.items():
            has_none = isinstance(x, tuple) and None in x  # as Adafactor's eps
            items = {f"{option}.{i}": item for i, item in enumerate(x)} if has_none else {option: x}
            flat |= {f"param_groups.{g}.{name}": item for name, item in items.items() if item is not None}
    for key, x in flat.items():
        is_number = isinstance(x, float) or isinstance(x, tuple)
        flat[key] = x.clone() if torch.is_tensor(x) else torch.tensor(x, dtype=torch.float64 if is_number else None)
    return {f"{name}/{key}": x for key, x in flat.items()}


def solve_in_torch(name: str, make, halfway: dict[str, torch.Tensor]) -> list[np.ndarray]:
    params = [torch.tensor(values(k, 0), requires_grad=True) for k in range(len(SHAPES))]
    optimizer = make(params)
    torch.set_default_dtype(torch.float64 if name.startswith(("nadam", "asgd")) else torch.float32)  # of their own numbers
    for t in range(1, STEPS + 1):
        for k, p in enumerate(params):
            p.grad = None if is_late(name, k, t) else torch.tensor(values(k, t))
        optimizer.step()
        if t == HALF:
            halfway |= flattened(name, optimizer)
            halfway |= {f"{name}/param.{k}": p.detach().clone() for k, p in enumerate(params)}
    return [p.detach().numpy() for p in params]


def write_safetensors(path: pathlib.Path, tensors: dict[str, torch.Tensor]) -> None:
    names = {torch.float64: "F64", torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}
    header, data = {}, b""
    for key, x in sorted(tensors.items(), key=lambda entry: -entry[1].element_size()):  # keeps all aligned
        begin, data = len(data), data + x.numpy().tobytes()
        header[key] = {"dtype": names[x.dtype], "shape": list(x.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main() -> None:
    o = torch.optim
    in_torch = {
        "sgd/plain": lambda p: o.SGD(p, lr=0.1),
        "sgd/decay": lambda p: o.SGD(p, lr=0.1, weight_decay=0.05),
        "sgd/momentum": lambda p: o.SGD(p, lr=0.1, momentum=0.9),
        "sgd/dampening": lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
        "sgd/nesterov": lambda p: o.SGD(p, lr=0.1, momentum=0.8, weight_decay=0.02, nesterov=True),
        "sgd/maximize": lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.05, maximize=True),
        "sgd/late": lambda p: o.SGD(p, lr=0.1, momentum=0.9, dampening=0.5),
        "adam/default": lambda p: o.Adam(p),
        "adam/betas": lambda p: o.Adam(p, lr=0.05, betas=(0.7, 0.95), eps=1e-3),
        "adam/decay": lambda p: o.Adam(p, lr=0.02, weight_decay=0.1),
        "adam/amsgrad": lambda p: o.Adam(p, lr=0.02, betas=(0.9, 0.8), amsgrad=True),
        "adam/maximize": lambda p: o.Adam(p, lr=0.02, weight_decay=0.1, maximize=True),
        "adam/late": lambda p: o.Adam(p, lr=0.02),
        "adamw/default": lambda p: o.AdamW(p),
        "adamw/decay": lambda p: o.AdamW(p, lr=0.05, eps=1e-4, weight_decay=0.2),
        "adamw/amsgrad": lambda p: o.AdamW(p, lr=0.05, betas=(0.9, 0.8), weight_decay=0.2, amsgrad=True),
        "adamw/maximize": lambda p: o.AdamW(p, lr=0.05, weight_decay=0.2, maximize=True),
        "adamw/groups": lambda p: o.AdamW([{"params": p[:1], "lr": 0.05, "weight_decay": 0.2},
                                           {"params": p[1:], "lr": 0.01, "weight_decay": 0}]),
        # foreach: without it, torch 1.13 multiplies one product of momenta by the last momentum twice
        "nadam/default": lambda p: o.NAdam(p, foreach=True),
        "nadam/decay": lambda p: o.NAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1, foreach=True),
        "nadam/momentum": lambda p: o.NAdam(p, lr=0.02, momentum_decay=0.7, foreach=True),
        "nadam/late": lambda p: o.NAdam(p, lr=0.02, foreach=True),
        "radam/default": lambda p: o.RAdam(p),
        "radam/decay": lambda p: o.RAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        "radam/never": lambda p: o.RAdam(p, lr=0.02, betas=(0.9, 0.5)),
        "radam/late": lambda p: o.RAdam(p, lr=0.02),
        "rmsprop/default": lambda p: o.RMSprop(p),
        "rmsprop/decay": lambda p: o.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-3, weight_decay=0.1),
        "rmsprop/momentum": lambda p: o.RMSprop(p, lr=0.02, alpha=0.8, momentum=0.7),
        "rmsprop/centered": lambda p: o.RMSprop(p, lr=0.02, centered=True),
        "rmsprop/all": lambda p: o.RMSprop(p, lr=0.02, alpha=0.9, momentum=0.5, centered=True, weight_decay=0.1,
                                           maximize=True),
        "rmsprop/late": lambda p: o.RMSprop(p, lr=0.02, momentum=0.5),
        "adagrad/default": lambda p: o.Adagrad(p),
        "adagrad/decay": lambda p: o.Adagrad(p, lr=0.1, lr_decay=0.05, weight_decay=0.1),
        "adagrad/initial": lambda p: o.Adagrad(p, lr=0.1, initial_accumulator_value=0.5, eps=1e-4),
        "adagrad/maximize": lambda p: o.Adagrad(p, lr=0.1, maximize=True),
        "adadelta/default": lambda p: o.Adadelta(p),
        "adadelta/decay": lambda p: o.Adadelta(p, lr=0.5, rho=0.7, eps=1e-3, weight_decay=0.1),
        "adadelta/maximize": lambda p: o.Adadelta(p, lr=2, maximize=True),
    }
    # Written with torch 2.15.
    in_torch |= {
        "nadam/decoupled": lambda p: o.NAdam(p, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
        "radam/decoupled": lambda p: o.RAdam(p, lr=0.02, weight_decay=0.1, decoupled_weight_decay=True),
        "adamax/default": lambda p: o.Adamax(p),
        "adamax/decay": lambda p: o.Adamax(p, lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
        "adamax/late": lambda p: o.Adamax(p, lr=0.05, maximize=True),
        "rprop/default": lambda p: o.Rprop(p),
        "rprop/limits": lambda p: o.Rprop(p, lr=0.1, etas=(0.3, 1.5), step_sizes=(0.05, 0.2)),
        "rprop/late": lambda p: o.Rprop(p, lr=0.05, maximize=True),
        "asgd/default": lambda p: o.ASGD(p),
        "asgd/decay": lambda p: o.ASGD(p, lr=0.1, lambd=0.01, alpha=0.5, t0=4, weight_decay=0.1),
        "asgd/late": lambda p: o.ASGD(p, lr=0.1, lambd=0.05, maximize=True),
        "adafactor/default": lambda p: o.Adafactor(p),
        "adafactor/decay": lambda p: o.Adafactor(p, lr=0.5, beta2_decay=-0.5, eps=(0.05, 0.1), d=1.2, weight_decay=0.1),
        "adafactor/late": lambda p: o.Adafactor(p, lr=0.1, eps=(None, 0.3), maximize=True),
    }
    plainly = {
        "lion/default": Lion(),
        "lion/decay": Lion(lr=0.01, beta1=0.8, beta2=0.95, weight_decay=0.3),
        "lion/maximize": Lion(lr=0.01, maximize=True),
        "lamb/default": Lamb(),
        "lamb/decay": Lamb(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
        "lamb/norms": Lamb(lr=0.05, norms=(1.5, 2)),
        "lamb/trust": Lamb(lr=0.05, weight_decay=0.1, trusts=(0.3, 0.6), maximize=True),
        "lamb/late": Lamb(lr=0.05),
        "lars/default": Lars(),
        "lars/decay": Lars(lr=2, weight_decay=0.1, coefficient=0.02),
        "lars/plain": Lars(momentum=0, coefficient=0.05),
        "lars/nesterov": Lars(weight_decay=0.1, coefficient=0.1, trusts=(0.03, 0.1), nesterov=True, maximize=True),
        "lars/late": Lars(coefficient=0.02),
        "schedule_free_adamw/default": ScheduleFreeAdamW(),
        "schedule_free_adamw/decay": ScheduleFreeAdamW(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.1),
        "schedule_free_adamw/warmup": ScheduleFreeAdamW(lr=0.05, warmup=8),
        "schedule_free_adamw/late": ScheduleFreeAdamW(lr=0.05, weight_decay=0.1, warmup=3, maximize=True),
        "muon/default": Muon(),
        "muon/decay": Muon(lr=0.05, momentum=0.8, weight_decay=0.1),
        "muon/plain": Muon(momentum=0.8, nesterov=False, maximize=True),
        "muon/match": Muon(lr=0.05, match_adam=True),
    }
    halfway = {}
    solutions = {name: solve_in_torch(name, make, halfway) for name, make in in_torch.items()}
    solutions |= {name: solve_plainly(name, optimizer) for name, optimizer in plainly.items()}
    with open(FOLDER / "optim_reference.inc", "w") as file:
        print("// Written by make_optim_reference.py: problem, values of all parameters.", file=file)
        for name, params in solutions.items():
            numbers = ", ".join(f"{x:.16g}" for p in params for x in p.flatten())
            print(f'{{"{name}", {{{numbers}}}}},', file=file)
    kept = ("sgd/momentum", "adam/amsgrad", "adamw/groups", "rmsprop/all", "adagrad/decay", "adadelta/decay",
            "nadam/decay", "radam/decay", "adafactor/default", "adafactor/decay")
    write_safetensors(FOLDER / "torch_optim_state.safetensors",
                      {key: x for key, x in halfway.items() if key.rsplit("/", 1)[0] in kept})


if __name__ == "__main__":
    main()
