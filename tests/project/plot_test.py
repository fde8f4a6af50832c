"""Runs mixtape-plot like a user. usage: plot_test.py PROGRAM"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

program = pathlib.Path(sys.argv.pop(1)).resolve()


class Plot(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_of(self, name: str, **lines) -> None:
        (self.folder / name).mkdir(parents=True)
        with open(self.folder / name / "metrics.jsonl", "w") as log:
            for step in range(20):
                log.write(json.dumps({"step": step, "loss": 1 / (step + 1), **lines}) + "\n")

    def plot(self, *arguments: str, code: int = 0) -> str:
        run = subprocess.run([program, *arguments], cwd=self.folder, text=True, capture_output=True)
        self.assertEqual(run.returncode, code, run.stderr)
        if code:
            self.assertEqual((run.stdout, run.stderr.count("\n")), ("", 1), run.stderr)
        return run.stderr if code else run.stdout

    def names(self, svg: str) -> list[str]:
        """All texts; the legend comes last."""
        return [e.text for e in xml.parse(self.folder / svg).iter("{http://www.w3.org/2000/svg}text")]

    def test_one_run_gets_its_charts(self) -> None:
        self.run_of("runs/a", accuracy=0.5)
        self.assertEqual(self.plot("runs/a").split(), ["runs/a/loss.svg", "runs/a/accuracy.svg"])
        self.assertIn("Training loss", self.names("runs/a/loss.svg"))

    def test_several_runs_share_charts(self) -> None:
        for name in "runs/a", "runs/b", "more/b":
            self.run_of(name)
        self.assertEqual(self.plot("runs/a", "runs/b/", "--out", "both"), "both/loss.svg\n")
        self.assertEqual(self.names("both/loss.svg")[-2:], ["a", "b"])
        self.assertEqual(self.plot("runs/a", "runs/b", "more/b"), "./loss.svg\n")
        self.assertEqual(self.names("loss.svg")[-3:], ["a", "runs/b", "more/b"])

    def test_a_scale_of_one_is_not_drawn(self) -> None:
        self.run_of("f32", scale=1, skipped=False)
        self.run_of("f16", scale=65536, skipped=False)
        self.assertEqual(self.plot("f32"), "f32/loss.svg\n")
        self.assertEqual(self.plot("f32", "f16"), "./loss.svg\n./scale.svg\n")
        self.assertNotIn("f32", self.names("scale.svg"))

    def test_help_and_mistakes(self) -> None:
        self.run_of("a")
        self.assertIn("metrics.jsonl", self.plot("--help"))
        self.assertIn("mixtape-plot: RUN is required", self.plot(code=2))
        self.assertIn("not expected: --bogus (--help lists", self.plot("a", "--bogus", code=2))
        self.assertIn("must not be empty", self.plot("a", "--out", "", code=2))
        self.assertIn("none/metrics.jsonl: cannot open", self.plot("none", code=2))
        self.assertIn('two runs are named "a"', self.plot("a", "a", code=2))
        for log in "", '{"step":1}\n', '{"step":1,"loss":null}\n':
            (self.folder / "a/metrics.jsonl").write_text(log)
            self.assertIn("a: no numbers to draw", self.plot("a", code=2))
        (self.folder / "a/metrics.jsonl").write_text('{"loss":1}\n')
        self.assertIn('line 1 has no number "step"', self.plot("a", code=2))
        (self.folder / "a/metrics.jsonl").write_text('{"step":1,"loss":1}\n')
        self.assertIn("a/metrics.jsonl: cannot make this folder", self.plot("a", "--out", "a/metrics.jsonl", code=1))
        self.assertEqual([p.name for p in (self.folder / "a").iterdir()], ["metrics.jsonl"])


if __name__ == "__main__":
    unittest.main()
