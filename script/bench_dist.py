#!/usr/bin/env python3
"""Times training on two processes of one thread each, beside PyTorch's DistributedDataParallel on gloo where there is a
Python with torch, in turns; what chunks cost on one process; and sums by size, from which the time of larger numbers of
processes is projected.

usage: bench_dist.py PROGRAM [--torch PYTHON] [--turns N] [--out FILE]    PROGRAM: bench_dist, as built"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launchers import launcher

STEPS = 30
DTYPES = {"f32": "float32", "bf16": "bfloat16"}
PARAMETERS = 785 * 1024 + 2 * 1025 * 1024 + 1025 * 10
BUCKETS = 4
DDP = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, low, mb, steps, file = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + file, rank=rank, world_size=2)
sizes = [784, 1024, 1024, 1024, 10]
layers = []
for i in range(4):
    layers += [torch.nn.Linear(sizes[i], sizes[i + 1]), torch.nn.ReLU()]
net = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]), bucket_cap_mb=mb, gradient_as_bucket_view=True)
opt = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
x, y = torch.randn(128, 784), torch.randint(10, (128,))
times = []
for i in range(steps + 5):
    start = time.perf_counter()
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cpu", dtype=getattr(torch, low), enabled=low != "float32"):
        loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    opt.step()
    times.append(time.perf_counter() - start)
if rank == 0:
    print(json.dumps({"ms": statistics.median(times[5:]) * 1e3, "fastest": min(times[5:]) * 1e3}), flush=True)
dist.barrier()
os._exit(0)  # destroying gloo's group may end in std::terminate()
"""


def mpirun() -> list[str]:
    """The command that starts two processes."""
    for kind, more in ("openmpi", ["--bind-to", "none"]), ("mpich", []):
        if command := launcher(kind):
            return [*command, *more, "-n", "2"]
    raise SystemExit("bench_dist.py: no mpirun: script/bootstrap installs one")


def result(command: list[str], **environment: str) -> dict:
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MIXTAPE_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | allowed | environment)
    if run.returncode != 0:
        raise SystemExit(f"bench_dist.py: {' '.join(command)}: {run.stderr or run.stdout}")
    return json.loads(run.stdout.splitlines()[0])


def ddp(python: str, dtype: str, mb: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        (program := Path(folder) / "ddp.py").write_text(DDP)
        command = lambda rank: [python, program, str(rank), DTYPES[dtype], str(mb), str(STEPS), f"{folder}/meet"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [subprocess.Popen(command(r), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for r in (0, 1)]
        (out, err), _ = [r.communicate() for r in ranks]
        if any(r.returncode for r in ranks):
            raise SystemExit(f"bench_dist.py: PyTorch's peer failed: {err}")
        return json.loads(out)


def in_turns(cases: dict[str, object], turns: int) -> dict[str, float]:
    """The median of each case's medians, in milliseconds; the cases take turns."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns):
        for name, run in cases.items():
            found[name].append(run()["ms"])
            print(f"\r{turn + 1} of {turns}: {name:40}", end="", file=sys.stderr, flush=True)
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    return {name: statistics.median(values) for name, values in found.items()}


def fit(sums: dict[str, float]) -> tuple[float, float]:
    """a (s) and b (s/byte) of t = 2 a + b bytes, by least squares of relative errors: a sum takes two rounds."""
    points = [(float(n), us * 1e-6) for n, us in sums.items()]
    w = [1 / t**2 for _, t in points]
    s = sum(w)
    mx, my = sum(wi * n for wi, (n, _) in zip(w, points)) / s, sum(wi * t for wi, (_, t) in zip(w, points)) / s
    b = sum(wi * (n - mx) * (t - my) for wi, (n, t) in zip(w, points)) / sum(wi * (n - mx) ** 2 for wi, (n, _) in zip(w, points))
    return (my - b * mx) / 2, b


def projected(compute: float, ranks: int, a: float, b: float, in_turn: int) -> float:
    """Seconds of a step; `in_turn` messages of a round follow each other. Two thirds of the computation, backward, hide all but the
    last bucket."""
    def spent(bytes_: int, buckets: int) -> float:
        return 2 * (ranks - 1) / ranks * bytes_ * b + 2 * buckets * in_turn * a
    return compute + max(spent(4 * 1024 * 1024, 1), spent(4 * PARAMETERS, BUCKETS) - 2 / 3 * compute)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("program", help="bench_dist, as built")
    parser.add_argument("--torch", metavar="PYTHON", help="a Python that has torch; by default python3, if it has")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also writes the figures there, as JSON")
    options = parser.parse_args()
    python = options.torch or ("python3" if subprocess.run(["python3", "-c", "import torch"], capture_output=True).returncode == 0 else None)
    two, report = mpirun(), {}
    for dtype in DTYPES:
        step = lambda chunks=0, mb=4, dtype=dtype: [options.program, "step", dtype, str(chunks), str(mb), str(STEPS)]
        cases = {"without dist": lambda: result([options.program, "plain", dtype, str(STEPS)]),
                 "a world of one": lambda: result(step()),
                 "2 processes, no exchange": lambda: result(two + step(), MIXTAPE_ENGINE="none"),
                 "2 processes": lambda: result(two + step()),
                 "2 processes, 25 MiB buckets": lambda: result(two + step(mb=25))}
        if python:
            for mb in 1, 4, 25:
                cases[f"PyTorch DDP, {mb} MiB buckets"] = lambda mb=mb: ddp(python, dtype, mb)
        for chunks in 2, 4, 8:
            cases[f"{chunks} chunks of 128"] = lambda chunks=chunks: result(step(chunks))
        times = in_turns(cases, options.turns)
        report[dtype] = times
        print(f"{dtype}, MLP 784-1024-1024-1024-10, 128 examples a process or chunk, ms a step")
        for name, ms in times.items():
            each = f"   {ms / int(name.split()[0]) / times['a world of one']:.2f} of one chunk's time for each" if "chunks of" in name else ""
            print(f"  {name:30} {ms:8.2f}{each}")
        divided = [result([*two, options.program, "shards", dtype, "4", str(STEPS)]) for _ in range(options.turns)]
        for name, key in ("AdamW, 2 processes", "ms"), ("AdamW, 2 processes, shards", "divided"):
            times[name] = statistics.median(run[key] for run in divided)
            print(f"  {name:30} {times[name]:8.2f}")
        if python:
            best = min(ms for name, ms in times.items() if "DDP" in name)
            ours = min(ms for name, ms in times.items() if name.startswith("2 processes") and "no exchange" not in name)
            print(f"  of the better DDP's time: {ours / best:.2f}")
    sums = result([*two, options.program, "sums"])
    a, b = fit(sums)
    report["sums, us by bytes"], report["a, us"], report["b, ns a byte"] = sums, a * 1e6, b * 1e9
    print(f"sums over 2 processes: {2 * a * 1e6:.0f} us + {b * 1e9:.3f} ns a byte")
    print("projected from this, with a network of that speed (a prediction, not a measurement), ms a step, where the W - 1 messages of "
          "a round travel together, and where one follows the other:")
    for dtype in DTYPES:
        for ranks in 8, 64, 1024:
            steps = [1e3 * projected(report[dtype]["a world of one"] * 1e-3, ranks, a, b, in_turn) for in_turn in (1, ranks - 1)]
            report[dtype][f"projected for {ranks}, ms"] = steps
            print(f"  {dtype:5} {ranks:5} processes {steps[0]:8.2f} {steps[1]:8.2f}")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
