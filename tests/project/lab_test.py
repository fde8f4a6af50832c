"""The ladder of matrix products: every rung is right on the emulated device, and mistakes in its options are named.

usage: lab_test.py LAB_GEMM"""
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = Path(sys.argv.pop())
RUNGS = len(list((Path(__file__).resolve().parents[2] / "bench" / "lab" / "gemm").glob("[0-9][0-9]_*.cuh")))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


class Ladder(unittest.TestCase):
    def test_every_rung_is_right(self) -> None:
        for size in ("128,128,128", "256,256,192"):
            done = run("--size", size)
            self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
            lines = [line for line in done.stdout.splitlines() if line.startswith("| ") and "rung" not in line]
            self.assertEqual([line.split(" | ")[0] for line in lines], [f"| {i}" for i in range(RUNGS)])
            for line in lines:
                self.assertIn("| right |", line)

    def test_a_size_that_is_no_multiple_of_a_tile_is_left_out(self) -> None:
        done = run("--size", "128,128,48", "--rungs", "0,5")
        self.assertEqual(done.returncode, 0)
        self.assertIn("| 0 | a thread per element | right |", done.stdout)
        self.assertIn("| 5 | wmma from shared memory | needs multiples of 64 x 64 x 32 |", done.stdout)

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
