"""Runs the demo like a user: its output and files, bit-identical repetition, and error messages. The last two classes
train for real and are separate tests in meson.build.

usage: demo_test.py PROGRAM CLASS..."""
import gzip
import json
import os
import pathlib
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
from declared_options import declared_options

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it, and so would the programs
program = pathlib.Path(sys.argv[1]).resolve()
MODES = ["fp32", "fp16", "bf16"]
SMALL = ["--train-size", "640", "--valid-size", "200", "--epochs", "2"]
ROW = re.compile(
    r"(?P<mode>\w+) +(?P<train>\S+) +(?P<valid>\S+) +(?P<accuracy>[\d.]+) % +(?P<ms>[\d.]+) +(?P<speed>[\d.]+x|-)"
    r" +(?P<peak>[\d.]+) +(?P<skipped>\d+) +(?P<scale>\S+)"
)


def idx(sizes: list[int], data: bytes, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, kind, len(sizes), *sizes) + data


class DemoTest(unittest.TestCase):
    """Each test in an empty folder."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def demo(self, *arguments, threads: int | None = None, **options) -> subprocess.CompletedProcess:
        environment = dict(os.environ) if threads is None else {**os.environ, "MIXTAPE_NUM_THREADS": str(threads)}
        return subprocess.run([program, *map(str, arguments)], cwd=self.folder, env=environment, text=True,
                              capture_output=True, stdin=subprocess.DEVNULL, **options)

    def trained(self, *arguments, modes: list[str] = MODES, threads: int | None = None) -> list[dict]:
        """The last lines of the output, which are one row per mode."""
        run = self.demo(*arguments, threads=threads)
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = run.stdout.splitlines()
        for line in lines[-len(modes) - 1:]:
            self.assertLess(len(line), 80, line)
        matches = [ROW.fullmatch(line) for line in lines[-len(modes):]]
        self.assertTrue(all(matches), run.stdout)
        rows = [match.groupdict() for match in matches]
        self.assertEqual([row["mode"] for row in rows], modes)
        return rows

    def log(self, folder: str = "runs/demo") -> list[dict]:
        return [json.loads(line) for line in (self.folder / folder / "metrics.jsonl").read_text().splitlines()]

    def files(self, folder: str = ".") -> list[str]:
        return sorted(path.name for path in (self.folder / folder).iterdir())


class Quick(DemoTest):
    def test_the_table_and_the_files(self) -> None:
        rows = self.trained(*SMALL)
        self.assertEqual(self.files("runs/demo"), sorted(["loss.svg", "metrics.jsonl", *(m + ".safetensors" for m in MODES)]))
        log = self.log()
        self.assertEqual([(line["mode"], line["epoch"], line["step"]) for line in log],
                         [(mode, epoch, 10 * epoch) for mode in MODES for epoch in (1, 2)])
        for row, last in zip(rows, log[1::2]):
            self.assertEqual(row["train"], f"{last['train_loss']:.4f}")
            self.assertEqual(row["valid"], f"{last['valid_loss']:.4f}")
            self.assertEqual(row["accuracy"], f"{100 * last['accuracy']:.2f}")
            self.assertEqual(row["skipped"], str(last["skipped"]))
            self.assertGreater(float(row["ms"]), 0)
        self.assertEqual([row["scale"] for row in rows], ["-", f"{log[3]['scale']:g}", "-"])
        self.assertEqual(rows[0]["speed"], "1.00x")
        peak = {row["mode"]: float(row["peak"]) for row in rows}
        self.assertLess(peak["fp16"], 0.8 * peak["fp32"])  # activations take half
        self.assertAlmostEqual(peak["fp16"], peak["bf16"], delta=0.15)  # scratch memory differs

    def test_weights_open_as_safetensors(self) -> None:
        self.trained(*SMALL)
        for mode in MODES:
            data = (self.folder / f"runs/demo/{mode}.safetensors").read_bytes()
            length = struct.unpack_from("<Q", data)[0]
            header = json.loads(data[8:8 + length])
            self.assertEqual(header.pop("__metadata__"), {"mode": mode, "seed": "1"})
            self.assertEqual({name: entry["shape"] for name, entry in header.items()},
                             {"conv1.weight": [16, 1, 3, 3], "conv1.bias": [16], "conv2.weight": [32, 16, 3, 3],
                              "conv2.bias": [32], "fc1.weight": [128, 1568], "fc1.bias": [128],
                              "fc2.weight": [10, 128], "fc2.bias": [10]})
            self.assertEqual({entry["dtype"] for entry in header.values()}, {"F32"})
            self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(data) - 8 - length)

    def test_the_chart_has_a_curve_for_each_mode(self) -> None:
        self.trained(*SMALL)
        chart = xml.parse(self.folder / "runs/demo/loss.svg").getroot()
        texts = [text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")]
        curves = [path.get("d") for path in chart.iter("{http://www.w3.org/2000/svg}path")]
        for mode in MODES:
            self.assertIn(mode, texts)
        self.assertEqual(sum(curve.count("L") == 19 for curve in curves), 3, curves)  # 20 steps

    def test_one_seed_is_one_result_for_any_number_of_threads(self) -> None:
        for folder, threads in ("one", 1), ("two", 2), ("again", 2):
            self.trained(*SMALL, "--out", folder, threads=threads)
        self.trained(*SMALL, "--out", "other", "--seed", 2)
        for name in self.files("one"):
            one, two, again, other = ((self.folder / f / name).read_bytes() for f in ("one", "two", "again", "other"))
            self.assertEqual(one, two, name)
            self.assertEqual(two, again, name)
            self.assertNotEqual(one, other, name)

    def test_a_mode_trains_the_same_alone(self) -> None:
        self.trained(*SMALL, "--out", "all")
        [row] = self.trained(*SMALL, "--out", "one", "--modes", "bfloat16", modes=["bf16"])  # any of its names
        self.assertEqual(self.log("one"), self.log("all")[4:])
        self.assertEqual(row["speed"], "-")  # there is no fp32 to compare with
        self.assertEqual(self.files("one"), ["bf16.safetensors", "loss.svg", "metrics.jsonl"])

    def test_a_folder_holds_one_run(self) -> None:
        (self.folder / "out").mkdir()
        (self.folder / "out/notes.txt").write_text("mine")
        self.trained(*SMALL, "--out", "out")
        self.trained(*SMALL, "--out", "out", "--modes", "fp32", modes=["fp32"])
        self.assertEqual(self.files("out"), ["fp32.safetensors", "loss.svg", "metrics.jsonl", "notes.txt"])
        self.assertEqual(len(self.log("out")), 2)

    def test_a_batch_may_be_larger_than_the_data(self) -> None:
        self.trained(*SMALL, "--batch-size", 1000)
        self.assertEqual([line["step"] for line in self.log()], [1, 2] * 3)

    def test_a_loss_that_overflows_is_shown_and_skipped(self) -> None:
        fp16, fp32 = self.trained(*SMALL, "--lr", 1e6, "--modes", "fp16,fp32", modes=["fp16", "fp32"])
        self.assertEqual(fp32["train"], "nan")
        self.assertEqual(fp32["skipped"], "0")
        self.assertGreater(int(fp16["skipped"]), 0)
        self.assertIsNone(self.log()[-1]["train_loss"])

    def test_help_lists_every_option(self) -> None:
        run = self.demo("--help")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        options = declared_options(pathlib.Path(__file__).resolve().parents[2] / "examples/demo.cpp")
        self.assertIn("--device", options)
        self.assertEqual(re.findall(r"^  (--[\w-]+)", run.stdout, re.M), options)

    def test_a_disk_that_refuses_is_exit_1_and_leaves_nothing_half_written(self) -> None:
        def limit_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # the weights take 800 kB

        # Python ignores the limit's signal, and the program inherits that.
        run = self.demo(*SMALL, preexec_fn=limit_files, restore_signals=False)
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr.splitlines()[-1], r"^demo: /.*/runs/demo/fp32.safetensors: cannot write: File too large$")
        self.assertEqual(self.files("runs/demo"), ["metrics.jsonl"])

    def test_ctrl_c_keeps_what_was_finished(self) -> None:
        run = subprocess.Popen([program, "--epochs", "1000", "--train-size", "640", "--modes", "fp32"], cwd=self.folder,
                               text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.assertIn("fp32 epoch 1/1000 10/10", run.stderr.readline())
        run.stderr.readline()
        run.send_signal(signal.SIGINT)
        error = run.stderr.read()
        run.stderr.close()
        self.assertEqual(run.wait(), 130)
        self.assertEqual(error.splitlines()[-1], "demo: interrupted: runs/demo holds what was finished")
        self.assertGreater(len(self.log()), 0)
        self.assertEqual(self.files("runs/demo"), ["metrics.jsonl"])


class Mistakes(DemoTest):
    """Mistakes: a one-line message, exit code 2, and no file written."""

    def refused(self, message: str, *arguments, threads: int | None = None) -> None:
        before = self.files()
        run = self.demo(*arguments, threads=threads)
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertTrue(run.stderr.startswith("demo: " + message), run.stderr)
        self.assertEqual(self.files(), before)

    def test_options(self) -> None:
        whole = "is not a whole number from 1 to 1000000 (--help lists the options)"
        self.refused("The following argument was not expected: --bogus (--help lists the options)", "--bogus")
        self.refused("The following argument was not expected: word", "word")
        for option in "--epochs", "--batch-size", "--train-size", "--valid-size":
            for value in "0", "-1", "1.5", "nan", "1e400", "1e3", "many", "99999999999999999999", "1000001":
                self.refused(f'{option}: "{value}" {whole}', f"{option}={value}")
        for value in "0", "-1", "nan", "inf", "1e400", "1e-400", "fast":
            self.refused(f'--lr: "{value}" is not a number from 1e-12 to 1000000', f"--lr={value}")
        for value in "-1", "0.5", "99999999999999999999":
            self.refused(f'--seed: "{value}" is not a whole number from 0 to 18446744073709551615', f"--seed={value}")
        for value in "0", "1", "nan":
            self.refused(f'--valid-fraction: "{value}" is not a number from 0.01 to 0.9', f"--valid-fraction={value}")
        self.refused('--modes: "fp8" is not fp32, tf32, fp16 or bf16', "--modes", "fp32,fp8")
        self.refused('--modes: "float64" is not fp32, tf32, fp16 or bf16', "--modes", "float64")
        self.refused("--modes: fp16 is listed twice", "--modes", "float16,bf16,FP16")
        self.refused("--valid-fraction needs --data", "--valid-fraction", 0.2)
        self.refused('--modes: "" is not fp32, tf32, fp16 or bf16', "--modes", "")
        self.refused("unknown device 'gpu'; known are cpu, cuda, cuda:0, cuda:1, ..., meta:cpu, meta:cuda", "--device", "gpu")
        self.refused("there is no device cuda:9: ", "--device", "cuda:9")
        self.refused("--modes: fp32 is listed twice", "--modes", "fp32,bf16,fp32")
        self.refused("--epochs: 1 required N missing", "--epochs")
        self.refused("--out: must not be empty", "--out", "")
        self.refused("--data: must not be empty", "--data", "")
        self.refused("MIXTAPE_NUM_THREADS must be a number from 1 to 1024, got '0'", threads=0)
        self.refused("--data excludes --train-size", "--data", ".", "--train-size", "5")

    def test_a_place_that_cannot_be_written(self) -> None:
        (self.folder / "file").write_text("")
        (self.folder / "busy/metrics.jsonl/inside").mkdir(parents=True)
        self.refused("file: cannot make this folder: Not a directory", "--out", "file")
        self.refused("file/run: cannot make this folder: Not a directory", "--out", "file/run")
        self.refused(f"{self.folder.resolve()}/busy/metrics.jsonl: cannot open for appending: Is a directory", "--out", "busy")
        self.assertEqual(self.files("busy"), ["metrics.jsonl"])

    def write(self, images: bytes | None = None, labels: bytes | None = None) -> None:
        """A pair of files, valid unless replaced."""
        images = idx([20, 8, 8], bytes(range(64)) * 20) if images is None else images
        labels = idx([20], bytes(i % 10 for i in range(20))) if labels is None else labels
        (self.folder / "data").mkdir(exist_ok=True)
        (self.folder / "data/train-images-idx3-ubyte").write_bytes(images)
        (self.folder / "data/train-labels-idx1-ubyte").write_bytes(labels)

    def test_data(self) -> None:
        images, labels = "data/train-images-idx3-ubyte", "data/train-labels-idx1-ubyte"
        self.refused("none: no such folder: looked for train-images-idx3-ubyte", "--data", "none")
        self.refused(".: no data in this folder: looked for train-images-idx3-ubyte", "--data", ".")
        bad = [
            (dict(images=b""), f"{images}: has 0 bytes, too few for an IDX file"),
            (dict(images=b"PNG file"), f"{images}: not an IDX file: starts with bytes 50 4e, not 00 00"),
            (dict(images=idx([20, 8, 8], b"")), f"{images}: shape [20, 8, 8] needs a file of 1296 bytes, this one has 16"),
            (dict(images=idx([2**32 - 1] * 3, b"")), f"{images}: the size of"),
            (dict(images=idx([20, 8, 8], bytes(1281))), f"{images}: shape [20, 8, 8] needs a file of 1296 bytes"),
            (dict(images=idx([20, 8], bytes(160))), f"{images}: images must have rank 3, got shape [20, 8]"),
            (dict(images=idx([20, 8, 8], bytes(1280), 13)), f"{images}: element type 0x0d is not supported"),
            (dict(images=idx([19, 8, 8], bytes(1216))), f"{images}: 19 images need as many labels, got 20"),
            (dict(images=idx([20, 3, 8], bytes(480))), "data: images of 3 x 8 are too small for the network"),
            (dict(images=idx([20, 0, 8], b"")), "data: images of 0 x 8 are too small for the network"),
            (dict(labels=idx([20], bytes([7] * 19 + [10]))), f"{labels}: label 19 is 10, not a digit"),
            (dict(images=idx([1, 8, 8], bytes(64)), labels=idx([1], b"\1")), "data: 1 examples cannot be split"),
            (dict(images=idx([0, 8, 8], b""), labels=idx([0], b"")), "data: 0 examples cannot be split"),
        ]
        for files, message in bad:
            self.write(**files)
            self.refused(message, "--data", "data")
        (self.folder / images).unlink()
        self.refused("data: has train-labels-idx1-ubyte but neither train-images-idx3-ubyte nor", "--data", "data")

    def test_a_second_pair_must_fit_the_first(self) -> None:
        self.write()
        for name, data in ("images-idx3", idx([10, 9, 8], bytes(720))), ("labels-idx1", idx([10], bytes(10))):
            (self.folder / f"data/t10k-{name}-ubyte").write_bytes(data)
        self.refused("data: training images of 8 x 8, validation images of 9 x 8", "--data", "data")

    def test_packed_data(self) -> None:
        self.write()
        images = self.folder / "data/train-images-idx3-ubyte"
        whole = gzip.compress(images.read_bytes())
        images.unlink()
        packed = self.folder / "data/train-images-idx3-ubyte.gz"
        packed.write_bytes(whole)
        run = self.demo("--data", "data", "--epochs", "1", "--out", "run")
        if "this build has no zlib" in run.stderr:
            self.skipTest("built without zlib")
        self.assertEqual(run.returncode, 0, run.stderr)
        packed.write_bytes(whole[:-10])
        self.refused("data/train-images-idx3-ubyte.gz: gzip data ends early", "--data", "data")
        packed.write_bytes(whole[:20] + b"\xff" * 20 + whole[40:])
        self.refused("data/train-images-idx3-ubyte.gz: bad gzip data", "--data", "data")
        packed.write_bytes(b"not gzip at all")
        self.refused("data/train-images-idx3-ubyte.gz: bad gzip data", "--data", "data")


class Device(DemoTest):
    def test_a_device_trains_what_the_cpu_does(self) -> None:
        few = ["--train-size", 32, "--valid-size", 16, "--batch-size", 16, "--epochs", 1]
        modes = ["fp32", "tf32", "fp16", "bf16"]
        here = self.trained(*few, "--modes", ",".join(modes), modes=modes)
        there = self.trained(*few, "--modes", ",".join(modes), "--device", "cuda", modes=modes)
        for cpu, device in zip(here, there):
            self.assertAlmostEqual(float(cpu["train"]), float(device["train"]), delta=2e-3)
            self.assertAlmostEqual(float(cpu["valid"]), float(device["valid"]), delta=2e-3)
            self.assertGreater(float(device["peak"]), 0)


class RealRun(DemoTest):
    def check(self, *arguments) -> None:
        rows = self.trained(*arguments)
        accuracies = [float(row["accuracy"]) for row in rows]
        self.assertGreaterEqual(min(accuracies), 97, rows)
        self.assertLessEqual(max(accuracies) - min(accuracies), 0.5, rows)


class Default(RealRun):
    def test_every_mode_reaches_97_percent_on_drawn_digits(self) -> None:
        self.check()


class Mnist(RealRun):
    def test_every_mode_reaches_97_percent_on_real_digits(self) -> None:
        self.check("--data", os.environ["MIXTAPE_MNIST"])


if __name__ == "__main__":
    if "Mnist" in sys.argv and not os.environ.get("MIXTAPE_MNIST"):
        print("MIXTAPE_MNIST names no folder with MNIST in idx files")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
