#!/usr/bin/env python3
"""Writes indexing_reference.inc: what NumPy gives for index expressions drawn at random.

usage: make_indexing_reference.py > indexing_reference.inc    (needs NumPy)
Each row is a shape, the indices, the result's shape, and its elements as positions in the indexed array."""
import random

import numpy as np

CASES, MOST = 300, 30  # expressions, elements of a result


def numbers(values) -> str:
    return "{" + ", ".join(str(int(v)) for v in values) + "}"


def some_slice(size: int) -> tuple[slice, str]:
    bound = lambda: None if random.random() < 0.35 else random.randint(-size - 2, size + 2)
    start, stop, step = bound(), bound(), random.choice([1, 1, 1, 2, 3, -1, -1, -2])
    text = ", ".join("None" if b is None else str(b) for b in (start, stop))
    return slice(start, stop, step), f"Slice({text}, {step})"


def tensor(array: np.ndarray) -> str:
    return f"{'mask' if array.dtype == bool else 'ints'}({numbers(array.shape)}, {numbers(array.ravel())})"


def draw(shape: tuple[int, ...]) -> tuple[list, list[str]]:
    """Indices for some or all dimensions, for NumPy and for C++."""
    indices, texts = [], []
    dim, ellipsis = 0, False
    # The shape that all index arrays broadcast to.
    common = random.choice([(), (1,), (2,), (3,), (2, 1), (2, 2), (0,)])
    advanced = random.random() < 0.6
    while dim < len(shape) or random.random() < 0.15:
        kind = random.random()
        if kind < 0.1:
            indices.append(None), texts.append("None")
        elif kind < 0.2 and not ellipsis:
            ellipsis = True
            indices.append(...), texts.append("Ellipsis")
            dim += random.randint(0, len(shape) - dim) if dim < len(shape) else 0
        elif dim >= len(shape):
            break
        elif kind < 0.45:
            at, text = some_slice(shape[dim])
            indices.append(at), texts.append(text)
            dim += 1
        elif advanced and kind < 0.75:
            own = tuple(n if random.random() < 0.7 else 1 for n in common)[random.randint(0, len(common)):]
            array = np.array([random.randrange(-shape[dim], shape[dim]) if shape[dim] else 0 for _ in range(int(np.prod(own)))],
                             dtype=np.int64).reshape(own)
            indices.append(array), texts.append(tensor(array))
            dim += 1
        elif advanced and kind < 0.85:
            dims = random.randint(0 if random.random() < 0.2 else 1, min(2, len(shape) - dim))
            array = np.random.rand(*shape[dim:dim + dims]) < 0.4
            indices.append(np.asarray(array)), texts.append(tensor(np.asarray(array)))
            dim += dims
        elif shape[dim] > 0:
            i = random.randrange(-shape[dim], shape[dim])
            indices.append(i), texts.append(str(i))
            dim += 1
        if random.random() < 0.1:
            break
    return indices, texts


def main() -> None:
    random.seed(1)
    np.random.seed(1)
    rows: dict[str, str] = {}
    while len(rows) < CASES:
        shape = tuple(random.choice([1, 2, 3, 3, 4, 0 if random.random() < 0.2 else 5]) for _ in range(random.randint(1, 4)))
        x = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
        indices, texts = draw(shape)
        try:
            y = x[tuple(indices)]
        except IndexError:
            continue
        if y.size <= MOST and y.ndim <= 8 and len(texts) <= 5:
            key = f"{numbers(shape)}, {{{', '.join(texts)}}}"
            rows[key] = f"{{{key}, {numbers(y.shape)}, {numbers(y.ravel())}}},"
    print("// By make_indexing_reference.py.", *rows.values(), sep="\n")


if __name__ == "__main__":
    main()
