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


def shortest_turn(body: list[Instruction], first: int, last: int) -> list[int]:
    """The way from the first to the last instruction with the most tensor-core instructions and asynchronous copies; of
    several, the shortest. Empty if there is none: code that is left for a moment ends with a branch back, as loops do."""
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
    return path


def fast_path(body: list[Instruction]) -> Loop | None:
    """The fast path of the innermost loop that holds tensor-core instructions and waits for their data. (Kernels also have
    ways that copy by elements, sum rows, or copy no more.) None without such a loop."""
    loops = []
    for last, branch in enumerate(body):
        if (first := branch.target) is not None and first <= last:
            turn = body[first:last + 1]
            if any(i.is_one_of(MMA) for i in turn):
                loops.append((not any(i.is_one_of(WAITS) for i in turn), len(turn), first, last))
    for _, _, first, last in sorted(loops):
        path = shortest_turn(body, first, last)
        if any(body[i].is_one_of(MMA) for i in path):
            inner = sum((target := body[i].target) is not None and first <= target <= i for i in path[:-1])
            return Loop([body[i] for i in path], inner)
    return None
