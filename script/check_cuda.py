#!/usr/bin/env python3
"""Checks the machine code that nvcc generated for the kernels, which needs no GPU: for each architecture every kernel is there, none spills
registers or keeps arrays in local memory, the loops of products on tensor cores are as short as LIMITS says, and a program
that links them starts where there is no driver.

Without cuobjdump and nvdisasm (script/bootstrap --cuda-tools installs both) only products are looked at, as PTX. A build with
-Dwerror=true refuses to spill.

usage: check_cuda.py BUILD_DIR    a build with -Dcuda=enabled; exits 77 where that or the tools are missing"""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import sass
from sass import ROOT, demangled, objects_of, run

SKIPPED = 77
# A stack frame is allowed where the mathematics needs it: CUDA's sine, cosine and tangent reduce large arguments with an
# array (below zero, lgamma and its derivatives are reflected by them). Bytes per thread at most.
STACKS = [(re.compile(r"<(Forward|Backward)<(Cos|Sin|Tan|Lgamma|Digamma), |generate<Normal<"), 40)]
Counts = dict[str, int]


@dataclass
class Limits:
    """A family of kernels on tensor cores. Figures are those of a turn of the main loop on its fast path (script/sass.py)."""
    family: str
    kernels: str  # a pattern of their names
    per_mma: float = float("inf")  # instructions for each HMMA or HGMMA, at most
    per_load: float = 0  # HMMA for each LDSM, at least
    moves: int = 1000  # between registers, at most
    inner: int = 0  # loops within the loop, at most
    registers: int = 255  # of a thread, at most
    groups: int = 0  # HGMMA between a WARPGROUP.ARRIVE and the one WARPGROUP.DEPBAR that follows
    archs: str = "sm_80|sm_90a"  # where that holds; on others, figures are only printed
    shares_boxes: bool = False  # with other blocks of a cluster, and waits for no memory in its loop


# The first family that a kernel belongs to counts. Every family must have a kernel.
LIMITS = [
    Limits("f16, bf16 by wmma: 64 x 64 a warp", r"gemm_tensor<(BFloat16|Half), \w+, \w+, [01], \(Tier\)1>", 4, 4, 10, 0),
    Limits("f16, bf16 by wmma: 32 x 32 a warp", r"gemm_tensor<(BFloat16|Half), \w+, \w+, 2, \(Tier\)1>", 9, 2, 10, 0),
    Limits("f16, bf16: 64 x 64 a warp", r"gemm_tensor<(BFloat16|Half), \w+, \w+, [01]\b", 3.5, 4, 9, 0),
    Limits("f16, bf16: 32 x 32 a warp", r"gemm_tensor<(BFloat16|Half), \w+, \w+, 2\b", 8, 2, 8, 0),
    # (With a loop within, of which one turn of two counts.)
    Limits("TF32: 64 x 64 a warp", r"gemm_tensor<float, \w+, \w+, [01]\b", 9.5, 0, 12, 1),
    Limits("TF32: 32 x 32 a warp", r"gemm_tensor<float, \w+, \w+, 2\b", 22, 0, 12, 1),
    Limits("images: 64 x 64 a warp", r"conv_images<(BFloat16|Half), [01]>", 3.5, 4, 8, 0),
    Limits("images: 32 x 32 a warp", r"conv_images<(BFloat16|Half), 2>", 8.5, 2, 8, 0),
    Limits("weights of images: 64 x 64 a warp", r"conv_images_weight<(BFloat16|Half), [01]>", 5, 4, 16, 0),
    Limits("weights of images: 32 x 32 a warp", r"conv_images_weight<(BFloat16|Half), 2>", 11, 2, 12, 0),
    Limits("images in TF32: 64 x 64 a warp", r"conv_images<float, [01]>", 9.5, 0, 12, 1),
    Limits("images in TF32: 32 x 32 a warp", r"conv_images<float, 2>", 22, 0, 12, 1),
    Limits("weights of images in TF32: 64 x 64 a warp", r"conv_images_weight<float, [01]>", 13.5, 0, 24, 1),
    Limits("weights of images in TF32: 32 x 32 a warp", r"conv_images_weight<float, 2>", 30, 0, 16, 1),
    Limits("attention, 64 to 128 wide", r"flash_forward<\w+, (64|80|96|128), false>", 6.5, 2.5, 30, 0),
    Limits("attention, 32 wide", r"flash_forward<\w+, 32, false>", 11, 4, 50, 0),
    Limits("attention with a float mask, 64 to 128 wide", r"flash_forward<\w+, (64|80|96|128), true>", 8, 2.5, 50, 0),
    Limits("attention with a float mask, 32 wide", r"flash_forward<\w+, 32, true>", 13.5, 4, 50, 0),
    Limits("attention backward, 64 to 128 wide", r"flash_backward<\w+, (64|80|96|128), ", 9, 1.8, 26, 1),
    Limits("attention backward, 32 wide", r"flash_backward<\w+, 32, ", 11.5, 3.9, 26, 1),
    Limits("groups of warps in clusters", r"gemm_groups<.*, 2>", 25, 0, 10, 1, 168, 4, "sm_90a", True),
    Limits("groups of warps", r"gemm_groups<", 25, 0, 10, 1, 168, 4, "sm_90a"),
]


def kernels_of(part: Path, arch: str) -> dict[str, Counts]:
    """The resources of each kernel of one object file on one architecture: REG, STACK, SHARED, LOCAL."""
    used = {}
    name = ""
    for line in run("cuobjdump", "-arch", arch, "--dump-resource-usage", part).splitlines():
        if found := re.match(r"\s*Function (\S+):", line):
            name = found[1]
        elif name and "REG:" in line:
            used[name] = {key: int(value) for key, value in re.findall(r"(\w+(?:\[\d\])?):(\d+)", line)}
            name = ""
    return used


def family_of(name: str) -> Limits | None:
    return next((limits for limits in LIMITS if re.search(limits.kernels, name)), None)


def ptx_opcodes(nvcc: str) -> dict[str, Counts]:
    """Counts, by product, of the instructions that become HMMA, LDSM and LDGSTS."""
    text = run(nvcc, "-ptx", "-arch=compute_80", "-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{ROOT}",
               ROOT / "kernels" / "cuda" / "gemm" / "gemm.cu", "-o", "-")
    parts = re.split(r"\.entry (\w+)", text)
    opcode = {"HMMA": r"\bmma\.sync\.", "LDSM": r"\bldmatrix\.", "LDGSTS": r"\bcp\.async\.c"}
    return {name: {what: len(re.findall(pattern, body)) for what, pattern in opcode.items()}
            for name, body in zip(parts[1::2], parts[2::2])}


def wrong_stacks(arch: str, used: dict[str, Counts]) -> list[str]:
    wrong = []
    for name, resources in zip(demangled(list(used)), used.values()):
        allowed = max((most for pattern, most in STACKS if pattern.search(name)), default=0)
        if (stack := resources.get("STACK", 0) + resources.get("LOCAL", 0)) > allowed:
            wrong.append(f"{arch}: {name}: {stack} bytes of stack (spilled registers or a local array)")
    return wrong


def wrong_ptx(counts: dict[str, Counts]) -> list[str]:
    wrong = []
    products = {name: count for name, count in counts.items() if "gemm_tensor" in name}
    if not products:
        wrong.append("PTX: no product on tensor cores")
    for what, count in zip(demangled(list(products)), products.values()):
        if count["HMMA"] == 0:
            wrong.append(f"PTX: {what}: no tensor-core instruction")
        # For floats, ldmatrix can only load lines along k.
        if "<float," not in what and count["LDSM"] * 4 < count["HMMA"]:
            wrong.append(f"PTX: {what}: {count} - fragments do not come by ldmatrix")
        if count["LDGSTS"] == 0:
            wrong.append(f"PTX: {what}: no asynchronous copy")
    return wrong


def wrong_loop(limits: Limits, body: list[sass.Instruction], registers: int) -> tuple[list[str], sass.Loop | None]:
    """The faults of a kernel on tensor cores, and its loop."""
    wrong = []
    if any(i.name.split(".")[0] in ("LD", "ST") for i in body):
        wrong.append("shared memory is reached by generic addresses")
    if not any(i.is_one_of(sass.COPIES) for i in body):
        wrong.append("no asynchronous copy")
    if (loop := sass.fast_path(body)) is None:
        return wrong + ["no loop with tensor-core instructions"], None
    mma, loads, moves = loop.count("HMMA|HGMMA"), loop.count("LDSM"), loop.count(r"MOV|IMAD\.MOV")
    if len(loop.path) > limits.per_mma * mma:
        wrong.append(f"{len(loop.path) / mma:.1f} instructions for each of {mma} tensor-core instructions, more than "
                     f"{limits.per_mma}")
    if loads * limits.per_load > mma or limits.per_load and not loads:
        wrong.append(f"{loads} LDSM load for {mma} HMMA: fewer than {limits.per_load} each")
    if moves > limits.moves:
        wrong.append(f"{moves} moves between registers in the loop, more than {limits.moves}")
    if loop.inner > limits.inner:
        wrong.append(f"{loop.inner} loops within the loop, more than {limits.inner}")
    if registers > limits.registers:
        wrong.append(f"{registers} registers, more than {limits.registers}")
    if limits.groups:
        # (ptxas serializes wgmma whose registers it cannot leave alone, and notes that as C7510: each then waits.)
        fences, waits = loop.count(r"WARPGROUP\.ARRIVE"), loop.count(r"WARPGROUP\.DEPBAR")
        if not mma == limits.groups * fences == limits.groups * waits:
            wrong.append(f"{mma} HGMMA, {fences} WARPGROUP.ARRIVE and {waits} WARPGROUP.DEPBAR, not {limits.groups} to 1 to 1")
        if not any(i.is_one_of(("UTMALDG",)) for i in body):
            wrong.append("no box of a tensor map is loaded")
    if limits.shares_boxes:
        if not sass.has(body, "UTMALDG", "MULTICAST"):
            wrong.append("no box is loaded for several blocks")
        # (An arrival at another block's barrier that releases memory to the cluster has two of them.)
        if loop.count("MEMBAR"):
            wrong.append("the loop waits for memory (MEMBAR)")
    return wrong, loop


def span(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def wrong_products(arch: str, parts: dict[Path, dict[str, Counts]], pool: ThreadPoolExecutor) -> list[str]:
    """Checks the kernels of all families, and prints their figures."""
    wrong = []
    names = {name: pretty for used in parts.values() for name, pretty in zip(used, demangled(list(used)))}
    there = [part for part, used in parts.items() if any(family_of(names[name]) for name in used)]
    figures: dict[str, list[tuple[sass.Loop, int]]] = {}
    for part, text in zip(there, pool.map(lambda part: run("cuobjdump", "-arch", arch, "-sass", part), there)):
        for name, body in sass.kernels(text):
            if limits := family_of(names.get(name, "")):
                registers = parts[part][name]["REG"]
                found, loop = wrong_loop(limits, body, registers)
                if re.fullmatch(limits.archs, arch):
                    wrong += [f"{arch}: {names[name]}: {what}" for what in found]
                if loop:
                    figures.setdefault(limits.family, []).append((loop, registers))
    for limits in LIMITS:
        if loops := figures.get(limits.family):
            mma = [loop.count("HMMA|HGMMA") for loop, _ in loops]
            length = [len(loop.path) / n for (loop, _), n in zip(loops, mma)]
            print(f"{arch}: {limits.family}: {len(loops)} kernels, {span(length, 1)} instructions per MMA of {span(mma, 0)}, "
                  f"{span([loop.count('LDSM') for loop, _ in loops], 0)} LDSM, "
                  f"{span([loop.count(r'MOV|IMAD[.]MOV') for loop, _ in loops], 0)} moves, "
                  f"{span([registers for _, registers in loops], 0)} registers")
        elif re.fullmatch(limits.archs, arch):
            wrong.append(f"{arch}: {limits.family}: no such kernel")
    return wrong


def check(build: Path) -> list[str]:
    parts = objects_of(build)
    archs = sorted(set(re.findall(r"\.(sm_\w+)\.cubin", run("cuobjdump", "--list-elf", *parts[:1]))))
    wrong = [] if archs else [f"{parts[0].name}: no code"]
    listed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for arch in archs:
            by_part = dict(zip(parts, pool.map(lambda part: kernels_of(part, arch), parts)))
            used = {name: resources for kernels in by_part.values() for name, resources in kernels.items()}
            listed.append(used.keys())
            wrong += wrong_stacks(arch, used)
            print(f"{arch}: {len(used)} kernels, at most {max(r['REG'] for r in used.values())} registers")
            wrong += wrong_products(arch, by_part, pool)
    if any(kernels != listed[0] for kernels in listed):
        wrong.append("the architectures have different kernels")
    return wrong


def wrong_start(build: Path) -> list[str]:
    wrong = []
    demo = build / "examples" / "mixtape-demo"
    if demo.exists():
        linked = run("ldd", demo)
        if "libcuda" in linked:
            wrong.append(f"{demo.name} links what only a machine with CUDA has:\n{linked}")
        said = subprocess.run([demo, "--device", "cuda"], capture_output=True, text=True,
                              env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        if said.returncode != 2 or "no CUDA device" not in said.stderr:
            wrong.append(f"without a device, --device cuda says: {said.stdout}{said.stderr} ({said.returncode})")
    return wrong


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    build = Path(arguments[0])
    if not objects_of(build):
        print(f"{build} is no build with -Dcuda=enabled: the CUDA compiler's work is not checked")
        return SKIPPED
    has_tools = sass.has_tools()
    wrong, lacking = [], "" if has_tools else "cuobjdump and nvdisasm are not here (script/bootstrap --cuda-tools)"
    if has_tools:
        wrong = check(build)
    elif nvcc := sass.tool("nvcc"):
        products = ptx_opcodes(nvcc)
        wrong = wrong_ptx(products)
        lacking += f": of the machine code nothing is checked, {len(products)} products only as PTX"
    wrong += wrong_start(build)
    print("\n".join([*wrong, lacking] if lacking else wrong))
    return 1 if wrong else SKIPPED if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
