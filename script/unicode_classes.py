#!/usr/bin/env python3
"""Writes train/data/unicode_classes.inc: where runs of letters, numbers, spaces and other characters begin, as tokenizers
class them by \\p{L}, \\p{N} and \\s. Needs unicodedata2, of the version of Unicode that tiktoken and tokenizers have (16).

usage: unicode_classes.py"""
import sys
from pathlib import Path

if len(sys.argv) > 1:
    print(__doc__)
    sys.exit(0 if sys.argv[1:] == ["--help"] else 2)

import unicodedata2  # after the help, which does not need it

VERSION = "16.0.0"
SPACES = [*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


def class_of(code: int) -> int:
    """0 other, 1 a letter, 2 a number, 3 a space."""
    return 3 if code in SPACES else {"L": 1, "N": 2}.get(unicodedata2.category(chr(code))[0], 0)


def main() -> None:
    assert unicodedata2.unidata_version == VERSION, unicodedata2.unidata_version
    runs, last = [], None
    for code in range(0x110000):
        if class_of(code) != last:
            last = class_of(code)
            runs.append(f"0x{code << 2 | last:x}")
    lines = [f"// Code points times 4, plus the class of the characters from there on; Unicode {VERSION}, by script/unicode_classes.py."]
    for run in runs:
        if len(lines) == 1 or len(lines[-1]) + len(run) + 1 > 126:
            lines.append("")
        lines[-1] += run + ","
    path = Path(__file__).resolve().parent.parent / "train/data/unicode_classes.inc"
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
