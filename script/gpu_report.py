#!/usr/bin/env python3
"""Formats the results of a run of script/gpu.

usage: gpu_report.py FILE.json    prints it in Markdown"""
import json
import sys
from pathlib import Path


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of Markdown."""
    return ["|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in (header, ["---"] * len(header), *rows)]


def row(figure: dict, copy: float) -> list[str]:
    if figure["wrong"] or "ours" not in figure:
        return [figure["name"], f"WRONG: {'; '.join(figure['wrong'])}", "", "", "", ""]
    ours = figure["ours"]
    spread = (ours["high_ms"] - ours["low_ms"]) / ours["median_ms"]
    rate = {"bytes": lambda: f"{figure['per_second'] / 1e9:.0f} GB/s",
            "operations": lambda: f"{figure['per_second'] / 1e12:.1f} TFLOP/s", "step": lambda: ""}[figure["kind"]]()
    against = ""
    if figure["kind"] == "bytes" and copy:
        against = f"{100 * figure['per_second'] / copy:.0f} % of a copy"
    elif "of_peer" in figure:
        against = f"{figure['of_peer']:.2f}x"
    return [figure["name"], f"{ours['median_ms']:.4f}", f"{100 * spread:.1f} %", rate, against, f"{figure['error']:.1e}"]


def beside_torch(results: dict) -> list[str]:
    """Ours and PyTorch's, where both were timed."""
    torch = results.get("torch", {"not_run": "not tried"})
    ours = {f["name"]: (f["ours"]["median_ms"], f["per_second"]) for b in results["benchmarks"] for f in b["figures"] if "ours" in f}
    if gpt2 := results.get("gpt2"):
        ours["gpt2"] = gpt2["median_ms"], gpt2["per_second"]
    rows = [[f"gpt2, {gpt2['batch']} x 1024 tokens", f"{gpt2['per_second'] / 1e3:.1f}k tokens/s", "", ""]] if gpt2 else []
    for figure in torch.get("figures", []):
        name = "gpt2" if figure["name"].startswith("gpt2/") else figure["name"]
        theirs = figure["per_second"]
        show = f"{theirs / 1e3:.1f}k tokens/s" if figure["unit"] == "tokens/s" else f"{theirs / 1e12:.1f} TFLOP/s"
        mine = ours.get(name)
        rate = "" if mine is None else f"{mine[1] / 1e3:.1f}k tokens/s" if name == "gpt2" else f"{mine[1] / 1e12:.1f} TFLOP/s"
        rows.append([figure["name"], rate, show, f"{mine[1] / theirs:.2f}x" if mine else ""])
    about = f"PyTorch {torch['version']}" if "version" in torch else f"PyTorch: {torch['not_run']}"
    lines = [f"{about}." + "".join(f" Left out: {what}." for what in torch.get("left_out", [])), ""]
    return lines + (table(["case", "ours", "PyTorch's", "against"], rows) if rows else [])


def markdown(results: dict) -> str:
    lines = []
    for benchmark in results["benchmarks"][:1]:
        device = benchmark["device"]
        lines += [f"# {device['name']}, {benchmark['date'][:10]}", "",
                  f"Compute capability {device['capability']}, {device['multiprocessors']} multiprocessors, "
                  f"{device['memory_bytes'] / 2**30:.0f} GiB. Made by `script/gpu`; medians, with the spread between "
                  "the quartiles; ratios above 1 are faster than the peer.", ""]
    lines += ["| checks | |", "|---|---|"]
    for stage, t in results["tests"].items():
        lines.append(f"| {stage} | {t['passed']} passed, {len(t['failed'])} failed, {t['skipped']} skipped, "
                     f"{t['unfinished']} unfinished |")
        lines += [f"| failed | {name} |" for name in t["failed"]]
    lines += [f"| {tool} | {said} |" for tool, said in results["sanitizer"].items()]
    lines += [f"| wrong | {wrong} |" for wrong in results.get("wrong", [])]
    for benchmark in results["benchmarks"]:
        lines += ["", f"`{benchmark['command']}`" + (f", beside {benchmark['peer']}" if benchmark["peer"] else ""), "",
                  *table(["case", "ms", "spread", "rate", "against", "error"],
                         [row(figure, benchmark["copy_bytes_per_second"]) for figure in benchmark["figures"]])]
    lines += ["", *beside_torch(results)]
    if printed := results["demo"].get("table"):
        lines += ["", "```text", printed, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] == ["--help"] else 2)
    print(markdown(json.loads(Path(sys.argv[1]).read_text())), end="")
