"""Describes the plots of bench_report.py: speed-ups as bars and a roofline; bench/draw draws them. A page has all of them,
a picture those of one thread."""
import json
import os
import subprocess
import sys
from html import escape
from pathlib import Path

WIDTH = 940
COLOURS = {"f32": 0, "f16": 1, "bf16": 2}  # of io/svg.cpp
DRAW = os.environ.get("MIXTAPE_DRAW", str(Path(__file__).resolve().parent.parent / "build/bench/draw/draw"))
LAYOUT = """
body { background: #fff; color: #222; font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
svg { display: block; max-width: 100%; height: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; margin: 1.5rem 0; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid #ddd; padding: .2rem .7rem; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
@media (prefers-color-scheme: dark) { body { background: #1a1b1e; color: #ddd; } td, th { border-color: #3a3a3a; } }
"""


def svg(drawings: list[dict]) -> str:
    try:
        return subprocess.run([DRAW], input=json.dumps(drawings), text=True, stdout=subprocess.PIPE, check=True).stdout
    except OSError as error:
        sys.exit(f"bench: no program that draws pictures, which ninja -C build bench/draw/draw makes: {error}")


def bars(title: str, values: list[list]) -> dict:
    """A chart of [label, colour, low, value, high]."""
    return {"title": title, "reference": 1, "width": WIDTH, "bars": values}


def roofline(machine: dict, points: list[dict], threads: int) -> dict:
    """Operations per second over operations per byte; both logarithmic."""
    peak = {"f32": machine[f"fma_gflops/threads:{threads}"]}
    if f"bf16_gflops/threads:{threads}" in machine:
        peak["bf16"] = machine[f"bf16_gflops/threads:{threads}"]
    copy = machine[f"copy_gbytes/threads:{threads}"]
    intensity = [f["flops"] / f["bytes"] for f in points]
    left, right = min(intensity), max([*intensity, 2 * max(peak.values()) / copy])
    series = []
    for dtype, top in peak.items():
        start = min(left, top / copy)
        series.append({"name": f"roof of {dtype}, {top:.0f} GFLOP/s", "x": [start, top / copy, right], "y": [start * copy, top, top],
                       "dots": False, "color": COLOURS[dtype], "notes": []})
    for dtype, colour in COLOURS.items():
        own = [f for f in points if f["dtype"] == dtype]
        if own:
            series.append({"name": dtype, "x": [f["flops"] / f["bytes"] for f in own], "y": [f["flops"] / 1e9 for f in own], "dots": True,
                           "color": colour, "notes": [f"{f['name']} {dtype}: {f['flops'] / 1e9:.0f} GFLOP/s" for f in own]})
    return {"title": f"Roofline, {threads} thread{'s' * (threads > 1)}", "x_label": "operations per byte", "y_label": "GFLOP/s",
            "log": True, "width": WIDTH, "series": series}


def html_of(markdown: str) -> str:
    """HTML from the subset of Markdown that the report writes: a title, paragraphs, tables."""
    parts, rows = [], []
    for text_line in [*markdown.splitlines(), ""]:
        if text_line.startswith("|"):
            cells = [escape(c.strip()) for c in text_line.strip("|").split("|")]
            if set(cells) != {"---"}:
                tag = "td" if rows else "th"
                rows.append("<tr>" + "".join(f"<{tag}>{c}</{tag}>" for c in cells) + "</tr>")
            continue
        if rows:
            parts.append("<table>" + "".join(rows) + "</table>")
            rows = []
        if text_line.startswith("# "):
            parts.append(f"<h1>{escape(text_line[2:])}</h1>")
        elif text_line:
            parts.append(f"<p>{escape(text_line)}</p>")
    return "\n".join(parts)


def thread_numbers(results: dict) -> list[int]:
    return sorted({int(k.split(":")[1]) for k in results["machine"]})


def drawings(results: dict, threads: list[int]) -> list[dict]:
    ours = [f for f in results["figures"] if "peer" not in f and "ms" in f and f.get("threads") in threads]
    found = []
    for title, ratio in ("Training steps: how much faster than libtorch in the same precision", "of_libtorch"), \
                        ("Training steps: how much faster than our f32", "of_f32"):
        # A ratio of times below 1 is a speed-up above it.
        values = [[f"{f['name'][6:]} {f['dtype']}, {f['threads']}T", COLOURS[f["dtype"]], *(1 / r for r in reversed(f[ratio]))]
                  for f in ours if f["name"].startswith("train/") and ratio in f]
        if values:
            found.append(bars(title, values))
    for n in threads:
        points = [f for f in ours if f["threads"] == n and "flops" in f and "bytes" in f]
        if points:
            found.append(roofline(results["machine"], points, n))
    return found


def picture(results: dict) -> str:
    """A standalone picture with the results of one thread."""
    return svg(drawings(results, thread_numbers(results)[:1]))


def page(results: dict, markdown: str) -> str:
    plots = [svg([drawing]) for drawing in drawings(results, thread_numbers(results))]
    heading, _, rest = html_of(markdown).partition("\n")
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<meta name="color-scheme" content="light dark"><title>Benchmarks</title><style>{LAYOUT}</style>\n'
            f"{heading}\n" + "\n".join(plots) + f"\n{rest}\n</html>\n")
