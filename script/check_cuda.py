#!/usr/bin/env python3
"""Checks the machine code that nvcc generated for the kernels, which needs no GPU: for each architecture every kernel is there, none spills
registers or keeps arrays in local memory, products on tensor cores use them, and a program that links them starts
where there is no driver.

Without cuobjdump and nvdisasm, which not every toolkit has, products are looked at as PTX, and nobody looks for arrays
in local memory. (A build with -Dwerror=true refuses to spill.)

usage: check_cuda.py BUILD_DIR    a build with -Dcuda=enabled; exits 77 where that is missing"""
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SKIPPED = 77
ROOT = Path(__file__).resolve().parent.parent
# A stack frame is allowed where the mathematics needs it: CUDA's sine, cosine and tangent reduce large arguments with an
# array. Bytes per thread at most.
STACKS = [(re.compile(r"<(Forward|Backward)<(Cos|Sin|Tan), |generate<Normal<"), 40)]
Counts = dict[str, int]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def demangled(names: list[str]) -> list[str]:
    filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    spaces = re.compile(r"mixtape::(kernels::(cuda::)?)?|\(anonymous namespace\)::")
    return [spaces.sub("", name) for name in filtered.stdout.splitlines()]


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


def opcodes(part: Path, arch: str) -> dict[str, Counts]:
    """The count of each opcode that the check of products needs, by kernel."""
    counts: dict[str, Counts] = {}
    current: Counts = {}
    for line in run("cuobjdump", "-arch", arch, "-sass", part).splitlines():
        if found := re.match(r"\s*Function : (\S+)", line):
            current = counts.setdefault(found[1], {})
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(HMMA|LDSM|LDGSTS|LD|ST)\b", line):
            current[found[1]] = current.get(found[1], 0) + 1
    return counts


def ptx_opcodes(nvcc: str) -> dict[str, Counts]:
    """The same from PTX: the instructions that become HMMA, LDSM and LDGSTS."""
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


def wrong_products(arch: str, counts: dict[str, Counts]) -> list[str]:
    wrong = []
    products = {name: count for name, count in counts.items() if "gemm_tensor" in name}
    if not products:
        wrong.append(f"{arch}: no product on tensor cores")
    for what, count in zip(demangled(list(products)), products.values()):
        if count.get("HMMA", 0) == 0:
            wrong.append(f"{arch}: {what}: no tensor-core instruction")
        # For floats, ldmatrix can only load lines along k.
        if "<float," not in what and count.get("LDSM", 0) * 4 < count.get("HMMA", 0):
            wrong.append(f"{arch}: {what}: {count} - fragments do not come by ldmatrix")
        if count.get("LD", 0) + count.get("ST", 0) > 0:
            wrong.append(f"{arch}: {what}: {count} - shared memory is reached by generic addresses")
        if count.get("LDGSTS", 0) == 0:
            wrong.append(f"{arch}: {what}: no asynchronous copy")
    return wrong


def objects_of(build: Path) -> list[Path]:
    return sorted((build / "kernels" / "libmixtape_cuda.a.p").glob("*.cu.o"))


def check(build: Path) -> list[str]:
    parts = objects_of(build)
    archs = sorted(set(re.findall(r"\.(sm_\w+)\.cubin", run("cuobjdump", "--list-elf", *parts[:1]))))
    wrong = [] if archs else [f"{parts[0].name}: no code"]
    listed = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        gemm = next(part for part in parts if part.name == "gemm.cu.o")
        products = {arch: pool.submit(opcodes, gemm, arch) for arch in archs}
        for arch in archs:
            used: dict[str, Counts] = {}
            for of_part in pool.map(lambda part: kernels_of(part, arch), parts):
                used |= of_part
            listed.append(used.keys())
            wrong += wrong_stacks(arch, used)
            print(f"{arch}: {len(used)} kernels, at most {max(r['REG'] for r in used.values())} registers")
        for arch in archs:
            wrong += wrong_products(arch, products[arch].result())
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
    nvcc = shutil.which("nvcc", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if shutil.which("cuobjdump") and shutil.which("nvdisasm"):
        wrong = check(build)
    elif nvcc:
        products = ptx_opcodes(nvcc)
        print(f"PTX: {len(products)} products; cuobjdump and nvdisasm are not here to say what became of them")
        wrong = wrong_products("PTX", products)
    else:
        print("neither cuobjdump and nvdisasm nor nvcc are here: the CUDA compiler's work is not checked")
        return SKIPPED
    wrong += wrong_start(build)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
