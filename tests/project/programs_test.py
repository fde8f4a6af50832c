"""Runs the programs of examples/ like a user: help, mistakes, small runs, and results on real data. Classes named after
data are separate tests in meson.build, and skip without that data.

usage: programs_test.py FOLDER-OF-PROGRAMS CLASS..."""
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.dont_write_bytecode = True
from declared_options import declared_options

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it, and so would the programs
programs = pathlib.Path(sys.argv[1]).resolve()
root = pathlib.Path(__file__).resolve().parents[2]
script = root / "script"
ALL = ["train_images", "char_gpt", "gpt2", "llama", "one_cycle", "regression", "regression_learner", "seq2seq"]
TEXT = "".join(f"{i} green bottles hanging on the wall, " for i in range(100, 0, -1))
SMALL_GPT = ["--text", "song.txt", "--layers", "1", "--heads", "2", "--width", "16", "--context", "8", "--batch-size", "4",
             "--steps", "6", "--every", "3", "--sample", "20"]

PHOTOS = """
import os
from PIL import Image
for color in "red", "blue":
    os.makedirs("photos/" + color)
    for i in range(10):
        Image.new("RGB", (20 + 9 * i, 110 - 7 * i), color).save(f"photos/{color}/{i}.jpg")
"""
SMALL_GPT2 = ["--layers", "1", "--heads", "2", "--width", "16", "--vocabulary", "50", "--context", "8", "--batch-size", "4"]


class ProgramTest(unittest.TestCase):
    """Each test in an empty folder."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "song.txt").write_text(TEXT)

    def program(self, name: str) -> pathlib.Path:
        return programs.parent / "bench" / name if name == "train_parity" else programs / name

    def run_program(self, name: str, *arguments) -> subprocess.CompletedProcess:
        run = subprocess.run([self.program(name), *map(str, arguments)], cwd=self.folder, text=True,
                             capture_output=True, stdin=subprocess.DEVNULL)
        if lacking := re.search(r"this build (has no|lacks) \S+", run.stderr):
            self.skipTest(lacking[0])
        return run

    def output(self, name: str, *arguments) -> str:
        run = self.run_program(name, *arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def last_row(self, name: str, *arguments) -> list[float]:
        """The rows of the table of epochs: epoch, training loss, validation loss, accuracy."""
        return [float(number) for number in self.last_values(name, *arguments).split()]

    def last_values(self, name: str, *arguments) -> str:
        """The last row of the table of epochs, without its time, of a run in a folder of its own."""
        shutil.rmtree(self.folder / "runs", ignore_errors=True)
        return re.findall(r"^(\d+(?: +\d+\.\d+)+) +\d\d:\d\d$", self.output(name, *arguments), re.M)[-1]

    def refused(self, name: str, message: str, *arguments) -> None:
        """Expects a one-line message, exit code 2, and no file written."""
        before = sorted(self.folder.rglob("*"))
        run = self.run_program(name, *arguments)
        self.assertEqual((run.returncode, run.stdout), (2, ""), run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
        self.assertTrue(run.stderr.startswith(name + ": "), run.stderr)
        self.assertIn(message, run.stderr)
        self.assertEqual(sorted(self.folder.rglob("*")), before)

    def weights(self, path: str) -> dict:
        """The header of a safetensors file: dtype and shape of each tensor."""
        data = (self.folder / path).read_bytes()
        return json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])

    def finished_run(self) -> str:
        """A folder with a file that looks like a checkpoint until it is read."""
        (self.folder / "run").mkdir()
        (self.folder / "run/last.ckpt").touch()
        return "run"

    def digits(self, folder: str, digits: str, mnist: str | None = None) -> None:
        """Images of MNIST in a folder for each digit."""
        subprocess.run([script / "mnist_folder", mnist or os.environ["MIXTAPE_MNIST"], self.folder / folder, *digits],
                       check=True)

    def idx(self, size: int, labels: list[int]) -> None:
        """A folder `made` of sevens that are white and other digits that are black."""
        made = self.folder / "made"
        made.mkdir()
        (made / "train-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + bytes(labels))
        (made / "train-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, len(labels), size, size)
            + b"".join((b"\xff" if label == 7 else b"\0") * size * size for label in labels))

    def two_classes(self) -> None:
        """A folder `images` of 20 black threes and 20 white sevens, 8 x 8."""
        self.idx(8, [3, 7] * 20)
        self.digits("images", "37", str(self.folder / "made"))


class Quick(ProgramTest):
    def test_help_lists_every_option(self) -> None:
        for name in ALL:
            text = self.output(name, "--help")
            self.assertIn(f"Usage: {name}", text)
            self.assertLessEqual(max(map(len, text.splitlines())), 90, text)
            options = declared_options(root / f"examples/{name}.cpp")
            self.assertIn("--device", options)
            self.assertEqual(re.findall(r"^  (--[\w-]+)", text, re.M), options)

    def test_both_regressions_end_at_the_same_line(self) -> None:
        line = self.output("regression")
        self.assertRegex(line, r"^y = (2\.0\d|1\.9\d) x -(1\.0\d|0\.9\d), mean squared error 0\.0\d+\n$")
        self.assertEqual(self.output("regression_learner"), line)

    def test_seq2seq_learns_to_read_dates(self) -> None:
        small = ["seq2seq", "--width", 16, "--heads", 2, "--layers", 1, "--batch-size", 16, "--steps", 20, "--every", 10]
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", self.output(*small, "--lr", 0.01))]
        self.assertLess(losses[1], losses[0])
        for dtype in "fp16", "bf16":
            text = self.output(*small, "--dtype", dtype, "--date", "Nov 27, 2026")
            self.assertRegex(text, r"\nNov 27, 2026       -> .{10}\n$")
        self.refused("seq2seq", '"Q" has a character that no date has', "--date", "Q")
        self.refused("seq2seq", '"September 21, 2026!!" is longer than 18 characters', "--date", "September 21, 2026!!")
        self.refused("seq2seq", "--width 63 is not a multiple of --heads 4", "--width", 63)

    def test_exit_codes_where_nothing_can_be_written(self) -> None:
        with open("/dev/full", "w") as full:
            for argument, stream, code in ("--bogus", "stderr", 2), ("--help", "stdout", 1), ("--device=cpu", "stdout", 1):
                run = subprocess.run([self.program("regression"), argument], stdin=subprocess.DEVNULL,
                                     **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: full}))
                self.assertEqual(run.returncode, code, argument)

    def test_each_model_takes_a_step(self) -> None:
        for model in "simple", "resnet20", "resnet18", "resnet34", "resnet50":
            self.assertRegex(self.output("train_images", "--benchmark", "--model", model, "--batch-size", 2, "--steps", 1),
                             r"[\d.]+ ms per step \(median of 1\), [\d.]+ images/s, peak [\d.]+ MiB\n$")
        self.assertFalse((self.folder / "runs").exists())

    def test_training_leaves_weights_and_a_log(self) -> None:
        few = ["train_images", "--dataset", "digits:64", "--epochs", 2, "--batch-size", 16]
        for dtype, stored in (["fp32"], "F32"), (["bf16"], "F32"), (["float16"], "F32"), (["f16", "--masters"], "F16"):
            row = self.last_row(*few, "--dtype", *dtype)
            log = [json.loads(line) for line in (self.folder / "runs/train_images/metrics.jsonl").read_text().splitlines()]
            self.assertEqual([line["epoch"] for line in log], [0, 1])
            self.assertAlmostEqual(log[1]["valid_loss"], row[2], places=5)
            weights = self.weights("runs/train_images/weights.safetensors")
            self.assertEqual(weights.pop("__metadata__"), {"model": "simple"})
            self.assertEqual((weights["4.weight"]["shape"], weights["4.weight"]["dtype"]), ([10, 128], stored))

    def test_workers_change_nothing(self) -> None:
        few = ["train_images", "--dataset", "digits:64", "--epochs", 1, "--batch-size", 16]
        self.assertEqual(self.last_row(*few), self.last_row(*few, "--workers", 2))
        self.assertNotEqual(self.last_row(*few), self.last_row(*few, "--seed", 2))

    def test_images_of_a_folder_in_another_size(self) -> None:
        self.two_classes()
        shutil.copytree(self.folder / "images", self.folder / "larger/train")
        made = self.folder / "made"
        shutil.rmtree(made)
        self.idx(11, [3, 7] * 6)
        self.digits("larger/val", "37", str(made))  # images of another size
        few = ["train_images", "--dataset", "folder:larger", "--size", 12, "--epochs", 3, "--batch-size", 8, "--optimizer",
               "sgd:momentum=0.9,weight_decay=1e-4", "--lr", 0.05, "--lr-schedule", "step:1,2"]
        row = self.last_row(*few, "--mixup", 0.2)
        self.assertEqual(row[3], 1)
        self.assertEqual(self.last_row(*few, "--mixup", 0.2, "--workers", 2), row)
        self.assertEqual(self.last_row(*few, "--cutmix", 1)[3], 1)
        for dtype in "float16", "bfloat16":
            self.assertEqual(self.last_row(*few, "--dtype", dtype)[3], 1, dtype)
        self.assertNotEqual(self.last_row(*few, "--rand-augment", 9)[1], self.last_row(*few)[1])
        text = self.output("train_images", "--model", "resnet18", "--dataset", "folder:larger", "--size", 16, "--epochs", 1,
                           "--lr-schedule", "constant", "--out", "deep")
        self.assertIn("40 training and 12 validation images, 2 classes\nresnet18: ", text)
        self.assertEqual(self.weights("deep/weights.safetensors")["fc.weight"]["shape"], [2, 512])

    def test_mxnets_example(self) -> None:
        """Fine-tuning in float16, by name, on photographs of any size."""
        draw = subprocess.run([os.environ.get("MIXTAPE_PYTHON", sys.executable), "-c", PHOTOS], cwd=self.folder, capture_output=True)
        if draw.returncode != 0:
            self.skipTest("needs Python with Pillow (MIXTAPE_PYTHON names the interpreter)")
        few = ["train_images", "--model", "resnet50", "--dataset", "folder:photos", "--size", 32, "--epochs", 1, "--batch-size", 8]
        self.output(*few, "--out", "first")
        text = self.output(*few, "--dtype", "float16", "--fine-tune", "first/weights.safetensors",
                           "--lr-schedule", "step:30,60,80", "--workers", 4)
        self.assertRegex(text, r"loaded 320 tensors from first/weights.safetensors\n(.*\n)+0 +\d+\.\d+ ")

    def test_gpt_learns_saves_and_goes_on(self) -> None:
        text = self.output("char_gpt", *SMALL_GPT, "--steps", 60, "--every", 60, "--lr", 0.02, "--save", "gpt.safetensors",
                           "--prompt", "green")
        self.assertRegex(text.splitlines()[0], r"^\d+ characters, \d+ different; \d+ parameters; f32$")
        written = text.splitlines()[-1]
        self.assertEqual((written[:5], len(written)), ("green", 25))
        likeliest = ["--load", "gpt.safetensors", "--steps", 0, "--temperature", 0, "--prompt", "on"]
        one, two = (self.output("char_gpt", *SMALL_GPT, *likeliest, "--seed", seed) for seed in (1, 2))
        self.assertEqual(one, two)
        self.assertNotEqual(one, self.output("char_gpt", *SMALL_GPT, *likeliest[2:]))
        for dtype in "fp16", "bf16":
            self.assertIn(dtype.replace("fp", "f"), self.output("char_gpt", *SMALL_GPT, "--dtype", dtype, "--top-k", 3))

    def test_gpt2_learns_tokens_of_a_file(self) -> None:
        pattern = [7, 3, 11, 3, 2] * 40  # what comes next is known, but for a 3 as the first token
        words = struct.pack(f"<{len(pattern)}H", *pattern)
        header = struct.pack("<3I", 20240520, 1, len(pattern))
        (self.folder / "nano.bin").write_bytes(words)
        (self.folder / "llm.bin").write_bytes(header.ljust(1024, b"\0") + words)
        learned = [self.output("gpt2", *SMALL_GPT2, "--data", f"{name}.bin", "--valid", f"{name}.bin", "--steps", 240,
                               "--lr", 0.006, "--every", 120, "--warmup", 5, "--dtype", "float32", "--save", "gpt2.safetensors")
                   for name in ("nano", "llm")]
        lines = learned[0].splitlines()
        self.assertRegex(lines[0], r"^\d+ parameters, 24 windows of 8 tokens from nano.bin, f32$")
        self.assertRegex(lines[1], r"^step 120/240  loss \d\.\d{4}  norm \d+\.\d{3}  lr 3\.\d\de-03  \d+ ms  \d+\.\dk tokens/s$")
        self.assertEqual(lines[3], "wrote gpt2.safetensors")
        self.assertLess(float(lines[4].removeprefix("loss of nano.bin: ")), 0.4)
        self.assertEqual(lines[4].split()[-1], learned[1].splitlines()[4].split()[-1])
        again = self.output("gpt2", *SMALL_GPT2, "--data", "nano.bin", "--load", "gpt2.safetensors", "--steps", 1)
        self.assertLess(float(re.search(r"loss (\S+)", again)[1]), 0.6)
        with open("/dev/full", "w") as full:
            run = subprocess.run([self.program("gpt2"), *map(str, SMALL_GPT2), "--data", "nano.bin", "--steps", "2"],
                                 cwd=self.folder, stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual((run.returncode, run.stderr), (1, "gpt2: cannot write to the standard output\n"))

    def test_gpt2_learns_a_text_and_continues_it(self) -> None:
        (self.folder / "song.txt").write_text("one two three four, " * 80)
        data = pathlib.Path(__file__).parent.parent / "data"
        for name in "vocab.json", "merges.txt":
            shutil.copy(data / f"tokenizer_{name}", self.folder / name)
        small = ["gpt2", *SMALL_GPT2, "--vocabulary", 600, "--dtype", "float32", "--tokenizer", "vocab.json", "--prompt", "one two three"]
        likeliest = ["--temperature", 0, "--sample", 12]
        learned = self.output(*small, *likeliest, "--data", "song.txt", "--steps", 150, "--lr", 0.02, "--every", 150, "--save", "song.pt")
        self.assertTrue(learned.splitlines()[-1].startswith("one two three four, one"), learned)
        again = self.output(*small, *likeliest, "--steps", 0, "--load", "song.pt")
        self.assertEqual(again.splitlines(), learned.splitlines()[-1:])
        # The tokenizer has 501 of the model's 600 tokens, and no other is drawn.
        self.output(*small, "--data", "song.txt", "--steps", 1, "--temperature", 100, "--top-k", 0, "--sample", 100, "--save", "song.gguf")
        self.assertEqual((self.folder / "song.gguf").read_bytes()[:4], b"GGUF")

    def test_gpt2_measures_with_random_tokens(self) -> None:
        for dtype, accumulate in ("bfloat16", 1), ("float16", 2):
            text = self.output("gpt2", *SMALL_GPT2, "--steps", 2, "--dtype", dtype, "--accumulate", accumulate, "--peak", 0.5)
            self.assertRegex(text, r"(?m)^step 2/2  loss 3\.[89].* % of 0.5 TFLOP/s$")

    def test_plans_need_neither_memory_nor_device(self) -> None:
        for device in "cpu", "cuda":
            text = self.output("gpt2", *SMALL_GPT2, "--plan", 0.5, "--device", device)
            self.assertRegex(text, rf"^gpt2, batches of 4 texts, on meta:{device}\n"
                                   r"MiB +peak +weights .* +activations +batch in 0.5 GiB\n"
                                   r"float32 +\d+\.\d.* +\d+\nfloat32, i8 state ")
            self.assertEqual(text.count("\n"), 14)
            text = self.output("train_images", "--plan", 80, "--model", "resnet50", "--device", device)
            self.assertRegex(text, rf"^resnet50, batches of 64 images, 224 x 224, on meta:{device}\n")
            peaks = [float(peak) for peak in re.findall(r"(?m)^\w+(?: with masters)? +(\d+\.\d)", text)]
            self.assertEqual(len(peaks), 4)
            self.assertEqual(max(peaks), peaks[0], "halves of activations")

    def test_llama_continues_a_text(self) -> None:
        width, layers = 8, {f"model.layers.0.{name}.weight": shape for name, shape in {
            "self_attn.q_proj": [16, 8], "self_attn.k_proj": [8, 8], "self_attn.v_proj": [8, 8], "self_attn.o_proj": [8, 16],
            "mlp.gate_proj": [12, 8], "mlp.up_proj": [12, 8], "mlp.down_proj": [8, 12], "input_layernorm": [8],
            "post_attention_layernorm": [8]}.items()}
        shapes = {"model.embed_tokens.weight": [502, width], "model.norm.weight": [width], **layers}
        config = {"model_type": "llama", "vocab_size": 502, "hidden_size": width, "intermediate_size": 12, "head_dim": 4,
                  "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True,
                  "max_position_embeddings": 32, "bos_token_id": 501, "eos_token_id": 500}
        data, header, draw = b"", {}, random.Random(1)
        for name, shape in shapes.items():
            values = [draw.gauss(0, 1) for _ in range(math.prod(shape))]
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
            data += struct.pack(f"<{len(values)}f", *values)
        text = json.dumps(header).encode()
        (self.folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
        (self.folder / "config.json").write_text(json.dumps(config))
        tokenizer = (pathlib.Path(__file__).parent.parent / "data/tokenizer_tiny.json").read_text()
        (self.folder / "tokenizer.json").write_text(tokenizer.replace('"ignore_merges": false', '"ignore_merges": true'))
        likeliest = ["llama", "--model", ".", "--prompt", "one two", "--sample", 12, "--temperature", 0]
        wide = self.output(*likeliest, "--dtype", "float32", "--save", "x.gguf").splitlines()
        self.assertEqual(wide[0], "wrote x.gguf")
        self.assertTrue(wide[1].startswith("one two"), wide)
        self.assertGreater(len("\n".join(wide[1:])), len("one two"))
        self.assertEqual((self.folder / "x.gguf").read_bytes()[:4], b"GGUF")
        self.assertEqual(self.output(*likeliest, "--dtype", "float32").splitlines(), wide[1:])
        self.assertTrue(self.output(*likeliest[:6], 5, "--top-k", 5, "--top-p", 0.9).startswith("one two"))
        self.refused("llama", "--model is required")
        self.refused("llama", "config.json/x: ", *likeliest[1:], "--save", "config.json/x")
        self.refused("llama", "without --prompt or --save there is nothing to do", "--model", ".")
        (self.folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
        self.refused("llama", 'config.json: model_type is "mamba", not llama', *likeliest[1:])

    def test_one_cycle_tells_black_from_white(self) -> None:
        self.two_classes()
        few = ["one_cycle", "--data", "images", "--epochs", 20]
        self.assertEqual(self.last_row(*few)[3], 1)
        self.digits("more", "0", str(self.folder / "made"))  # there is none
        self.refused("one_cycle", "more", "--data", "more")
        (self.folder / "images/9").mkdir()
        (self.folder / "images/9/0.png").write_bytes(next((self.folder / "images/3").iterdir()).read_bytes())
        self.refused("one_cycle", "images: needs 2 classes, got 3", "--data", "images")
        (self.folder / "images/9/0.png").rename(self.folder / "images/9.png")
        (self.folder / "images/9").rmdir()
        for file in (self.folder / "images/3").iterdir():
            file.write_bytes(b"no image")
        self.refused("one_cycle", ".png: ", "--data", "images")

    def test_signals_keep_what_was_learned(self) -> None:
        for number, code in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            run = subprocess.Popen([programs / "char_gpt", *SMALL_GPT, "--steps", "1000000", "--every", "500", "--save",
                                    "gpt.safetensors"], cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while not (line := run.stdout.readline()).startswith("epoch"):  # from here on signals are heard
                self.assertTrue(line, "it ended early")
            run.send_signal(number)
            output, error = run.communicate()
            self.assertEqual(run.returncode, code)
            self.assertEqual(error.splitlines()[-1], "char_gpt: interrupted: gpt.safetensors holds what was learned so far")
            self.assertIn("wrote gpt.safetensors", output)
            self.assertIn("wte.weight", self.weights("gpt.safetensors"))
            (self.folder / "gpt.safetensors").unlink()
        run = subprocess.Popen([programs / "seq2seq", *"--width 16 --heads 2 --layers 1 --steps 1000000 --every 2".split()],
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while not (line := run.stdout.readline()).startswith("step"):
            self.assertTrue(line, "it ended early")
        run.send_signal(signal.SIGINT)
        self.assertEqual((run.communicate()[1], run.returncode), ("seq2seq: interrupted: nothing was saved\n", 130))

    def test_resumes_after_ctrl_c(self) -> None:
        self.two_classes()
        weights = {"train_images": "{}/weights.safetensors", "char_gpt": "{}.safetensors", "one_cycle": None}
        for name, arguments in {
            "train_images": ["--dataset", "digits:256", "--epochs", 12, "--batch-size", 8],
            "char_gpt": [*SMALL_GPT, "--steps", 2400, "--every", 200, "--sample", 0],
            "one_cycle": ["--data", "images", "--epochs", 60],
        }.items():
            def command(out: str) -> list:
                return [name, *arguments, "--out", out, *(["--save", out + ".safetensors"] if name == "char_gpt" else [])]

            whole = self.last_values(*command("whole"))
            run = subprocess.Popen([self.program(name), *map(str, command("cut")[1:])], cwd=self.folder, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            while not (line := run.stdout.readline()).startswith("0 "):  # the first epoch's row
                self.assertTrue(line, "it ended early")
            run.send_signal(signal.SIGINT)
            _, error = run.communicate()
            self.assertEqual(run.returncode, 130, error)
            self.assertEqual(error.splitlines()[-1], f"{name}: interrupted: cut holds what was learned: --resume continues")
            self.assertEqual(self.last_values(*command("cut"), "--resume"), whole, name)
            if file := weights[name]:
                one, two = ((self.folder / file.format(out)).read_bytes() for out in ("whole", "cut"))
                self.assertEqual(one, two, name)
            for out in "whole", "cut":
                shutil.rmtree(self.folder / out)


class Parity(ProgramTest):
    """bench/train_parity, which has the same command line."""

    def test_help_lists_every_option(self) -> None:
        text = self.output("train_parity", "--help")
        options = re.findall(r'line\.add\("(--[\w-]+)"', (root / "bench/train_parity.cpp").read_text())
        self.assertEqual(re.findall(r"^  (--[\w-]+)", text, re.M), options)

    def test_each_network_and_mode_has_a_row(self) -> None:
        self.idx(28, [3, 7] * 40)
        run = self.run_program("train_parity", "--mnist", "made", "--text", "song.txt", "--seeds", 1, "--steps", 1,
                               "--page", "page.md")
        text = run.stdout
        self.assertEqual(run.returncode, int("BEYOND" in text), run.stderr)  # after one step
        rows = re.findall(r"^\| (\w+) \| ([\w-]+) \| \d\.\d{4} ± 0.0000 \| \d+\.\d\d % \|", text, re.M)
        modes = ["fp32", "fp16", "bf16", "masters", "stochastic", "kahan", "i8", "f8", "stochastic-i8",
                 "stochastic-bf16", "fp8", "fp8-delayed", "mxfp8", "nvfp4"]
        self.assertEqual(rows, [(network, mode) for network in ("cnn", "lstm", "gpt") for mode in modes])
        self.assertEqual((self.folder / "page.md").read_text(), text)

    def test_mistakes(self) -> None:
        self.refused("train_parity", "The following argument was not expected: --bogus", "--bogus")
        self.refused("train_parity", "nothing to train (--help lists the options)")
        self.refused("train_parity", '--models: "rnn" is not cnn, lstm or gpt', "--models", "rnn")
        self.refused("train_parity", "none", "--mnist", "none")


class Mistakes(ProgramTest):
    def test_options(self) -> None:
        for name in ALL:
            self.refused(name, "The following argument was not expected: --bogus (--help lists the options)",
                         *{"char_gpt": ["--text", "song.txt"], "one_cycle": ["--data", "."], "llama": ["--model", "."]}.get(name, []),
                         "--bogus")
        for name in "regression", "regression_learner":
            self.refused(name, "unknown device 'gpu'", "--device", "gpu")
        for name, given in (("train_images", []), ("char_gpt", ["--text", "song.txt"]), ("gpt2", []), ("seq2seq", []),
                            ("one_cycle", ["--data", "."])):
            self.refused(name, '--dtype: "fp8" is not float32, float16 or bfloat16', *given, "--dtype", "fp8")
            self.refused(name, '--dtype: "int64" is not float32', *given, "--dtype", "int64")
            self.refused(name, '--batch-size: "0" is not a whole number from 1 to 1000000', *given, "--batch-size=0")
            self.refused(name, '--lr: "nan" is not a number from 1e-12 to 1000000', *given, "--lr=nan")
            self.refused(name, '--seed: "-1" is not a whole number', *given, "--seed=-1")
            self.refused(name, "unknown device 'gpu'", *given, "--device", "gpu")
            self.refused(name, "there is no device cuda:9", *given, "--device", "cuda:9")
        self.refused("char_gpt", "--text is required")
        self.refused("one_cycle", "--data is required")

    def test_images(self) -> None:
        self.refused("train_images", '--model: "vgg" is not simple, resnet20, resnet32, ', "--model", "vgg")
        self.refused("train_images", '--dataset: "coco" is not mnist, cifar10, cifar100, folder or digits', "--dataset",
                     "coco:x")
        self.refused("train_images", "--dataset mnist: no folder; mnist:DIR names one", "--dataset", "mnist")
        self.refused("train_images", 'digits: "3" is not a whole number from 4 to', "--dataset", "digits:3")
        self.refused("train_images", "none: no such folder", "--dataset", "mnist:none")
        for kind in "cifar10", "cifar100", "folder":
            self.refused("train_images", "none", "--dataset", f"{kind}:none")
        self.refused("train_images", "--masters needs --dtype float16, not bf16", "--masters", "--dtype", "bf16")
        self.refused("train_images", "none: cannot open", "--dataset", "digits:8", "--fine-tune", "none")
        self.refused("train_images", "--steps needs --benchmark", "--steps", 3)
        self.refused("train_images", '--lr-schedule: "warp" is not a schedule: constant, step, ', "--lr-schedule", "warp")
        self.refused("train_images", '--lr-schedule: the schedule "step:3,x" has "x" in place of a number', "--lr-schedule", "step:3,x")
        self.refused("train_images", '--optimizer: "adem" is not an optimizer: sgd, adam', "--optimizer", "adem")
        self.refused("train_images", '--optimizer: "momentum" is not an option=number', "--optimizer", "sgd:momentum")
        self.refused("train_images", "--optimizer: no option 'x' in sgd, which has lr", "--optimizer", "sgd:x=1")
        self.refused("train_images", "--optimizer: the rate is --lr", "--optimizer", "sgd:lr=0.5")
        self.refused("train_images", '--optimizer: t0: "1e13" is not a number from ', "--optimizer", "asgd:t0=1e13")
        self.refused("train_images", "--lr-schedule: the fraction that decays must be from 0 to 1, got 2", "--lr-schedule", "wsd:2")
        self.refused("train_images", "--size needs --dataset folder:DIR", "--size", 64)
        self.refused("train_images", "--rand-augment needs --size", "--rand-augment", 9, "--dataset", "folder:none")
        for ignored in "--dataset=digits", "--size=64", "--lr-schedule=constant", "--optimizer=sgd", "--mixup=1", "--cutmix=1", "--epochs=2", "--lr=1", "--workers=1", "--fine-tune=x", "--out=x", "--resume", "--profile=x":
            self.refused("train_images", f"--benchmark and {ignored.split('=')[0]} exclude each other", "--benchmark", ignored)
        self.refused("train_images", "--plan and --dtype exclude each other", "--plan", 1, "--dtype", "bf16")
        self.refused("train_images", "--plan and --dataset exclude each other", "--plan", 1, "--dataset", "digits")
        self.refused("train_images", "--benchmark and --plan exclude each other", "--plan", 1, "--benchmark")
        self.refused("train_images", "--resume: there is no runs/train_images/last.ckpt", "--resume")
        self.refused("train_images", "--resume and --fine-tune exclude each other", "--resume", "--fine-tune", "x", "--out",
                     self.finished_run())
        (self.folder / "taken/weights.safetensors").mkdir(parents=True)
        self.refused("train_images", "taken/weights.safetensors: not a regular file", "--dataset", "digits:8", "--out",
                     "taken")
        self.refused("train_images", "song.txt/run: cannot make this folder", "--dataset", "digits:8", "--out",
                     "song.txt/run")
        self.refused("one_cycle", "none", "--data", "none")

    def test_texts(self) -> None:
        self.refused("gpt2", "none: cannot open", "--data", "none")
        (self.folder / "song.bin").write_bytes((self.folder / "song.txt").read_bytes())
        self.refused("gpt2", "song.bin: token 30496 is not among 50", *SMALL_GPT2, "--data", "song.bin")
        (self.folder / "few.bin").write_bytes(bytes(20))
        self.refused("gpt2", "few.bin: 10 tokens are less than a batch of 4 x 8", *SMALL_GPT2, "--data", "few.bin")
        self.refused("gpt2", "--warmup 20 leaves none of 20 steps", *SMALL_GPT2, "--warmup", 20)
        self.refused("gpt2", "song.txt: a text needs --tokenizer", *SMALL_GPT2, "--data", "song.txt")
        self.refused("gpt2", "--prompt needs --tokenizer", *SMALL_GPT2, "--prompt", "a")
        self.refused("gpt2", "--steps 0 without --prompt or --valid does nothing", *SMALL_GPT2, "--steps", 0)
        self.refused("gpt2", "tokenizer_tiny.json has 502 tokens, more than the model's 50", *SMALL_GPT2, "--prompt", "a",
                     "--tokenizer", pathlib.Path(__file__).parent.parent / "data/tokenizer_tiny.json")
        self.refused("gpt2", "--context must be at most 1024, got 2000", *SMALL_GPT2, "--context", 2000)
        self.refused("gpt2", "gpt2: song.txt: a header of", *SMALL_GPT2, "--load", "song.txt")
        self.refused("gpt2", "--prompt: must not be empty", *SMALL_GPT2, "--prompt", "")
        self.refused("gpt2", "Gpt: a width of 16 does not divide into 3 heads", *SMALL_GPT2, "--heads", 3)
        self.refused("char_gpt", "none: cannot open", "--text", "none")
        self.refused("char_gpt", "song.txt: 379 characters to validate with", "--text", "song.txt", "--context", 400)
        self.refused("char_gpt", "--resume needs --out", *SMALL_GPT, "--resume")
        self.refused("char_gpt", "--resume: there is no x/last.ckpt", *SMALL_GPT, "--resume", "--out", "x")
        self.refused("char_gpt", "--resume and --load exclude each other", *SMALL_GPT, "--resume", "--load", "x", "--out",
                     self.finished_run())
        self.refused("char_gpt", "--save gpt with --steps 0", *SMALL_GPT, "--save", "gpt", "--steps", 0)
        self.refused("char_gpt", "--steps 5 is not a multiple of --every 2", "--text", "song.txt", "--steps", 5, "--every", 2)
        self.refused("char_gpt", 'character "é" is not among the', "--text", "song.txt", "--prompt", "é")
        self.refused("char_gpt", "too few for 999999 steps of 4 between validations", *SMALL_GPT, "--steps", 999999,
                     "--every", 999999)
        self.refused("char_gpt", "Gpt: a width of 16 does not divide into 3 heads", *SMALL_GPT, "--heads", 3)
        self.refused("char_gpt", "--top-k must be at most", *SMALL_GPT, "--top-k", 99)
        self.refused("char_gpt", "--save x.GGUF: gpt2 writes .gguf, not char_gpt", *SMALL_GPT, "--save", "x.GGUF")
        self.refused("char_gpt", "--prompt: must not be empty", *SMALL_GPT, "--prompt", "")
        self.refused("char_gpt", "song.txt/run: cannot make this folder", *SMALL_GPT, "--out", "song.txt/run")
        self.refused("char_gpt", "song.txt/gpt: ", *SMALL_GPT, "--save", "song.txt/gpt")
        self.refused("char_gpt", "--save ./song.txt would overwrite song.txt, which is read", *SMALL_GPT, "--save", "./song.txt")
        self.output("char_gpt", *SMALL_GPT, "--save", "gpt.safetensors")
        self.refused("char_gpt", "gpt.safetensors: the state does not fit the module: wpe.weight", *SMALL_GPT, "--load",
                     "gpt.safetensors", "--context", 9)
        (self.folder / "other.txt").write_text((self.folder / "song.txt").read_text().replace("e", "E"))
        self.refused("char_gpt", "gpt.safetensors: was trained on other characters than those of other.txt", *SMALL_GPT,
                     "--text", "other.txt", "--load", "gpt.safetensors")

    def test_weights_of_another_model(self) -> None:
        few = ["--dataset", "digits:16", "--batch-size", 8, "--epochs", 1]
        self.output("train_images", *few)
        self.refused("train_images", "weights.safetensors: the state does not fit the module: missing: conv1.weight", *few,
                     "--model", "resnet20", "--fine-tune", "runs/train_images/weights.safetensors", "--out", "other")

    def test_another_run_to_resume(self) -> None:
        self.two_classes()
        shutil.copy(self.folder / "song.txt", self.folder / "moved.txt")
        (self.folder / "other.txt").write_text(TEXT.replace("e", "E"))
        shutil.copytree(self.folder / "images", self.folder / "fewer")
        next((self.folder / "fewer/3").iterdir()).unlink()
        runs = {"train_images": ["--dataset", "digits:64", "--batch-size", 8, "--epochs", 1],
                "char_gpt": SMALL_GPT, "one_cycle": ["--data", "images", "--batch-size", 8]}
        others = {"train_images": [("--model", "simple", "resnet20"), ("--epochs", 1, 2), ("--chunks", 0, 2),
                                   ("--optimizer", "adamw", "sgd"), ("--mixup", 0, 0.2)],
                  "char_gpt": [("--width", 16, 32), ("--steps", 6, 9), ("--dropout", 0, 0.1)], "one_cycle": [("--epochs", 1, 2)]}
        data = {"train_images": ("--dataset", "digits:80", "of 64 training and 16 validation images with mean ["),
                "char_gpt": ("--text", "other.txt", f"of {len(TEXT)} characters, with the checksum "),
                "one_cycle": ("--data", "fewer", "of 34 training and 6 validation images with mean [")}
        same = {"train_images": ["--workers", 1, "--shards", "--lr", "1e-2"], "one_cycle": ["--data", "./images"],
                "char_gpt": ["--text", "moved.txt", "--temperature", 0, "--sample", 3, "--prompt", "on", "--save", "x"]}
        for name, given in runs.items():
            run = [name, *given, "--out", f"{name}_run"]
            self.output(*run)
            kept = (self.folder / f"{name}_run/last.ckpt").read_bytes()
            self.refused(name, f"{name}_run/last.ckpt is of an earlier run: --resume continues it, another --out keeps it", *run[1:])
            for option, then, now in [("--seed", 1, 5), ("--batch-size", given[given.index("--batch-size") + 1], 2), *others[name]]:
                self.refused(name, f"{name}_run/last.ckpt: saved with {option} {then}, not {now}", *run[1:], "--resume", option, now)
            for option in "--lr", "--dtype":
                self.refused(name, f"last.ckpt: saved with {option} ", *run[1:], "--resume", option, {"--lr": 1, "--dtype": "bf16"}[option])
            self.output(*run, "--resume", *same[name])
            self.assertEqual((self.folder / f"{name}_run/last.ckpt").read_bytes(), kept)
            option, other, then = data[name]
            self.refused(name, f"last.ckpt: saved with {option} {then}", *run[1:], "--resume", option, other)
        # A checkpoint of an earlier version names none of them.
        size = struct.unpack_from("<Q", kept)[0]
        header = json.loads(kept[8:8 + size])
        header["__metadata__"] = {key: value for key, value in header["__metadata__"].items() if not key.startswith("--")}
        text = json.dumps(header, separators=(",", ":")).encode().ljust(size)
        (self.folder / "one_cycle_run/last.ckpt").write_bytes(struct.pack("<Q", size) + text + kept[8 + size:])
        self.output("one_cycle", *runs["one_cycle"], "--out", "one_cycle_run", "--resume", "--seed", 5)
        (self.folder / "one_cycle_run/last.ckpt").write_bytes(b"no checkpoint")
        self.refused("one_cycle", "last.ckpt: ", *runs["one_cycle"], "--out", "one_cycle_run", "--resume")
        (self.folder / "one_cycle_run/last.ckpt").unlink()
        self.refused("one_cycle", "metrics.jsonl is of an earlier run", *runs["one_cycle"], "--out", "one_cycle_run")
        (self.folder / "one_cycle_run/metrics.jsonl").write_bytes(b"")  # of one that was killed in its first batch
        self.output("one_cycle", *runs["one_cycle"], "--out", "one_cycle_run")

    def test_environment_device_and_chunks(self) -> None:
        few = {"train_images": ["--dataset", "digits:64", "--batch-size", 8], "char_gpt": SMALL_GPT, "gpt2": SMALL_GPT2, "seq2seq": [],
               "regression": [], "regression_learner": []}
        for name, given in few.items():
            self.refused(name, "--device meta:cpu: tensors there have no values", *given, "--device", "meta:cpu")
            for variable, message in ("MIXTAPE_ISA", "MIXTAPE_ISA must be "), ("MIXTAPE_NUM_THREADS", "MIXTAPE_NUM_THREADS must be a"):
                with unittest.mock.patch.dict(os.environ, {variable: "foo"}):
                    self.refused(name, f"{name}: {message}", *given)
        self.refused("train_images", "--device meta:cpu: tensors", "--benchmark", "--device", "meta:cpu")
        for name in "train_images", "char_gpt", "gpt2":
            size = given[given.index("--batch-size") + 1] if (given := few[name]) else 0
            self.refused(name, f"batches of {size} cannot be cut into 16 chunks", *given, "--chunks", 16)

    def test_plans(self) -> None:
        self.refused("gpt2", "unknown device 'gpu'", "--plan", 1, "--device", "gpu")
        self.refused("gpt2", "Gpt: a width of 16 does not divide into 3 heads", *SMALL_GPT2, "--plan", 1, "--heads", 3)
        self.refused("train_images", "unknown device 'gpu'", "--plan", 1, "--device", "gpu")
        self.refused("gpt2", " bytes, and a step can take none of ", *SMALL_GPT2, "--plan", 1000000, "--context", 1024)
        self.assertRegex(self.output("train_images", "--plan", 1000000), r"batch in 1e\+06 GiB\nfloat32 .* 1073741824\n")
        self.assertIn("on meta:cuda\n", self.output("train_images", "--plan", 1, "--device", "meta:cuda"))


class Device(ProgramTest):
    """Runs on a device, if there is one, with the results of the CPU."""

    def alike(self, name: str, *arguments) -> None:
        for dtype in "fp32", "fp16", "bf16":
            here = self.last_row(name, *arguments, "--dtype", dtype)
            there = self.last_row(name, *arguments, "--dtype", dtype, "--device", "cuda")
            for cpu, device in zip(here[1:3], there[1:3]):
                self.assertAlmostEqual(cpu, device, delta=0.02, msg=dtype)

    def test_images(self) -> None:
        few = ["--dataset", "digits:16", "--batch-size", 8, "--epochs", 1]
        self.alike("train_images", *few)
        self.last_row("train_images", *few, "--dtype", "fp16", "--masters", "--device", "cuda")
        self.assertIn("on cuda:0", self.output("train_images", "--benchmark", "--batch-size", 2, "--steps", 1, "--device",
                                               "cuda"))

    def test_one_cycle(self) -> None:
        self.two_classes()
        self.alike("one_cycle", "--data", "images")

    def test_seq2seq(self) -> None:
        few = ["seq2seq", "--width", 16, "--heads", 2, "--layers", 1, "--batch-size", 4, "--steps", 2, "--every", 1]
        here, there = (re.findall(r"loss (\S+)", self.output(*few, "--device", d)) for d in ("cpu", "cuda"))
        for cpu, device in zip(here, there, strict=True):
            self.assertAlmostEqual(float(cpu), float(device), delta=0.001)

    def test_regression(self) -> None:
        for name in "regression", "regression_learner":
            self.assertEqual(self.output(name), self.output(name, "--device", "cuda"))

    def test_gpt2(self) -> None:
        for dtype in "fp32", "fp16", "bf16":
            few = ["gpt2", *SMALL_GPT2, "--steps", 3, "--dtype", dtype]
            here, there = (re.findall(r"loss (\S+)", self.output(*few, "--device", d)) for d in ("cpu", "cuda"))
            for cpu, device in zip(here, there, strict=True):
                self.assertAlmostEqual(float(cpu), float(device), delta=0.02, msg=dtype)

    def test_text(self) -> None:
        self.alike("char_gpt", *SMALL_GPT, "--every", 6, "--sample", 3)


class Mnist(ProgramTest):
    def test_train_images_reaches_98_percent(self) -> None:
        row = self.last_row("train_images", "--dataset", f"mnist:{os.environ['MIXTAPE_MNIST']}", "--model", "simple",
                            "--dtype", "float16")
        self.assertGreaterEqual(row[3], 0.98, row)

    def test_one_cycle_tells_threes_from_sevens(self) -> None:
        self.digits("images", "37")
        accuracy = {dtype: [self.last_row("one_cycle", "--data", "images", "--dtype", dtype, "--seed", seed)[3]
                            for seed in range(1, 11)] for dtype in ("fp16", "fp32", "bf16")}
        self.assertGreaterEqual(min(map(min, accuracy.values())), 0.967, accuracy)  # the aim is 0.963
        for dtype in "fp32", "bf16":
            self.assertAlmostEqual(accuracy[dtype][0], accuracy["fp16"][0], delta=0.01, msg=accuracy)

    def test_fine_tuning_takes_all_but_the_head(self) -> None:
        self.output("train_images", "--dataset", "digits:64", "--epochs", 1, "--model", "resnet20")
        self.digits("images", "37")
        # Synthetic digits are grey; folders have three channels.
        self.refused("train_images", "conv1.weight", "--dataset", "folder:images", "--model", "resnet20", "--fine-tune",
                     "runs/train_images/weights.safetensors", "--out", "new")
        self.output("train_images", "--dataset", "folder:images", "--epochs", 1, "--out", "two")
        text = self.output("train_images", "--dataset", "folder:images", "--epochs", 1, "--fine-tune",
                           "two/weights.safetensors", "--out", "tuned")
        self.assertIn("loaded 16 tensors from two/weights.safetensors\n", text)
        self.digits("more", "123")
        text = self.output("train_images", "--dataset", "folder:more", "--epochs", 1, "--fine-tune",
                           "two/weights.safetensors", "--out", "more_tuned")
        self.assertIn("loaded 14 tensors from two/weights.safetensors; 4.weight and 4.bias keep their initial values\n", text)


if __name__ == "__main__":
    if "Mnist" in sys.argv and not os.environ.get("MIXTAPE_MNIST"):
        print("MIXTAPE_MNIST names no folder with MNIST in idx files")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
