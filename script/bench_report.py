#!/usr/bin/env python3
"""Reports a run of script/bench: the figures as JSON, as a table, and as a page with plots.

usage: bench_report.py FOLDER OUT           from FOLDER/*.json, as the programs wrote them: OUT.json, .md, .html and .svg
       bench_report.py FOLDER               prints the table alone
       bench_report.py --compare OLD NEW    figures that got slower or disappeared between two OUT.json; exits with 1 if any did"""
import json
import math
import re
import statistics
import sys
from pathlib import Path

from bench_plots import page, picture
from gpu_report import table

UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1, "s": 1e3}
LINE = re.compile(r"(?P<name>.+)/threads:(?P<threads>\d+)/(?P<dtype>f\d+|bf16)(?:/(?P<peer>\w+))?$")
SLOWER = 1.05  # less is never news
ORDER = "train", "gemm", "ops", "conv", "attention", "optim", "overhead", "memory"  # then others


def figure(line: dict) -> dict:
    """One line of Google Benchmark's output."""
    name = re.sub(r"/(iterations:1|manual_time|real_time)", "", line["run_name"])
    where = LINE.match(name)
    found = where.groupdict() if where else {"name": name}
    found = {k: int(v) if k == "threads" else v for k, v in found.items() if v is not None}
    if "error_occurred" in line:
        return {**found, "error": line["error_message"]}
    if "peak_mb" in line:  # its time is that of ten steps in a new process
        return {**found, "peak_mb": line["peak_mb"]}
    ms = line["real_time"] * UNITS[line["time_unit"]]
    if "per_op" in line:
        ms = line["per_op"] * 1e3
    found["ms"] = ms
    if line.get("label"):
        found["form"] = line["label"]
    for key in "low_ms", "high_ms", "rounds", "flops", "bytes", "of_peak", "of_copy":
        if key in line:
            found[key] = line[key]
    for key in line:
        if key.startswith("of_") and f"{key}_low" in line:  # of_f32, or of_PEER
            found[key] = [line[f"{key}_low"], line[key], line[f"{key}_high"]]
    return found


def peers_of(figures: list[dict]) -> list[str]:
    """The peers in order, libtorch, which has more than products, first."""
    names = {k[3:] for f in figures for k, v in f.items() if k.startswith("of_") and isinstance(v, list)} - {"f32"}
    return sorted(names, key=lambda name: (name != "libtorch", name))


def read(folder: Path) -> dict:
    results: dict = {"machine": {}, "cost": {}, "figures": []}
    place = {name: n for n, name in enumerate(ORDER)}
    for path in sorted(folder.glob("*.json"), key=lambda path: (place.get(path.stem, len(place)), path.stem)):
        content = json.loads(path.read_text())
        if path.name == "about.json":  # device, date, command, cost: of script/bench
            results.update(content)
            continue
        context = content["context"]
        if "libtorch" in context:
            results["libtorch"] = context["libtorch"]
        for k, v in context.items():  # each program measured it; the best is what the machine can do
            if "/threads:" in k:
                results["machine"][k] = max(float(v), results["machine"].get(k, 0))
        deviations = {b["run_name"]: b["real_time"] for b in content["benchmarks"]
                      if b.get("aggregate_name") == "stddev"}
        for line in content["benchmarks"]:
            if line.get("aggregate_name", "median") != "median":
                continue
            found = figure(line)
            if line["run_name"] in deviations and "per_op" not in line:  # quartiles of normal runs
                half = 0.67 * deviations[line["run_name"]] * UNITS[line["time_unit"]]
                found |= {"low_ms": found["ms"] - half, "high_ms": found["ms"] + half, "rounds": line["repetitions"]}
            results["figures"].append(found)
    return results


def short(value: object) -> object:
    """A number with as many digits as are significant."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def dump(results: dict) -> str:
    """JSON with a line for each figure, so that a difference of two files can be read."""
    head = json.dumps(short({k: v for k, v in results.items() if k != "figures"}), indent=1)
    figures = ",\n".join(json.dumps(short(f)) for f in results["figures"])
    return f'{head[:-2]},\n "figures": [\n{figures}\n]}}\n'


# --- the table ---
def time_text(ms: float) -> str:
    for unit, scale in ("s", 1e3), ("ms", 1), ("µs", 1e-3):
        if ms >= scale:
            return f"{ms / scale:.3g} {unit}" if ms / scale < 1000 else f"{ms / scale:.0f} {unit}"
    return f"{ms * 1e6:.0f} ns"


def roof_text(f: dict) -> str:
    if "of_peak" in f:
        return f"{100 * f['of_peak']:.0f} % of peak"
    # No bytes moved: an op that passes its gradient through has no bandwidth.
    return f"{100 * f['of_copy']:.0f} % of copy" if f.get("of_copy", 100) < 10 else ""


def rate_text(f: dict) -> str:
    if f["name"].startswith("train/"):
        return f"{1e3 / f['ms']:.3g} steps/s" if f["ms"] > 10 else f"{1e3 / f['ms']:.0f} steps/s"
    if "flops" in f:
        return f"{f['flops'] / 1e9:.0f} GFLOP/s"
    return f"{f['bytes'] / 1e9:.0f} GB/s" if f.get("of_copy", 100) < 10 else ""


def against(f: dict, peer: str, forms: dict) -> str:
    low, ratio, high = f.get(f"of_{peer}", [0, 0, 0])
    form = forms.get(key({**f, "peer": peer}))
    return f"{ratio:.2f} ({low:.2f} to {high:.2f})" + (f", {form}" if form else "") if ratio else ""


def row(f: dict, peers: list[str], forms: dict) -> list[str]:
    if "error" in f:
        return [f["name"], str(f.get("threads", "")), f.get("dtype", ""), f"ERROR: {f['error']}", *[""] * (4 + len(peers))]
    spread = f"{100 * (f['high_ms'] - f['low_ms']) / f['ms']:.1f} %" if "low_ms" in f else ""
    faster = f"{1 / f['of_f32'][1]:.2f}x" if "of_f32" in f else ""
    return [f["name"], str(f.get("threads", "")), f.get("dtype", ""), time_text(f["ms"]), spread, rate_text(f), faster,
            roof_text(f), *(against(f, peer, forms) for peer in peers)]


def workloads(figures: list[dict], forms: dict) -> list[str]:
    """A table for each program that has peers of its own. `forms`: in which a peer was fastest, by key()."""
    lines, groups = [], {}
    for f in figures:
        groups.setdefault(f["name"].split("/")[0], []).append(f)
    for peers in sorted({tuple(peers_of(g)) for g in groups.values()}, key=lambda p: (p[:1] != ("libtorch",), p)):
        mine = [f for g in groups.values() if tuple(peers_of(g)) == peers for f in g]
        lines += ["", *table(["workload", "threads", "", "time", "spread", "rate", "over f32", "of the roof",
                              *(f"of {peer}" for peer in peers)], [row(f, peers, forms) for f in mine])]
    return lines


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def means(figures: list[dict]) -> list[str]:
    """The geometric mean over all products, by threads and dtype."""
    rows, peers = [], peers_of(figures)
    for threads, dtype in sorted({(f["threads"], f["dtype"]) for f in figures}, key=lambda k: (k[0], k[1] != "f32", k[1])):
        mine = [f for f in figures if (f["threads"], f["dtype"]) == (threads, dtype)]
        mean = lambda values: geometric_mean(list(values)) if values else 0  # noqa: E731
        ratios = {peer: [f[f"of_{peer}"][1] for f in mine if f"of_{peer}" in f] for peer in ["f32", *peers]}
        rows.append([str(threads), dtype, str(len(mine)), f"{100 * mean([f['of_peak'] for f in mine]):.1f} %",
                     f"{1 / mean(ratios['f32']):.2f}x" if ratios["f32"] else "",
                     *(f"{mean(ratios[peer]):.2f}" if ratios[peer] else "" for peer in peers)])
    return ["", "Geometric means of the products:", "",
            *table(["threads", "", "shapes", "of peak", "over f32", *(f"of {peer}" for peer in peers)], rows)]


def markdown(results: dict) -> str:
    threads = sorted({int(k.split(":")[1]) for k in results["machine"]})
    lines = [f"# {results.get('device', 'This machine')}, {results.get('date', '')}", "",
             f"Made by `{results.get('command', 'script/bench')}`. Times are medians of rounds in which precisions and "
             "peers take turns, `spread` is what lies between the quartiles, `of PEER` our time over its, by rounds "
             "(quartiles in brackets): below 1 is faster. A peer is in the fastest of its forms; without a name, the plain "
             "one. The peak is what multiply-adds in registers reach in the same rounds, a copy one that touches as many "
             "bytes." +
             (f" libtorch is {results['libtorch']}." if "libtorch" in results else ""), ""]
    rates = {"f32 multiply-adds": ("fma_gflops", "GFLOP/s"), "bf16 products summed in f32": ("bf16_gflops", "GFLOP/s"),
             "copy of memory, read and written": ("copy_gbytes", "GB/s")}
    if threads:  # programs without peers measure no peaks
        lines += table(["this machine at best", *(f"{n} threads" if n > 1 else "1 thread" for n in threads)],
                       [[what, *(f"{results['machine'][f'{key}/threads:{n}']:.0f} {unit}" for n in threads)]
                        for what, (key, unit) in rates.items()
                        if f"{key}/threads:{threads[0]}" in results["machine"]])
    ours = [f for f in results["figures"] if "peer" not in f and "peak_mb" not in f]
    if ours:
        lines += workloads(ours, {key(f): f["form"] for f in results["figures"] if "form" in f})
    if products := [f for f in ours if f["name"].startswith("gemm/") and "of_peak" in f]:
        lines += means(products)
    if memory := [f for f in results["figures"] if "peak_mb" in f]:
        lines += ["", *table(["most resident memory of a program", ""],
                             [[f["name"], f"{f['peak_mb']:.0f} MB"] for f in memory])]
    if results["cost"]:
        lines += ["", *table(["building", ""], [[k, str(v)] for k, v in results["cost"].items()])]
    return "\n".join(lines) + "\n"


# --- two runs ---
def key(f: dict) -> tuple:
    return f["name"], f.get("threads", 0), f.get("dtype", ""), f.get("peer", "")


def label(k: tuple) -> str:
    return " ".join(str(part) for part in k if part)


def interval(f: dict) -> tuple[float, float]:
    """The interval in which the median lies: McGill's notch. Those of two equal medians rarely fail to overlap."""
    half = 1.57 * (f["high_ms"] - f["low_ms"]) / math.sqrt(f["rounds"]) if "low_ms" in f else 0.1 * f["ms"]
    return f["ms"] - half, f["ms"] + half


def threshold(before: dict, figures: list[dict]) -> float:
    """The ratio that counts as a change. A peer does not change, so the spread of its times is the noise between two
    runs; up to three deviations of it (by the median, so that outliers do not count) are no change."""
    moved = [abs(math.log(f["ms"] / before[key(f)]["ms"])) for f in figures if "peer" in f and key(f) in before]
    return max(SLOWER, math.exp(3 * 1.4826 * statistics.median(moved))) if len(moved) >= 5 else SLOWER


def compare(old: dict, new: dict) -> int:
    before = {key(f): f for f in old["figures"] if "ms" in f}
    least = threshold(before, [f for f in new["figures"] if "ms" in f])
    slower, faster, same = [], [], 0
    for f in new["figures"]:
        was = before.get(key(f))
        if was is None or "ms" not in f or "peer" in f:
            continue
        ratio = f["ms"] / was["ms"]
        line = [label(key(f)), time_text(was["ms"]), time_text(f["ms"]), f"{ratio:.2f}"]
        if ratio > least and interval(f)[0] > interval(was)[1]:
            slower.append((ratio, line))
        elif ratio < 1 / least and interval(f)[1] < interval(was)[0]:
            faster.append((ratio, line))
        else:
            same += 1
    if old.get("device") != new.get("device"):
        print(f"two devices: {old.get('device')} and {new.get('device')}")
    for k in sorted(old["machine"].keys() & new["machine"].keys()):
        if abs(new["machine"][k] / old["machine"][k] - 1) > 0.1:
            print(f"the machine was not the same: {k} {old['machine'][k]:.0f} and {new['machine'][k]:.0f}")
    for what, found in ("slower", sorted(slower, reverse=True)), ("faster", sorted(faster)):
        if found:
            print("\n".join(table([what, "old", "new", "new / old"], [line for _, line in found])))
    measured = {key(f) for f in new["figures"] if "error" not in f}
    programs = {f["name"].split("/")[0] for f in new["figures"]}  # which may be a part of them
    lost = [label(key(f)) for f in old["figures"] if not {"error", "peer"} & f.keys() and key(f) not in measured
            and f["name"].split("/")[0] in programs]
    for name in lost:
        print(f"not in the new run, or only as an error: {name}")
    print(f"{len(slower)} slower, {len(faster)} faster, {same} within the noise ({100 * least - 100:.0f} %)")
    return int(bool(slower or lost))


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--compare"] and len(arguments) == 3:
        try:
            old, new = (json.loads(Path(path).read_text()) for path in arguments[1:])
            return compare(old, new)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"bench: not results of script/bench: {error}", file=sys.stderr)
            return 2
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    results = read(Path(arguments[0]))
    text = markdown(results)
    print(text, end="")
    if len(arguments) == 2:
        out = arguments[1]
        Path(f"{out}.json").write_text(dump(results))
        Path(f"{out}.md").write_text(text)
        Path(f"{out}.html").write_text(page(results, text))
        Path(f"{out}.svg").write_text(picture(results))
    return int(any("error" in f for f in results["figures"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
