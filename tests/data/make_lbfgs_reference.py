"""Writes lbfgs_reference.inc: what torch.optim.LBFGS does to Rosenbrock's function, in f64. Not part of the build. Written
with torch 2.15:
    python3 tests/data/make_lbfgs_reference.py > tests/data/lbfgs_reference.inc"""
import torch

CASES = {
    "plain": dict(lr=0.1, max_iter=5),
    "short": dict(lr=0.3, max_iter=4, history_size=2),
    "wolfe": dict(max_iter=5, line_search_fn="strong_wolfe"),
    "wolfe/long": dict(lr=0.5, max_iter=8, history_size=3, line_search_fn="strong_wolfe"),
    "wolfe/few": dict(max_iter=10, max_eval=4, line_search_fn="strong_wolfe"),
}

print("// Printed by make_lbfgs_reference.py: case, evaluations, values of x and y after each step.")
for name, options in CASES.items():
    x = torch.tensor([-1.2, 0.7, -0.5], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([x, y], **options)

    def closure():
        optimizer.zero_grad()
        loss = (100 * (y - x**2)**2 + (1 - x)**2).sum()
        loss.backward()
        return loss

    rows = []
    for _ in range(6):
        optimizer.step(closure)
        rows += [*x.tolist(), *y.tolist()]
    evaluations = optimizer.state[x]["func_evals"]
    print(f'{{"{name}", {evaluations}, {{{", ".join(f"{v:.16g}" for v in rows)}}}}},')
