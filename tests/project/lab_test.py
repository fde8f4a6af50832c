"""The ladder of matrix products: every rung is right on the emulated device, and mistakes in its options are named.

usage: lab_test.py LAB_GEMM"""
import contextlib
import io
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

PROGRAM = Path(sys.argv.pop())
ROOT = Path(__file__).resolve().parents[2]
RUNGS = len(list((ROOT / "bench" / "lab" / "gemm").glob("[0-9][0-9]_*.cuh")))
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "script"))
import lab_counts
import sass


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)


class Ladder(unittest.TestCase):
    def climb(self, *arguments: str) -> list[list[str]]:
        """The cells of each rung's line: number, idea, error, bank conflicts, KiB of boxes."""
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
        lines = self.climb("--size", "256,512,192", "--rungs", "11,12,13,14")
        self.assertEqual([float(line[2]) < 1e-6 for line in lines], [True] * 4)
        self.assertEqual([line[4] for line in lines], ["960", "576", "576", "384"], "blocks of a cluster share boxes of b")

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


class Counts(unittest.TestCase):
    FOUND = {"rung_naive": ("FFMA", 16, 150), "rung_mma": ("HMMA", 64, 268)}

    def table(self, *arguments: str) -> str:
        printed = io.StringIO()
        with mock.patch.object(lab_counts, "counts", lambda arch: self.FOUND), contextlib.redirect_stdout(printed):
            self.assertEqual(lab_counts.main(list(arguments)), 0)
        return printed.getvalue()

    def test_every_rung_has_a_line(self) -> None:
        ideas = [line.strip("| ").split(" | ")[1] for line in run("--size", "1,1,1").stdout.splitlines()
                 if re.match(r"\| \d", line)]
        self.assertEqual([idea for idea, _ in lab_counts.rungs()], ideas)
        lines = self.table().splitlines()
        self.assertIn("| 0 | a thread per element | 9.4 per FFMA | 3 |", lines)
        self.assertIn("| 8 | ldmatrix and mma.sync | 4.2 per HMMA | 489 |", lines)
        self.assertEqual(len(lines), 2 + RUNGS)

    def test_counts_are_added_to_a_table(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write("a device\n\n| rung | idea |\n|--:|---|\n| 8 | ldmatrix and mma.sync |\n")
            file.flush()
            lines = self.table("--arch", "sm_80", file.name).splitlines()
        self.assertEqual(lines, ["a device", "", "| rung | idea | instructions (sm_80) | multiply-adds per instruction |",
                                 "|--:|---|--:|--:|", "| 8 | ldmatrix and mma.sync | 4.2 per HMMA | 489 |"])

    def test_a_turn_is_the_fast_path_or_the_loop_that_multiplies_most(self) -> None:
        recorded = (ROOT / "tests" / "data" / "tensor_core_loops.sass").read_text()
        for _, body in sass.kernels(recorded):
            self.assertTrue(any(i.is_one_of(sass.MMA) for i in lab_counts.turn(body)))
        plain = [sass.Instruction(name, target, True) for name, target in
                 [("FFMA", None), ("LDS", None), ("FFMA", None), ("BRA", 0), ("FFMA", None), ("BRA", 4)]]
        self.assertEqual([i.name for i in lab_counts.turn(plain)], ["FFMA", "LDS", "FFMA", "BRA"])


if __name__ == "__main__":
    unittest.main()
