"""Reads SASS, the machine code of NVIDIA's GPUs, as cuobjdump prints it: the instructions of each kernel, and the fast path
through the loop that holds its tensor-core instructions."""
import re
from collections.abc import Iterator
from dataclasses import dataclass

MMA = ("HMMA", "HGMMA")
COPIES = ("LDGSTS", "UTMALDG")  # asynchronous, from global to shared memory
WAITS = ("BAR", "DEPBAR", "SYNCS")  # the loop over k has one in each turn, a loop within a turn has none


@dataclass
class Instruction:
    name: str  # with its kinds: HMMA.16816.F32
    target: int | None  # the index of the instruction that a branch goes to
    falls_through: bool  # the next one may run after it

    def is_one_of(self, opcodes: tuple[str, ...]) -> bool:
        return self.name.split(".")[0] in opcodes


@dataclass
class Loop:
    """One turn of a loop on its fast path."""
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


def main_loop(body: list[Instruction]) -> tuple[int, int] | None:
    """First and last instruction of the innermost loop that holds tensor-core instructions and waits for their data."""
    loops = []
    for last, branch in enumerate(body):
        if branch.target is not None and branch.target <= last:
            turn = body[branch.target:last + 1]
            if any(i.is_one_of(MMA) for i in turn):
                loops.append((not any(i.is_one_of(WAITS) for i in turn), len(turn), branch.target, last))
    return min(loops)[2:] if loops else None


def fast_path(body: list[Instruction]) -> Loop | None:
    """The way through a turn of the main loop with the most tensor-core instructions and asynchronous copies; of several, the
    shortest. Kernels also have ways that copy by elements, sum rows, or copy no more. None without such a loop."""
    if (found := main_loop(body)) is None:
        return None
    first, last = found
    best: dict[int, tuple[int, int, int]] = {last: (0, -1, -1)}  # useful instructions, minus all, the next on the way
    for i in range(last - 1, first - 1, -1):
        after = [i + 1] if body[i].falls_through else []
        if (target := body[i].target) is not None and target > i:
            after.append(target)
        if ways := [(*best[n][:2], n) for n in after if n in best]:
            useful, length, following = max(ways)
            best[i] = useful + body[i].is_one_of(MMA + COPIES), length - 1, following
    path = [first] if first in best else []
    while path and path[-1] != last:
        path.append(best[path[-1]][2])
    inner = sum((target := body[i].target) is not None and first <= target <= i for i in path[:-1])
    return Loop([body[i] for i in path], inner) if path else None
