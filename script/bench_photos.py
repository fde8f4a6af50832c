#!/usr/bin/env python3
"""Draws a folder of JPEG photographs of 60 sizes, trains a network on it in each precision, by train_images alone, and prints
the accuracies. All three must agree within half a point, or the exit status is 1.

usage: bench_photos.py TRAIN_IMAGES [--model NAME] [--epochs N] [--seed N] [--device NAME]
TRAIN_IMAGES: the program, as built. Needs Pillow."""
from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    from PIL import Image, ImageDraw
except ImportError:
    Image = None

DTYPES = ("float32", "float16", "bfloat16")
PARTS = {"train": 400, "val": 200}  # images of each class
MOST_APART = 0.005
Point = tuple[float, float]


def corners(n: int, at: Point, radius: float, angle: float, inner: float = 1) -> list[Point]:
    """A polygon's; with `inner` below 1, a star's, of 2 n."""
    count = n if inner == 1 else 2 * n
    turns = [(angle + i * 2 * math.pi / count, radius if inner == 1 or i % 2 == 0 else radius * inner) for i in range(count)]
    return [(at[0] + r * math.cos(t), at[1] + r * math.sin(t)) for t, r in turns]


def cells(at: Point, radius: float, columns: int, rows: int, odd: bool) -> list[tuple[float, float, float, float]]:
    """The even or odd cells of a square's grid."""
    w, h, left, top = 2 * radius / columns, 2 * radius / rows, at[0] - radius, at[1] - radius
    return [(left + i * w, top + j * h, left + (i + 1) * w, top + (j + 1) * h)
            for i in range(columns) for j in range(rows) if (i + j) % 2 == odd]


def draw(kind: str, pen: ImageDraw.ImageDraw, at: Point, radius: float, angle: float, color: tuple[int, ...]) -> None:
    wide = max(3, round(radius * 0.35))
    box = (at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
    grids = {"bars": (1, 5), "columns": (5, 1), "checks": (4, 4)}
    polygons = {"triangle": (3, 1), "square": (4, 1), "star": (5, 0.4)}
    if kind in grids:
        for cell in cells(at, radius, *grids[kind], odd=kind == "checks"):
            pen.rectangle(cell, fill=color)
    elif kind in polygons:
        n, inner = polygons[kind]
        pen.polygon(corners(n, at, radius, angle, inner), fill=color)
    elif kind == "disc":
        pen.ellipse(box, fill=color)
    elif kind == "ring":
        pen.ellipse(box, outline=color, width=wide)
    elif kind == "frame":
        pen.rectangle(box, outline=color, width=wide)
    else:  # a cross
        a, b, c, d = corners(4, at, radius, angle)
        pen.line((a, c), fill=color, width=wide)
        pen.line((b, d), fill=color, width=wide)


KINDS = ("bars", "checks", "columns", "cross", "disc", "frame", "ring", "square", "star", "triangle")


def photograph(kind: str, size: tuple[int, int], rng: random.Random) -> Image.Image:
    """A light shape on a dark ground, or the reverse, of random place and size, with noise."""
    dark, light = [tuple(rng.randrange(low, high) for _ in range(3)) for low, high in ((0, 110), (150, 256))]
    ground, color = rng.sample((dark, light), 2)
    image = Image.new("RGB", size, ground)
    at = tuple(n / 2 + rng.uniform(-0.08, 0.08) * n for n in size)
    draw(kind, ImageDraw.Draw(image), at, min(size) * rng.uniform(0.28, 0.42), rng.uniform(0, 2 * math.pi), color)
    pixels = image.load()
    for _ in range(size[0] * size[1] // 12):
        x, y = rng.randrange(size[0]), rng.randrange(size[1])
        pixels[x, y] = tuple(value + rng.randrange(-60, 61) for value in pixels[x, y])
    return image


def draw_folder(folder: pathlib.Path, rng: random.Random) -> None:
    sizes = set()
    while len(sizes) < 60:
        sizes.add((rng.randrange(60, 161), rng.randrange(60, 161)))
    for part, count in PARTS.items():
        for kind in KINDS:
            (folder / part / kind).mkdir(parents=True)
            for i in range(count):
                photograph(kind, rng.choice(sorted(sizes)), rng).save(folder / part / kind / f"{i:04}.jpg", quality=90)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if Image is None:
        parser.error("needs Pillow (script/bench: MIXTAPE_PYTHON names the interpreter)")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        draw_folder(folder / "photos", random.Random(options.seed))
        print("| precision | loss | accuracy |\n|---|---|---|", flush=True)
        accuracies = []
        for dtype in DTYPES:
            subprocess.run([options.program, "--model", options.model, "--dataset", f"folder:{folder / 'photos'}", "--size", "32",
                            "--dtype", dtype, "--epochs", str(options.epochs), "--seed", str(options.seed), "--workers", "2",
                            "--device", options.device, "--out", str(folder / dtype)], check=True, stdout=subprocess.DEVNULL)
            last = json.loads((folder / dtype / "metrics.jsonl").read_text().splitlines()[-1])
            accuracies.append(last["accuracy"])
            print(f"| {dtype} | {last['valid_loss']:.4f} | {100 * last['accuracy']:.2f} % |", flush=True)
    return int(max(accuracies) - min(accuracies) > MOST_APART)


if __name__ == "__main__":
    sys.exit(main())
