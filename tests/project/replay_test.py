"""Runs mixtape-replay like a user. usage: replay_test.py PROGRAM PLANT_OVERFLOW"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

program, plant = (pathlib.Path(sys.argv.pop(1)).resolve() for _ in range(2))


class Replay(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def replay(self, *arguments: str, code: int = 0) -> str:
        one = os.environ | {"MIXTAPE_NUM_THREADS": "1"}
        run = subprocess.run([program, *arguments], cwd=self.folder, text=True, capture_output=True, env=one)
        self.assertEqual(run.returncode, code, run.stderr)
        if code:
            self.assertEqual((run.stdout, run.stderr.count("\n")), ("", 1), run.stderr)
        return run.stderr if code else run.stdout

    def test_the_precision_that_cures_it(self) -> None:
        for kind, what in ("forward", "20 inf in f16 [4, 5], from f16, f16 with absmax 300"), (
            "backward", "280 inf in f16 [4, 70], from f16 with absmax 6e+04"):
            subprocess.run([plant, "c", kind], cwd=self.folder, check=True)
            text = self.replay("c")
            self.assertIn(f"{kind} of linear: {what}\n", text)
            self.assertIn("replayed: the same, bit for bit\n", text)
            self.assertIn("bf16, f32, f64 would do\n", text)
            self.assertIn('amp::Capsule::load("c")', text)

    def test_mistakes(self) -> None:
        self.assertIn("mixtape-replay: FILE is required", self.replay(code=2))
        self.assertIn("none: cannot open", self.replay("none", code=2))
        (self.folder / "text").write_text("no capsule")
        self.assertIn("text: ", self.replay("text", code=2))


unittest.main()
