#!/usr/bin/env python3
"""Predicts the tokens per second of training GPT-2 124M on an H100, without one: nothing here is measured.

What a step does is counted: examples/gpt2 gives its work to the emulated device, which records instead of running it
(emulator/simt/record.h): every launch, and the tensors it was given. What a kernel executes is counted in the machine code that nvcc
made of it (script/sass.py). What the device can do are the constants below. A kernel takes the time of what it needs most, over the
part of that which such kernels reach.

usage: predict.py EMULATED_BUILD CUDA_BUILD    -Dcuda=emulated with the examples, and -Dcuda=enabled"""
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import sass

# --- an H100 SXM: [d] by NVIDIA's documents, [r] as recalled from published measurements ---
PROCESSORS = 132  # [d]
CLOCK = 1.7e9  # under load, of 1.98e9 at most [r]
ISSUED = 4  # instructions of warps that a multiprocessor starts in a cycle [d]
WGMMA = 2048  # multiply-adds of 16-bit numbers in a cycle of a multiprocessor: 989 TFLOP/s at 1.83e9 [d]
MMA_SYNC = 0.65  # the part of them that mma.sync reaches [r]
SPECIAL = 16  # exponentials and reciprocals in a cycle of a multiprocessor [d]
L2 = 28.5  # bytes in a cycle into a multiprocessor, 27 to 30 [r]
DRAM = 3.0e12  # bytes a second of a copy, of 3.35e12 [r]
GAP = 1.5e-6  # seconds between two kernels, in which the device empties and fills [r]
# The part of its bound that a kernel reaches, which is a judgement. Warps that all wait at one barrier copy and multiply in
# turns; where a warp of its own copies, they overlap; the last blocks of a pass over memory leave some of it idle.
REACHED = {"attention": 0.65, "products": 0.9, "passes": 0.85}

WARP = 32
HMMA = 16 * 8 * 16  # multiply-adds
MULTIPLYING = 8  # warps of gemm_groups
TILE_M, DEPTH = 128, 64  # of gemm_groups for 16-bit numbers
# Tensors that are given once, and both read and written.
UPDATED = {"accumulate": slice(1, 2), "scatter_reduce": slice(2, 3), "unscale": slice(None)}
PARTS = {"products": r"gemm$", "attention": r"attention", "classifier": r"cross_entropy",
         "optimizer": r"optimizer_step|norm_parts|norm_of_parts|unscale|clip|gather|scatter_reduce|bounds",
         "norms, casts, residual": r""}


@dataclass
class View:
    address: int
    bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def holds(self, address: int) -> bool:
        return self.address <= address < self.address + max(self.bytes, 1)


@dataclass
class Launch:
    kernel: str  # its name and template arguments, by short()
    blocks: int
    given: list[int]  # addresses


@dataclass
class Call:
    """A kernel of kernels/kernels.h, and what it launched."""
    name: str
    views: list[View] = field(default_factory=list)
    scratch: list[View] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)


def sizes(text: str) -> tuple[int, ...]:
    return () if text == "-" else tuple(int(n) for n in text.split("x"))


def parse(lines: Iterable[str], names: dict[int, str]) -> list[Call]:
    """The calls of the second step: from the norm of one step's gradients to that of the next."""
    calls: list[Call] = []
    norms = 0
    for line in lines:
        what, *words = line.split()
        norms += what == "call" and words[0] == "norm_parts"
        if norms != 2:
            continue
        if what == "call":
            calls.append(Call(words[0]))
        elif what == "view":
            calls[-1].views.append(View(int(words[0], 16), int(words[1]), words[2], sizes(words[3])))
        elif what == "scratch":
            calls[-1].scratch.append(View(int(words[0], 16), int(words[1])))
        else:
            calls[-1].launches.append(Launch(names.get(int(words[0], 16), words[1]), math.prod(sizes(words[2])),
                                             [int(word, 16) for word in words[4:]]))
    if norms < 3:
        raise SystemExit(f"predict.py: the record has {norms} steps, not 3")
    return calls


def short(name: str) -> str:
    """A kernel's name and template arguments, which g++ and nvcc write alike but for casts."""
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            name = name[:i]
            break
    return re.sub(r"^void |\((int|bool)\)|\s", "", name).replace("true", "1").replace("false", "0")


class Code:
    """The machine code of kernels."""

    def __init__(self, kernels: Iterable[tuple[str, list[sass.Instruction]]]):
        listed = list(kernels)
        self.bodies = dict(zip((short(name) for name in sass.demangled([name for name, _ in listed])), (body for _, body in listed)))

    def body(self, kernel: str) -> list[sass.Instruction]:
        if kernel not in self.bodies:
            raise SystemExit(f"predict.py: the build with nvcc has no {kernel}")
        return self.bodies[kernel]

    def loop(self, kernel: str) -> sass.Loop:
        """The main loop of a kernel on tensor cores."""
        loop = sass.fast_path(self.body(kernel))
        if loop is None:
            raise SystemExit(f"predict.py: {kernel} has no loop with tensor-core instructions")
        return loop

    def gelu(self) -> float:
        """The instructions of gelu for an element of each lane, beyond those of relu."""
        by_relu, by_gelu = (self.per_byte(f"map_elements<Forward<{f},float>,1,float,float>") for f in ("Relu", "GeluTanh"))
        return 2 * 4 * (by_gelu - by_relu)

    def per_byte(self, kernel: str) -> float:
        """The instructions of a warp for each byte that a lane loads or stores."""
        return sass.instructions_per_byte(self.body(kernel))


@dataclass
class Cost:
    """The seconds that a launch needs of each part of the device."""
    kind: str  # in REACHED
    needs: dict[str, float]

    @property
    def binds(self) -> str:
        return max(self.needs, key=lambda need: self.needs[need])

    @property
    def seconds(self) -> float:
        return self.needs[self.binds] / REACHED["passes" if self.binds == "DRAM" else self.kind] + GAP


def cycles(count: float) -> float:
    """In seconds."""
    return count / CLOCK


def moved(call: Call, launch: Launch, least_size: int = 0) -> float:
    """Bytes: a tensor moves once if the launch has its address, and twice if it is updated. An element counts as
    `least_size` or more."""
    def bytes_of(v: View) -> float:
        return v.bytes * max(1, least_size / {"f64": 8, "i64": 8, "bf16": 2, "f16": 2, "bool": 1, "u8": 1}.get(v.dtype, 4))

    given = [v for v in call.views + call.scratch if any(v.holds(address) for address in launch.given)]
    total = sum(bytes_of(v) for v in given)
    if call.name == "optimizer_step":  # a parameter and two moments are updated, a gradient is read, a 16-bit copy written
        return total + sum(bytes_of(v) for v in given if v.dtype == "f32") * 3 / 4
    updated = [id(v) for v in call.views[UPDATED.get(call.name, slice(0))]]
    return total + sum(bytes_of(v) for v in given if id(v) in updated)


def of_pass(call: Call, launch: Launch, code: Code) -> Cost:
    """A pass over memory."""
    # (Kernels of float also take 16-bit numbers: their longest loads are of floats.)
    wide = launch.kernel.startswith("map_elements") and not re.search("BFloat16|Half", launch.kernel)
    turns = moved(call, launch, 4 if wide else 0) / WARP
    return Cost("passes", {"DRAM": moved(call, launch) / DRAM,
                           "issue": cycles(turns * code.per_byte(launch.kernel) / (PROCESSORS * ISSUED))})


def of_product(call: Call, launch: Launch, code: Code) -> Cost:
    """gemm_groups: a multiprocessor computes tile after tile, each in slices along k, and then stores it. In a cluster each fetches
    a part of the slice of b that all of them need."""
    a, b = call.views[:2]
    m, k = a.shape[-2:]
    n, batch = b.shape[-1], math.prod(a.shape[:-2])
    tile_n, cluster = (int(n) for n in launch.kernel.rstrip(">").split(",")[-2:])
    parts = max([v.bytes // (4 * m * n * batch) for v in call.scratch if v.bytes >= 8 * m * n * batch], default=1)
    tiles = math.ceil(math.ceil(m / (TILE_M * cluster)) * math.ceil(n / tile_n) * batch * parts / (PROCESSORS // cluster))
    slices = tiles * math.ceil(k / parts / DEPTH)
    body, loop = code.body(launch.kernel), code.loop(launch.kernel)
    # Four products of a consumer make a slice; a box of 64 columns is stored by a turn of another loop.
    turn = len(loop.path) * 4 / loop.count("HGMMA")
    stored = sass.turn_with(body, ("STSM",)) or sass.turn_with(body, ("STG",))
    c = call.views[-1]
    if any((v.dtype, v.shape) == (c.dtype, c.shape) and v.address != c.address for v in call.views[2:-1]):  # before an activation
        stored += 32 * code.gelu()
    ends = tiles * MULTIPLYING * tile_n / 64 * stored / ISSUED
    fetched = (TILE_M + tile_n / cluster) * DEPTH * 2
    needs = {"tensor cores": slices * TILE_M * tile_n * DEPTH / WGMMA, "issue": slices * MULTIPLYING * turn / ISSUED,
             "L2": slices * fetched / L2}
    return Cost("products", {need: cycles(count + ends) for need, count in needs.items()} | {"DRAM": moved(call, launch) / DRAM})


def of_attention(call: Call, launch: Launch, code: Code) -> Cost:
    """flash_forward and flash_backward, causal: a block of queries meets the keys before it, or of keys the queries behind it."""
    *_, positions, features = call.views[0].shape
    heads = math.prod(call.views[0].shape[:-2])
    met = (positions + positions * heads / launch.blocks) / 2
    products = 2 if "forward" in launch.kernel else 4 if launch.kernel.endswith(",1>") else 3
    mma = heads * positions * met * features * products / HMMA
    loop = code.loop(launch.kernel)
    per_mma, special = len(loop.path) / loop.count("HMMA"), loop.count("MUFU") / loop.count("HMMA")
    return Cost("attention", {"tensor cores": cycles(mma * HMMA / (WGMMA * MMA_SYNC * PROCESSORS)),
                              "issue": cycles(mma * per_mma / (PROCESSORS * ISSUED)),
                              "exponentials": cycles(mma * special * WARP / (PROCESSORS * SPECIAL)),
                              "DRAM": moved(call, launch) / DRAM})


def cost(call: Call, launch: Launch, code: Code) -> Cost:
    if launch.kernel.startswith("gemm_groups"):
        return of_product(call, launch, code)
    if launch.kernel.startswith("flash"):
        return of_attention(call, launch, code)
    return of_pass(call, launch, code)


def report(calls: list[Call], code: Code, tokens: int) -> list[str]:
    """Lines of Markdown."""
    found: dict[str, dict[str, list[Cost]]] = {part: {} for part in PARTS}
    for call in calls:
        part = next(part for part, pattern in PARTS.items() if re.match(pattern, call.name))
        for launch in call.launches:
            found[part].setdefault(launch.kernel.split("<")[0], []).append(cost(call, launch, code))
    lines = ["| part | launches | ms, predicted | bound by |", "|---|--:|--:|---|"]
    total = 0.0
    for part, kernels in found.items():
        costs = [c for of_kernel in kernels.values() for c in of_kernel]
        shares: dict[str, float] = {}
        for c in costs:
            shares[c.binds] = shares.get(c.binds, 0) + c.seconds
        seconds = sum(shares.values())
        total += seconds
        binds = ", ".join(f"{need} {100 * share / seconds:.0f} %" for need, share in sorted(shares.items(), key=lambda s: -s[1])
                          if share >= 0.05 * seconds)
        lines.append(f"| {part} | {len(costs)} | {1e3 * seconds:.1f} | {binds} |")
    launches = sum(len(call.launches) for call in calls)
    lines += [f"| step | {launches} | {1e3 * total:.1f} | |", "",
              f"A prediction, not a measurement: {tokens / total / 1e3:.0f}k tokens a second."]
    return lines


def record(program: Path, options: list[str]) -> list[Call]:
    """A step of the program, on the emulated device that stands for a Hopper."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "record"
        # (Kernels that do not run write nothing, so memory must hold zeros.)
        environment = {name: value for name, value in os.environ.items() if name != "MALLOC_PERTURB_"}
        done = subprocess.run([program, "--device", "cuda:1", "--steps", "3", "--workers", "0", *options], capture_output=True, text=True,
                              env=environment | {"MIXTAPE_RECORD": str(file), "MIXTAPE_SIMT_PROCESSORS": str(PROCESSORS)})
        if done.returncode != 0 or not file.exists():
            raise SystemExit(f"predict.py: {program} recorded nothing: {done.stdout}{done.stderr}")
        symbols = [line.split() for line in sass.run("nm", "--defined-only", program).splitlines()]
        wanted = {int(line.split()[1], 16) for line in file.read_text().splitlines() if line.startswith("launch")}
        mangled = {int(at, 16): name for at, _, name in symbols if int(at, 16) in wanted}
        names = dict(zip(mangled, map(short, sass.demangled(list(mangled.values())))))
        return parse(file.read_text().splitlines(), names)


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    if not sass.has_tools():
        print("predict.py: no cuobjdump and nvdisasm (script/bootstrap --cuda-tools)", file=sys.stderr)
        return 1
    batch, context = 64, 1024
    calls = record(Path(arguments[0]) / "examples" / "gpt2", ["--batch-size", str(batch)])
    wanted = {launch.kernel for call in calls for launch in call.launches}
    code = Code(sass.of_build(Path(arguments[1]), "sm_90a", lambda name: short(name) in wanted or "GeluTanh" in name or "Relu" in name))
    print("\n".join(report(calls, code, batch * context)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
