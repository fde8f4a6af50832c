"""Reads SASS, the machine code of NVIDIA's GPUs, as cuobjdump prints it: the instructions of each kernel, and the fast path
through the loop that holds its tensor-core instructions. Finds CUDA's tools."""
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where nvcc, cuobjdump and nvdisasm may be; script/bootstrap --cuda-tools puts the last two into the build's own folder.
PATH = f"{os.environ['PATH']}:{ROOT}/build-tools/bin:{os.environ.get('CUDA_PATH', '/usr/local/cuda')}/bin"

MMA = ("HMMA", "HGMMA")
COPIES = ("LDGSTS", "UTMALDG")  # asynchronous, from global to shared memory
WAITS = ("BAR", "DEPBAR", "SYNCS")  # the loop over k has one in each turn, a loop within a turn has none


def tool(name: str) -> str | None:
    return shutil.which(name, path=PATH)


def has_tools() -> bool:
    return bool(tool("cuobjdump") and tool("nvdisasm"))  # the first calls the second


def run(*command: str | Path) -> str:
    """Runs a tool of CUDA, or another command, and returns its output."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=os.environ | {"PATH": PATH})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def demangled(names: list[str]) -> list[str]:
    """Names in C++, without our namespaces."""
    filtered = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    spaces = re.compile(r"mixtape::((kernels|lab)::(cuda::)?)?|\(anonymous namespace\)::")
    return [spaces.sub("", name) for name in filtered.stdout.splitlines()]


@dataclass
class Instruction:
    name: str  # with its kinds: HMMA.16816.F32
    target: int | None  # the index of the instruction that a branch goes to
    falls_through: bool  # the next one may run after it

    def is_one_of(self, opcodes: tuple[str, ...]) -> bool:
        return self.name.split(".")[0] in opcodes


@dataclass
class Loop:
    """One turn of a loop."""
    path: list[Instruction]
    inner: int  # loops within, of which the path has one turn

    def count(self, pattern: str) -> int:
        return sum(bool(re.match(rf"({pattern})\b", i.name)) for i in self.path)


def kernels(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Mangled name and instructions of each kernel in the output of `cuobjdump -sass`."""
    for part in re.split(r"^\s*Function : ", text, flags=re.M)[1:]:
        found = re.findall(r"/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?(\w[\w.]*)([^;\n]*);", part)
        places = {int(address, 16): i for i, (address, *_) in enumerate(found)}
        body = []
        for _, guard, name, operands in found:
            to = re.search(r"0x([0-9a-f]+)\s*$", operands) if name.startswith("BRA") else None
            conditional = guard or "." in name or re.search(r"\bU?P\d", operands)
            body.append(Instruction(name, places.get(int(to[1], 16)) if to else None,
                                    name.split(".")[0] not in ("BRA", "EXIT", "RET") or bool(conditional)))
        yield part.split(maxsplit=1)[0], body


def shortest_turn(body: list[Instruction], first: int, last: int,
                  useful_of: Callable[[Instruction], int] = lambda i: i.is_one_of(MMA + COPIES)) -> list[int]:
    """The way from the first to the last instruction with the most that is useful: tensor-core instructions and asynchronous
    copies; of several, the shortest. Empty if there is none: code that is left for a moment ends with a branch back, as
    loops do."""
    best: dict[int, tuple[int, int, int]] = {last: (0, -1, -1)}  # useful instructions, minus all, the next on the way
    for i in range(last - 1, first - 1, -1):
        after = [i + 1] if body[i].falls_through else []
        if (target := body[i].target) is not None and target > i:
            after.append(target)
        if ways := [(*best[n][:2], n) for n in after if n in best]:
            useful, length, following = max(ways)
            best[i] = useful + useful_of(body[i]), length - 1, following
    path = [first] if first in best else []
    while path and path[-1] != last:
        path.append(best[path[-1]][2])
    return path


def loops_of(body: list[Instruction]) -> list[tuple[int, int]]:
    """The first and last instruction of each loop."""
    return [(i.target, last) for last, i in enumerate(body) if i.target is not None and i.target <= last]


def fast_path(body: list[Instruction]) -> Loop | None:
    """The fast path of the innermost loop that holds tensor-core instructions and waits for their data. (Kernels also have
    ways that copy by elements, sum rows, or copy no more.) None without such a loop."""
    loops = []
    for first, last in loops_of(body):
        turn = body[first:last + 1]
        if any(i.is_one_of(MMA) for i in turn):
            loops.append((not any(i.is_one_of(WAITS) for i in turn), len(turn), first, last))
    for _, _, first, last in sorted(loops):
        path = shortest_turn(body, first, last)
        if any(body[i].is_one_of(MMA) for i in path):
            inner = sum((target := body[i].target) is not None and first <= target <= i for i in path[:-1])
            return Loop([body[i] for i in path], inner)
    return None


def turn_with(body: list[Instruction], opcodes: tuple[str, ...]) -> int:
    """The instructions in a turn of the shortest loop with all of the kernel's instructions of these kinds, on the way that meets
    most of them; 0 without one."""
    def count(part: list[Instruction]) -> int:
        return sum(i.is_one_of(opcodes) for i in part)

    turns = [shortest_turn(body, first, last, lambda i: i.is_one_of(opcodes)) for first, last in loops_of(body)
             if count(body[first:last + 1]) == count(body) > 0]
    return min((len(turn) for turn in turns if turn), default=0)


def moved_bytes(i: Instruction) -> int:
    """The bytes that a lane loads from global memory or stores to it."""
    if not i.is_one_of(("LDG", "STG")):
        return 0
    kinds = i.name.split(".")
    return next((size for kind, size in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)) if kind in kinds), 4)


def instructions_per_byte(body: list[Instruction]) -> float:
    """The instructions for each byte that a lane moves in global memory, in the loop, or all of the kernel, that needs the
    fewest; 0 for a kernel that moves nothing."""
    ends = [i for i, instruction in enumerate(body) if instruction.name == "EXIT"]
    least = []
    for first, last in loops_of(body) + [(0, end) for end in ends]:
        turn = shortest_turn(body, first, last, moved_bytes)
        if moves := sum(moved_bytes(body[i]) for i in turn):
            least.append(len(turn) / moves)
    return min(least, default=0.0)


def has(body: list[Instruction], opcode: str, kind: str) -> bool:
    return any(i.is_one_of((opcode,)) and kind in i.name for i in body)


def of_build(build: Path, arch: str, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Instruction]]]:
    """Those kernels of a build with nvcc whose names, demangled, are wanted."""
    for part in objects_of(build):
        names = re.findall(r"Function (\S+):", run("cuobjdump", "-arch", arch, "--dump-resource-usage", part))
        some = [name for name, plain in zip(names, demangled(names)) if wanted(plain)]
        if some:
            yield from ((name, body) for name, body in kernels(run("cuobjdump", "-arch", arch, "-sass", part)) if name in some)


def objects_of(build: Path) -> list[Path]:
    return sorted((build / "kernels" / "libmixtape_cuda.a.p").glob("*.cu.o"))
