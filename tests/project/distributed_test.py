"""Runs the programs of examples/ on several processes: the same bytes on any number of them, also where a run is killed and goes on
with fewer, and mistakes in one line. Skips where that MPI is not here.

usage: distributed_test.py ENGINE FOLDER-OF-PROGRAMS [PLUGIN...], ENGINE being openmpi, mpich or tcp"""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "script"))
import launchers  # noqa: E402

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it, and so would the programs
mpi, programs = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
script = launchers.SCRIPT
TRAIN = ["train_images", "--dataset", "digits:120", "--epochs", "2", "--batch-size", "24", "--chunks", "4"]
GPT = ["char_gpt", "--text", "song.txt", "--layers", "1", "--heads", "2", "--width", "16", "--context", "8", "--batch-size", "8",
       "--steps", "6", "--every", "3", "--sample", "9", "--dropout", "0.1", "--chunks", "4", "--save", "weights.safetensors"]
GPT2 = ["gpt2", "--layers", "1", "--heads", "2", "--width", "16", "--vocabulary", "50", "--context", "8", "--batch-size", "4",
        "--accumulate", "2", "--steps", "4", "--dropout", "0.1", "--chunks", "4", "--save", "weights.safetensors"]


launch, plugin = launchers.launcher(mpi), launchers.plugin(mpi, sys.argv[3:])
environment = {**launchers.environment(plugin and os.path.abspath(plugin)), "MIXTAPE_NUM_THREADS": "1"}


class Ranks(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, ranks: int, name: str, *arguments: str) -> list[str]:
        return ([*launch, "-n", str(ranks)] if ranks else []) + [str(programs / name), *arguments]

    def run_in(self, folder: str, ranks: int, *command: str) -> subprocess.CompletedProcess:
        (self.folder / folder).mkdir(exist_ok=True)
        (self.folder / folder / "song.txt").write_text("".join(f"{i} green bottles, " for i in range(99)))
        return subprocess.run(self.command(ranks, *command), cwd=self.folder / folder, env=environment, text=True, timeout=120,
                              capture_output=True, stdin=subprocess.DEVNULL)

    def result(self, folder: str, ranks: int, *command: str) -> dict:
        """The files of a run; 0 ranks: without MPI."""
        run = self.run_in(folder, ranks, *command)
        self.assertEqual(run.returncode, 0, run.stderr)
        return self.files(folder)

    def files(self, folder: str) -> dict:
        return {path.name: [{key: value for key, value in json.loads(line).items() if key != "seconds"}
                            for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else path.read_bytes()
                for path in (self.folder / folder).rglob("*") if path.is_file()}

    def processes(self, folder: str) -> list[int]:
        """The ranks of train_images in that folder."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").readlink() == (self.folder / folder).resolve() and \
                        (process / "exe").readlink().name == "train_images":
                    found.append(int(process.name))
            except OSError:
                pass
        return sorted(found)

    def same(self, *command: str) -> None:
        alone = self.result("alone", 0, *command)
        self.assertIn("weights.safetensors", alone)
        for ranks, *more in (2,), (4,), (4, "--shards"):
            shared = self.result(f"on{ranks}{''.join(more)}", ranks, *command, *more)
            self.assertEqual(sorted(shared), sorted(alone))
            for name in alone:
                self.assertTrue(shared[name] == alone[name], f"{name} on {ranks} ranks {more}")

    def test_images_in_f32(self) -> None:
        self.same(*TRAIN)

    def test_images_in_bf16(self) -> None:
        self.same(*TRAIN, "--dtype", "bfloat16")

    def test_images_in_f16(self) -> None:
        self.same(*TRAIN, "--dtype", "float16")

    def test_a_gpt(self) -> None:
        self.same(*GPT, "--out", "run")
        self.same(*GPT2)

    def test_ranks_have_the_same_options(self) -> None:
        ranked = 'exec "$@" --lr 0.00$((1 + ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}))'
        run = subprocess.run([*launch, "-n", "2", "sh", "-c", ranked, "sh", str(programs / TRAIN[0]), *TRAIN[1:]],
                             cwd=self.folder, env=environment, text=True, timeout=120, capture_output=True,
                             stdin=subprocess.DEVNULL)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("rank 1 of 2 has other options than rank 0: --lr 0.002 (rank 0: --lr 0.001)", run.stderr)

    def test_only_the_first_prints(self) -> None:
        lines = self.run_in("a", 2, *TRAIN).stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["120", "simple:", "epoch", "0", "1", "wrote"])

    def test_killed_on_four_it_goes_on_with_two_and_ends_on_one(self) -> None:
        self.goes_on_with_fewer()

    def test_so_it_does_with_divided_state(self) -> None:
        self.goes_on_with_fewer("--shards")

    def goes_on_with_fewer(self, *more: str) -> None:
        longer = [*TRAIN[:4], "12", *TRAIN[5:]]  # so that even a late kill finds it training
        whole = self.result("whole", 0, *longer)
        (self.folder / "broken").mkdir()
        last = self.folder / "broken/runs/train_images/last.ckpt"
        for ranks, resume in (4, [*more]), (2, [*more, "--resume"]):
            before = last.stat().st_mtime_ns if last.exists() else 0
            job = subprocess.Popen(self.command(ranks, *longer, *resume), cwd=self.folder / "broken", env=environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
            end = time.monotonic() + 60
            while job.poll() is None and not (last.exists() and last.stat().st_mtime_ns > before) and time.monotonic() < end:
                time.sleep(0.01)
            self.assertTrue(last.exists())
            for rank in self.processes("broken"):
                with contextlib.suppress(ProcessLookupError):  # a launcher may be faster
                    os.kill(rank, signal.SIGKILL)
            self.assertNotEqual(job.wait(timeout=30), 0, "it was killed in the midst")
        ended = self.result("broken", 0, *longer, "--resume")
        for name in whole:
            self.assertTrue(ended[name] == whole[name], name)

    def ends_after_a_step(self, send: Callable[[subprocess.Popen], None], code: int) -> None:
        (self.folder / "a").mkdir()
        job = subprocess.Popen(self.command(2, *TRAIN[:3], "--epochs", "500", *TRAIN[5:]), cwd=self.folder / "a", env=environment,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               start_new_session=True)
        end = time.monotonic() + 60
        while not (self.folder / "a/runs/train_images/last.ckpt").exists() and time.monotonic() < end:
            time.sleep(0.01)
        send(job)
        out, err = job.communicate(timeout=60)
        self.assertEqual(job.returncode, code, err)
        self.assertEqual(err.count("train_images: interrupted: runs/train_images holds what was learned: --resume continues\n"), 1,
                         err)
        self.assertNotIn("rank", out + err.split("interrupted")[0])

    def test_a_signal_to_one_ends_all_after_the_same_step(self) -> None:
        self.ends_after_a_step(lambda _: os.kill(self.processes("a")[1], signal.SIGTERM), 143)

    @unittest.skipUnless(mpi == "tcp", "a launcher of MPI answers Ctrl-C itself")
    def test_ctrl_c_ends_all_after_the_same_step(self) -> None:
        self.ends_after_a_step(lambda job: os.killpg(job.pid, signal.SIGINT), 130)

    def test_mistakes_come_once(self) -> None:
        for message, *arguments in (("3 chunks cannot be spread over 2 ranks", "--chunks", "3"),
                                    ("--resume: there is no runs/train_images/last.ckpt", "--resume"),
                                    ("--benchmark is for one process", "--benchmark"),
                                    ("--plan is for one process", "--plan", "4")):
            run = self.run_in("a", 2, "train_images", *arguments)
            self.assertNotEqual(run.returncode, 0)
            said = [line for line in run.stderr.splitlines() if line.startswith("train_images: ")]
            self.assertEqual(len(said), 1, run.stderr)
            self.assertIn(message, said[0])
        run = self.run_in("a", 2, *TRAIN, "--batch-size", "2")
        self.assertNotEqual(run.returncode, 0)
        self.assertRegex(run.stderr, r"(?m)^train_images: batches of 2 cannot be cut into 4 chunks$")

    @unittest.skipUnless("MIXTAPE_DOCUMENT" in os.environ, "there is no MIXTAPE_DOCUMENT")
    def test_the_document(self) -> None:
        """The program of docs/distributed.md prints on each of two ranks what it prints alone, but for the first line."""
        text = (script.parent / "docs/distributed.md").read_text()
        alone = "".join(re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
        of_two = re.search(r"^```console\n\$ mpirun -n 2 ./program\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1].splitlines()
        run = subprocess.run([*launch, "-n", "2", os.environ["MIXTAPE_DOCUMENT"]], cwd=self.folder, env=environment, text=True,
                             capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(sorted(run.stdout.splitlines()), sorted(of_two + 2 * alone[1:]))

    def test_the_demo_shows_that_the_numbers_are_the_same(self) -> None:
        few = ["--train-size", "128", "--valid-size", "40", "--epochs", "1"]
        run = subprocess.run([script / "demo_ranks", programs / "mixtape-demo", "2", *few, "--out", "here"], cwd=self.folder,
                             env={**environment, "MPIRUN": launch[0] if mpi != "tcp" else ""}, text=True, capture_output=True, stdin=subprocess.DEVNULL)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("the numbers are the same: bf16.safetensors fp16.safetensors fp32.safetensors loss.svg metrics.jsonl",
                      run.stdout)
        run = subprocess.run([script / "demo_ranks", programs / "mixtape-demo", "none"], text=True, capture_output=True)
        self.assertEqual((run.returncode, run.stderr),
                         (2, 'demo_ranks: --ranks: "none" is not a number of processes (--help explains)\n'))
        run = subprocess.run([script / "demo", "--ranks"], text=True, capture_output=True)
        self.assertEqual((run.returncode, run.stderr), (2, "demo: --ranks needs a number of processes (--help explains)\n"))


if __name__ == "__main__":
    launchers.skip_unless(mpi, plugin)
    unittest.main(argv=sys.argv[:1])
