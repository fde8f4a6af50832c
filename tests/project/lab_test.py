"""The ladder of matrix products: every rung is right on the emulated device, and mistakes in its options are named.

usage: lab_test.py LAB_GEMM"""
import re
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = Path(sys.argv.pop())
RUNGS = len(list((Path(__file__).resolve().parents[2] / "bench" / "lab" / "gemm").glob("[0-9][0-9]_*.cuh")))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


class Ladder(unittest.TestCase):
    def climb(self, *arguments: str) -> list[list[str]]:
        """The cells of each rung's line: number, idea, error, bank conflicts."""
        done = run(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if re.match(r"\| \d", line)]

    def test_every_rung_is_right(self) -> None:
        lines = self.climb()
        self.assertEqual([line[0] for line in lines], [str(i) for i in range(RUNGS)])
        conflicts = [int(line[3]) for line in lines]
        self.assertGreater(min(conflicts[5:7]), 0, "wmma from lines without padding")
        self.assertEqual(conflicts[7:], [0] * (RUNGS - 7), "padding, or a swizzle")

    def test_blocks_take_several_tiles(self) -> None:
        lines = self.climb("--size", "256,512,192", "--rungs", "11,12,13")
        self.assertEqual([float(line[2]) < 1e-6 for line in lines], [True] * 3)

    def test_a_size_that_is_no_multiple_of_a_tile_is_left_out(self) -> None:
        done = run("--size", "128,128,48", "--rungs", "0,5")
        self.assertEqual(done.returncode, 0)
        self.assertIn("| 0 | a thread per element | ", done.stdout)
        self.assertIn("| 5 | wmma from shared memory | needs multiples of 64 x 64 x 32 | |", done.stdout)

    def test_help_names_the_options(self) -> None:
        done = run("--help")
        self.assertEqual(done.returncode, 0)
        for option in ("--size", "--rungs", "--repeats", "--peak"):
            self.assertIn(option, done.stdout)

    def test_mistakes_are_named(self) -> None:
        for arguments, message in ((["--fast"], "--fast"), (["--size", "128"], "--size"), (["--rungs", "99"], "--rungs")):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, f"^lab_gemm: .*{message}.*\n$")


if __name__ == "__main__":
    unittest.main()
