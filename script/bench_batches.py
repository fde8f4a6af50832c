#!/usr/bin/env python3
"""Trains the demo's network with one, two and four times its batch in each precision, and prints the cost of a larger batch:
accuracy, time and memory. Rates grow with the root of the batch. Figures are medians of the turns.

usage: bench_batches.py DEMO [--turns N] [--device NAME]    DEMO: mixtape-demo, as built"""
import argparse
import os
import re
import statistics
import subprocess
import tempfile

BATCHES, MODES = (64, 128, 256), ("fp32", "fp16", "bf16")
ROW = re.compile(r"^(?:fp32|fp16|bf16) +\S+ +\S+ +(\S+) % +(\S+) +\S+ +(\S+) ", re.MULTILINE)


def train(demo: str, device: str, batch: int, mode: str) -> list[float]:
    """Validation accuracy in per cent, ms of an image, and the peak of a step in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run([demo, "--modes", mode, "--batch-size", str(batch), "--lr", str(3e-3 * (batch / BATCHES[0])**0.5),
                               "--train-size", "16000", "--epochs", "3", "--device", device, "--out", os.path.join(folder, "run")],
                              check=True, capture_output=True, text=True).stdout
    accuracy, step, peak = map(float, ROW.search(said).groups())
    return [accuracy, step / batch, peak]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    cases = [(batch, mode) for batch in BATCHES for mode in MODES]
    found = {case: [] for case in cases}
    for _ in range(options.turns):
        for batch, mode in cases:
            found[batch, mode].append(train(options.demo, options.device, batch, mode))
    print("| batch | precision | accuracy | ms of an image | peak of a step |\n|---|---|---|---|---|")
    for (batch, mode), runs in found.items():
        accuracy, ms, peak = (statistics.median(of) for of in zip(*runs))
        print(f"| {batch} | {mode} | {accuracy:.2f} % | {ms:.3f} | {peak:.1f} MiB |")


if __name__ == "__main__":
    main()
