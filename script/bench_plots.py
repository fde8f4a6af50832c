"""Draws the plots of bench_report.py: speed-ups as bars and a roofline. A page has all of them, a picture those of one
thread. Colours are variables of the style sheet, so that one drawing serves light and dark."""
import math
from html import escape
from typing import NamedTuple

WIDTH = 940
COLOURS = """
:root { --page: #ffffff; --text: #1f2328; --faint: #59636e; --grid: #d8dee4; --f32: #2a6fbb; --f16: #b35900;
  --bf16: #2e7d4f; }
@media (prefers-color-scheme: dark) {
  :root { --page: #0d1117; --text: #e6edf3; --faint: #9198a1; --grid: #30363d; --f32: #6cb0ff; --f16: #f0a050;
    --bf16: #5fc78b; } }
text { fill: var(--text); font: 13px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .faint { fill: var(--faint); } .one { stroke: var(--text); stroke-dasharray: 4 3; }
"""
LAYOUT = """
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
svg { display: block; width: 100%; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 13px; margin: 1.5rem 0; display: block; overflow-x: auto; }
td, th { border-bottom: 1px solid var(--grid); padding: .2rem .7rem; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
"""


class Drawing(NamedTuple):
    title: str
    height: int
    parts: list[str]

    def svg(self) -> str:
        return f'<svg viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(self.title)}">' + "".join(self.parts) + "</svg>"


def text(x: float, y: float, what: str, anchor: str = "start", style: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(what)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str = "grid", stroke: str = "") -> str:
    paint = f' style="stroke: {stroke}; stroke-width: 2"' if stroke else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"{paint}/>'


def bars(title: str, values: list[tuple[str, str, float, float, float]]) -> Drawing:
    """(label, dtype, low, value, high) as horizontal bars from 0, with a line at 1."""
    left, right, top, each = 190, 880, 34, 21
    most = max(high for *_, high in values) * 1.06
    to_x = lambda v: left + (right - left) * v / most  # noqa: E731
    bottom = top + each * len(values)
    step = 0.5 if most < 5 else 1 if most < 10 else 5
    parts = [text(0, 16, title)]
    for i in range(int(most / step) + 1):
        parts += [line(to_x(i * step), top, to_x(i * step), bottom), text(to_x(i * step), bottom + 16, f"{i * step:g}", "middle", "faint")]
    for n, (label, dtype, low, value, high) in enumerate(values):
        y = top + each * n
        parts += [text(left - 8, y + 14, label, "end"),
                  f'<rect x="{left}" y="{y + 3}" width="{to_x(value) - left:.1f}" height="{each - 6}" style="fill: var(--{dtype})"/>',
                  line(to_x(low), y + each / 2, to_x(high), y + each / 2, "", "var(--text)"),
                  text(to_x(high) + 6, y + 14, f"{value:.2f}")]
    parts.append(line(to_x(1), top, to_x(1), bottom, "one"))
    return Drawing(title, bottom + 24, parts)


def roofline(machine: dict, points: list[dict], threads: int) -> Drawing:
    """Operations per second over operations per byte; both logarithmic."""
    roof = {"f32": machine[f"fma_gflops/threads:{threads}"] * 1e9}
    if f"bf16_gflops/threads:{threads}" in machine:
        roof["bf16"] = machine[f"bf16_gflops/threads:{threads}"] * 1e9
    copy = machine[f"copy_gbytes/threads:{threads}"] * 1e9
    left, right, top, bottom = 70, 800, 34, 400
    x_of = lambda f: f["flops"] / f["bytes"]  # noqa: E731
    x0 = math.floor(math.log10(min(map(x_of, points))))
    x1 = math.ceil(math.log10(max([*map(x_of, points), 2 * max(roof.values()) / copy])))
    y0 = math.floor(math.log10(min(f["flops"] for f in points)))
    y1 = math.ceil(math.log10(max(roof.values())))
    to_x = lambda v: left + (right - left) * (math.log10(v) - x0) / (x1 - x0)  # noqa: E731
    to_y = lambda v: bottom - (bottom - top) * (math.log10(v) - y0) / (y1 - y0)  # noqa: E731
    title = f"Roofline, {threads} thread{'s' * (threads > 1)}: GFLOP/s over operations per byte"
    parts = [text(0, 16, title)]
    for e in range(x0, x1 + 1):
        parts += [line(to_x(10**e), top, to_x(10**e), bottom), text(to_x(10**e), bottom + 18, f"{10.0**e:g}", "middle", "faint")]
    for e in range(y0, y1 + 1):
        parts += [line(left, to_y(10**e), right, to_y(10**e)), text(left - 8, to_y(10**e) + 4, f"{10.0 ** (e - 9):g}", "end", "faint")]
    start = max(10**x0, 10**y0 / copy)
    for dtype, peak in roof.items():
        parts += [line(to_x(start), to_y(start * copy), to_x(peak / copy), to_y(peak), "", "var(--faint)"),
                  line(to_x(peak / copy), to_y(peak), right, to_y(peak), "", f"var(--{dtype})"),
                  text(right + 8, to_y(peak) + 4, f"{dtype} {peak / 1e9:.0f}")]
    for f in points:
        about = f"{f['name']} {f['dtype']}: {f['flops'] / 1e9:.0f} GFLOP/s"
        parts.append(f'<circle cx="{to_x(x_of(f)):.1f}" cy="{to_y(f["flops"]):.1f}" r="4.5" '
                     f'style="fill: var(--{f["dtype"]})"><title>{escape(about)}</title></circle>')
    parts += [f'<circle cx="{left + 20 + 70 * n}" cy="{bottom + 36}" r="4.5" style="fill: var(--{d})"/>'
              + text(left + 30 + 70 * n, bottom + 40, d) for n, d in enumerate(("f32", "f16", "bf16"))]
    return Drawing(title, bottom + 48, parts)


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


def drawings(results: dict, threads: list[int]) -> list[Drawing]:
    ours = [f for f in results["figures"] if "peer" not in f and "ms" in f and f.get("threads") in threads]
    found = []
    for title, ratio in ("Training steps: how much faster than libtorch in the same precision", "of_libtorch"), \
                        ("Training steps: how much faster than our f32", "of_f32"):
        # A ratio of times below 1 is a speed-up above it.
        values = [(f"{f['name'][6:]} {f['dtype']}, {f['threads']}T", f["dtype"], *(1 / r for r in reversed(f[ratio])))
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
    found = drawings(results, thread_numbers(results)[:1])
    margin, y, parts = 16, 16, []
    for drawing in found:
        parts.append(f'<g transform="translate({margin} {y})">{"".join(drawing.parts)}</g>')
        y += drawing.height + margin
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 2 * margin} {y}" role="img" aria-label="Benchmarks">'
            f'<style>{COLOURS}</style><rect width="100%" height="100%" style="fill: var(--page)"/>' + "\n".join(parts) + "</svg>\n")


def page(results: dict, markdown: str) -> str:
    plots = [drawing.svg() for drawing in drawings(results, thread_numbers(results))]
    heading, _, rest = html_of(markdown).partition("\n")
    return (f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<meta name="color-scheme" content="light dark"><title>Benchmarks</title><style>{COLOURS}{LAYOUT}</style>\n'
            f"{heading}\n" + "\n".join(plots) + f"\n{rest}\n</html>\n")
