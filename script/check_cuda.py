#!/usr/bin/env python3
"""Checks what nvcc made of the kernels, which needs no GPU: for each architecture every kernel is there, none spills
registers or keeps arrays in local memory, products on tensor cores use them, and a program that links them starts
where there is no driver.

usage: check_cuda.py BUILD_DIR    a build with -Dcuda=enabled; exits 77 where there is none"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
# Local memory is allowed where it is indexed by what only the device knows; bytes of stack per thread at most.
STACK = {}


def run(*command: str | Path) -> str:
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, check=True).stdout


def demangled(names: list[str]) -> dict[str, str]:
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    return dict(zip(names, text.splitlines()))


def kernels_of(archive: Path, arch: str) -> dict[str, dict[str, int]]:
    """What each kernel of one architecture uses: REG, STACK, SHARED, LOCAL."""
    used = {}
    name = None
    for line in run("cuobjdump", "-arch", arch, "--dump-resource-usage", archive).splitlines():
        if found := re.match(r"\s*Function (\S+):", line):
            name = found[1]
        elif name and "REG:" in line:
            used[name] = {key: int(value) for key, value in re.findall(r"(\w+(?:\[\d\])?):(\d+)", line)}
            name = None
    return used


def opcodes(archive: Path, arch: str) -> dict[str, dict[str, int]]:
    """How often each kernel of one architecture has each opcode that the checks ask for."""
    counts: dict[str, dict[str, int]] = {}
    current: dict[str, int] = {}
    for line in run("cuobjdump", "-arch", arch, "-sass", archive).splitlines():
        if found := re.match(r"\s*Function : (\S+)", line):
            current = counts.setdefault(found[1], {})
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(HMMA|LDSM|LDL|STL|LDGSTS)\b", line):
            current[found[1]] = current.get(found[1], 0) + 1
    return counts


def check(build: Path) -> list[str]:
    archive = build / "kernels" / "libmixtape_cuda.a"
    wrong = []
    listed = {}
    for arch in sorted(set(re.findall(r"sm_\w+", run("cuobjdump", "--list-elf", archive)))):
        used = listed[arch] = kernels_of(archive, arch)
        ops = opcodes(archive, arch)
        names = demangled(list(used))
        for kernel, resources in used.items():
            what = f"{arch}: {names[kernel].split('(')[0]}"
            if resources.get("STACK", 0) > STACK.get(what, 0):
                wrong.append(f"{what}: {resources['STACK']} bytes of stack (spilled registers or a local array)")
            count = ops.get(kernel, {})
            if "gemm_tensor" in kernel:
                if count.get("HMMA", 0) == 0:
                    wrong.append(f"{what}: no tensor-core instruction")
                if "IfLb" not in kernel and count.get("LDSM", 0) * 6 < count.get("HMMA", 0):
                    wrong.append(f"{what}: {count} - fragments do not come by ldmatrix")
                if count.get("LDGSTS", 0) == 0:
                    wrong.append(f"{what}: no asynchronous copy")
        print(f"{arch}: {len(used)} kernels, at most {max(r['REG'] for r in used.values())} registers")
    if len({frozenset(kernels) for kernels in listed.values()}) != 1:
        wrong.append("the architectures have different kernels")

    demo = build / "examples" / "mixtape-demo"
    if demo.exists():
        linked = run("ldd", demo)
        if "libcuda" in linked:
            wrong.append(f"{demo.name} links what only a machine with CUDA has:\n{linked}")
        said = subprocess.run([demo, "--device", "cuda"], capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""})
        if said.returncode != 2 or "no CUDA device" not in said.stderr:
            wrong.append(f"without a device, --device cuda says: {said.stdout}{said.stderr} ({said.returncode})")
    return wrong


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    build = Path(arguments[0])
    if not shutil.which("cuobjdump"):
        print("the CUDA Toolkit is not here: its compiler's work is not checked")
        return SKIPPED
    if not (build / "kernels" / "libmixtape_cuda.a").exists():
        print(f"{build} is no build with -Dcuda=enabled: the CUDA compiler's work is not checked")
        return SKIPPED
    wrong = check(build)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
