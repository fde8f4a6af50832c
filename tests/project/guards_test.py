"""A guard that is not given a name ends before the next statement: compilers say so.

(No argument is in braces, in which clang 14 keeps silent, or makes the line a declaration.)

usage: guards_test.py ROOT COMPILER FLAG..."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

root, compiler = sys.argv[1], sys.argv[2:]
guards = {
    "NoGrad": "",
    "EnableGrad": "",
    "Seed": "3",
    "DefaultDevice": "true ? Device() : Device()",
    "Tf32": "",
    "OnWarning": "[](const std::string&) {}",
    "SourceScope": "",
    "DetectAnomaly": "",
    "amp::Autocast": "",
    "NoPolicy": "",
    "amp::Report": "",
    "amp::OverflowTrace": "",
    "optim::Ema::Applied": "true ? ema() : ema()",
}


class Guards(unittest.TestCase):
    def warned(self, statement: str) -> set[int]:
        """The lines of a program, one for each guard, that draw a warning."""
        lines = ["#include <mixtape.h>", "using namespace mixtape;", "optim::Ema& ema();", "void f() {"]
        lines += ["{ " + statement.format(*guard) + "; }" for guard in guards.items()] + ["}"]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.cpp"
            program.write_text("\n".join(lines))
            command = [*compiler, "-fsyntax-only", "-I", root, str(program)]
            done = subprocess.run(command, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {int(n) - 5 for n in re.findall(r"program\.cpp:(\d+):\d+: warning: ignoring", done.stderr)}

    def test_without_a_name(self) -> None:
        missing = set(range(len(guards))) - self.warned("{}({})")
        self.assertEqual([list(guards)[n] for n in missing], [])

    def test_with_a_name(self) -> None:
        self.assertEqual(self.warned("{} guard{{{}}}"), set())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
