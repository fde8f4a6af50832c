"""Writes scaler_reference.inc: scales and growth trackers of torch.cuda.amp.GradScaler for given overflows. Not part
of the build:
    python3 tests/data/make_scaler_reference.py > tests/data/scaler_reference.inc
PyTorch has _amp_update_scale_ for CUDA alone, so what it documents is written out here: the product in double, rounded
to f32; growth only where that is finite."""
import math
import random

import numpy


def update(scale, tracker, found, growth, backoff, interval):
    if found:
        return numpy.float32(float(scale) * backoff), 0
    tracker += 1
    if tracker < interval:
        return scale, tracker
    with numpy.errstate(over="ignore"):
        grown = numpy.float32(float(scale) * growth)
    return (grown if math.isfinite(grown) else scale), 0


def run(name, found, init, growth=2.0, backoff=0.5, interval=2000):
    scale, tracker = numpy.float32(init), 0
    scales, trackers = [], []
    for bad in found:
        scale, tracker = update(scale, tracker, bad == "1", growth, backoff, interval)
        scales.append(repr(float(scale)))
        trackers.append(str(tracker))
    print(f'{{"{name}", "{found}", {init!r}, {growth}, {backoff}, {interval}, {{{", ".join(scales)}}}, '
          f'{{{", ".join(trackers)}}}}},')


def drawn(seed, n, share):
    pick = random.Random(seed)
    return "".join("1" if pick.random() < share else "0" for _ in range(n))


print("// Printed by make_scaler_reference.py: name, overflows, initial scale, growth, backoff, interval, scales, trackers.")
run("the vectors of the manual", "00100", 4.0, interval=2)
run("defaults", "1" * 5 + "0" * 7, 65536.0)
run("every step", drawn(1, 24, 0.4), 1024.0, interval=1)
run("often", drawn(2, 40, 0.2), 65536.0, interval=3)
run("odd factors", drawn(3, 40, 0.25), 1000.0, growth=1.7, backoff=0.3, interval=2)
run("at the end of f32", "0001000", 3e38, interval=1)
run("below one", "1" * 20 + "0" * 8, 16.0, interval=4)
