"""The pretty printers of script/mixtape_gdb.py in gdb, on a program that was compiled with -g. Skips without gdb.

usage: gdb_test.py PROGRAM PRINTERS"""
import re
import shutil
import subprocess
import sys
import unittest

program, printers = sys.argv[1:3]


class Gdb(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        names = ["x", "none", "scalar", "turned", "half", "brain", "mask", "index", "bytes", "small", "coded", "wide", "y", "shape",
                 "device", "net.mean", "net.up.weight", "net"]
        command = ["gdb", "-nx", "-batch", "-ex", f"source {printers}", "-ex", "break stop", "-ex", "run", "-ex", "up"]
        for name in names:
            command += ["-ex", f"print {name}"]
        run = subprocess.run([*command, program], text=True, capture_output=True, stdin=subprocess.DEVNULL)
        cls.output = run.stdout + run.stderr
        if "ptrace" in cls.output or "Could not trace" in cls.output:
            raise unittest.SkipTest("gdb may not trace programs here")
        found = re.findall(r"^\$(\d+) = (.*)", run.stdout, re.M)
        cls.values = {names[int(number) - 1]: text for number, text in found}

    def shows(self, name: str, text: str) -> None:
        self.assertIn(name, self.values, self.output)
        self.assertEqual(self.values[name], text)

    def test_tensors(self) -> None:
        self.shows("x", "f32 [2, 3] [[1 2 3] [4 5 6.25]]")
        self.shows("none", "no tensor")
        self.shows("scalar", "f32 [] 2.5")
        self.shows("turned", "f32 [3, 2] [[1 4] [2 5] [3 6.25]]")
        self.shows("half", "f16 [2, 3] [[1 2 3] [4 5 6.25]]")
        self.shows("brain", "bf16 [2, 3] [[1 2 3] [4 5 6.25]]")
        self.shows("mask", "bool [2, 3] [[false false true] [true true true]]")
        self.shows("index", "i64 [2] [-1 7]")
        self.shows("bytes", "u8 [2, 0] [[] []]")
        self.shows("small", "i8 [2] [-1 7]")
        self.shows("coded", "f8_e4m3 [2, 3] [[56 64 68] [72 74 76]]")
        self.shows("wide", "i64 [100] [0 1 2 ... 97 98 99]")
        self.assertRegex(self.values["y"], r"^f32 \[2, 2\] of an op \[\[\S+ \S+\] \[\S+ \S+\]\]$")
        self.shows("net.mean", "f32 [2] [0.5 0.5]")
        self.assertRegex(self.values["net.up.weight"], r"^f32 \[2, 3\] requires_grad \[\[")

    def test_shapes_and_devices(self) -> None:
        self.shows("shape", "[4, -1]")
        self.shows("device", "cuda:1")

    def test_modules(self) -> None:
        net = self.values["net"]
        self.assertRegex(net, r"^Mlp(?: in evaluation)? = \{up = Linear(?: in evaluation)? = \{weight = f32 \[2, 3\] requires_grad ")
        self.assertRegex(net, r"table = Embedding(?: in evaluation)? = \{.*weight = f32 \[2, 2\] requires_grad .* mean = f32 \[2\] \[0.5 0.5\], width = 7\}$")
        self.assertNotIn("hooks_", net)


if __name__ == "__main__":
    if not shutil.which("gdb"):
        print("there is no gdb")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0]])
