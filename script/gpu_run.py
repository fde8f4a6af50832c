#!/usr/bin/env python3
"""Runs what script/gpu built, on the device of this machine: tests, benchmarks, PyTorch, compute-sanitizer, demo, the most
important first. Everything has a time limit; results and logs go to $OUT, or to out/. The last line is the summary.

usage: run [--minutes N]    all of it in at most N minutes, default 8; exits 1 if anything failed, 2 without a device"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_report

here = Path(__file__).resolve().parent
# Tests of tests/device/ by name; all others run with the device as the default.
ON_BOTH = re.compile(r"Devices\.|DeviceTraining\.|DeviceLoading\.|Ops/OnDevice\.|Edges/Edge\.|Sizes/Large\.")
# Tests small enough for compute-sanitizer, and some steps of an optimizer.
SANITIZED = re.compile(r"Sizes/Large\.|DeviceTraining\.HasTheLossesOfTheCpu|Ops/OnDevice\.IsWhatItIsOnTheCpu/("
                       "gelu|add_broadcast|cast|permute|cat|gather|scatter_add|argsort|topk|sum|max|argmax|prod|cumsum|"
                       "norm|matmul|matmul_batched|linear|conv2d_general|conv2d_weight|max_pool2d_padded|avg_pool2d|"
                       "interpolate_bilinear|softmax|layer_norm|group_norm|batch_norm|"
                       "scaled_dot_product_attention_causal|dropout|embedding|cross_entropy|lstm)$")
RESULT = re.compile(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] ([^\s,]+)", re.M)


class Run:
    def __init__(self, minutes: float, out: Path, programs: Path):
        self.out = out
        self.programs = programs
        self.end = time.monotonic() + 60 * minutes
        self.part = minutes / 8  # of the times that the stages name
        self.results: dict = {"tests": {}, "sanitizer": {}, "benchmarks": [], "demo": {}}
        self.wrong: list[str] = []

    def seconds(self, wanted: float) -> float:
        return max(1, min(wanted * self.part, self.end - time.monotonic()))

    def execute(self, command: list, seconds: float, **environment: str) -> tuple[int | None, str]:
        """Exit status and output; None for the status where time was up."""
        env = {**os.environ, "MIXTAPE_TEST_DATA": str(here / "data"), **environment}
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                                   text=True, errors="replace", start_new_session=True)
        try:
            text = process.communicate(timeout=seconds)[0]
            return process.returncode, text
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its children: compute-sanitizer has some
            return None, process.communicate()[0]

    def log(self, name: str, text: str) -> None:
        with open(self.out / f"{name}.log", "a") as file:
            file.write(text if text.endswith("\n") else text + "\n")

    # --- tests ---
    def all_tests(self) -> list[str]:
        names, suite = [], ""
        for line in self.execute([self.programs / "cuda_test", "--gtest_list_tests"], 30)[1].splitlines():
            word = line.split("#")[0].strip()
            if line.startswith(" "):
                names.append(suite + word)
            elif word.endswith("."):
                suite = word
        return names

    def batch(self, names: list[str], deadline: float) -> dict[str, str]:
        """The result of each test; one that never ended is absent."""
        environment = {"MIXTAPE_NUM_THREADS": "2"}
        if not ON_BOTH.match(names[0]):
            environment["MIXTAPE_TEST_DEVICE"] = "cuda:0"
        seconds = max(1, deadline - time.monotonic())
        command = [self.programs / "cuda_test", "--gtest_filter=" + ":".join(names)]
        _, text = self.execute(command, seconds, **environment)
        outcome = {name: result for result, name in RESULT.findall(text)}
        if any(outcome.get(name, "FAILED") == "FAILED" for name in names):
            self.log("tests", text)
        return outcome

    def tests(self, stage: str, names: list[str], wanted: float) -> None:
        """Runs batches in parallel. A kernel error fails everything after it in its process, so a test that failed or never
        ended runs once more alone, and that result counts."""
        deadline = time.monotonic() + self.seconds(wanted)
        workers = max(1, min(8, os.cpu_count() or 1))
        kinds = [[n for n in names if ON_BOTH.match(n)], [n for n in names if not ON_BOTH.match(n)]]
        batches = [kind[i::4 * workers] for kind in kinds for i in range(4 * workers) if kind[i::4 * workers]]
        outcome: dict[str, str] = {}
        with ThreadPoolExecutor(workers) as pool:
            for found in pool.map(lambda b: self.batch(b, deadline), batches):
                outcome.update(found)
            again = [n for n in names if outcome.get(n, "FAILED") == "FAILED"]
            repeated = [n for n in again if time.monotonic() < deadline][:200]
            for name, found in zip(repeated, pool.map(lambda n: self.batch([n], deadline), repeated)):
                outcome[name] = found.get(name, "FAILED")
        count = {kind: sum(outcome.get(n) == kind for n in names) for kind in ("OK", "FAILED", "SKIPPED")}
        failed = sorted(n for n in names if outcome.get(n) == "FAILED")
        unfinished = len(names) - sum(count.values())
        self.results["tests"][stage] = {"passed": count["OK"], "failed": failed, "skipped": count["SKIPPED"],
                                        "unfinished": unfinished}
        line = f"{stage}: {count['OK']} passed, {count['FAILED']} failed, {count['SKIPPED']} skipped"
        line += f", {unfinished} unfinished" if unfinished else ""
        print("\n".join([line, *(f"  FAILED {name}" for name in failed[:40])]), flush=True)
        if failed or unfinished or not names:
            self.wrong.append(line)

    def load(self, name: str, wanted: float) -> None:
        """Loads all kernels in one process before several do. Where the driver compiles them from PTX, since the device is
        newer than what nvcc compiled for, that takes minutes, and it keeps the result for the other processes."""
        start = time.monotonic()
        status, text = self.execute([self.programs / "cuda_test", f"--gtest_filter={name}"], self.seconds(wanted),
                                    CUDA_MODULE_LOADING="EAGER", CUDA_CACHE_MAXSIZE=str(2**32 - 1))
        said = f"loading the kernels: {time.monotonic() - start:.0f} s"
        if status is None:
            said += ", and not done: the tests below may be cut short by it, which is no hang"
            self.wrong.append(said)
        self.log("tests", text)
        print(said, flush=True)

    # --- benchmarks ---
    def benchmark(self, stage: str, filters: str, wanted: float) -> None:
        file, seconds = self.out / f"{stage}.json", self.seconds(wanted)
        command = [self.programs / "bench_gpu", "--filter", filters, "--limit", f"{0.9 * seconds:.0f}", "--json", file]
        status, text = self.execute(command, seconds, **find_cublas())
        self.log(stage, text)
        print(f"{stage}:\n{text.rstrip()}", flush=True)
        if file.exists():
            self.results["benchmarks"].append(json.loads(file.read_text()))
            file.unlink()
            if left_out := self.results["benchmarks"][-1]["left_out"]:
                self.wrong.append(f"{stage}: {len(left_out)} left out for lack of time")
        if status != 0:
            self.wrong.append(f"{stage}: " + ("time was up" if status is None else text.strip().splitlines()[-1]))

    # --- GPT-2 124M, and PyTorch's ---
    def gpt2(self, wanted: float) -> None:
        """Trains on random tokens, on as many texts at once as there is memory for."""
        deadline = time.monotonic() + self.seconds(wanted)
        for batch in 64, 32, 16:
            command = [self.programs / "gpt2", "--device", "cuda", "--steps", "20", "--every", "10", "--batch-size", batch]
            status, text = self.execute(command, max(1, deadline - time.monotonic()))
            self.log("gpt2", text)
            if status != 1 or "out of memory" not in text:
                break
        speeds = re.findall(r"([\d.]+) ms  ([\d.]+)k tokens/s", text)
        if status == 0 and speeds:
            milliseconds, thousands = map(float, speeds[-1])  # without the first steps
            self.results["gpt2"] = {"batch": batch, "median_ms": milliseconds, "per_second": 1e3 * thousands}
            print(f"gpt2: {thousands:.1f}k tokens/s, {batch} x 1024 at once", flush=True)
        else:
            self.wrong.append("gpt2: " + ("time was up" if status is None else text.strip().splitlines()[-1]))

    def torch(self, wanted: float) -> None:
        """A missing PyTorch is not an error."""
        file, seconds = self.out / "torch.json", self.seconds(wanted)
        status, text = self.execute([sys.executable, here / "gpu_torch.py", file, "--limit", f"{0.8 * seconds:.0f}"], seconds)
        self.log("gpt2", text)
        print(f"PyTorch:\n{text.rstrip()}", flush=True)
        if file.exists():
            self.results["torch"] = json.loads(file.read_text())
            file.unlink()
            if status is None:
                self.results["torch"]["left_out"].append("time was up")
        else:
            self.results["torch"] = {"not_run": "time was up" if status is None else text.strip().splitlines()[-1]}

    # --- compute-sanitizer ---
    def sanitize(self, tool: str, names: list[str], wanted: float) -> None:
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(program).exists():
            said = "not run: no compute-sanitizer here"
        else:
            status, text = self.execute([program, "--tool", tool, "--error-exitcode", "99", self.programs / "cuda_test",
                                         f"--gtest_filter={':'.join(names)}"], self.seconds(wanted))
            self.log("sanitizer", f"== {tool}\n{text}")
            ended = len(set(RESULT.findall(text)))
            if re.search(r"Device not supported|Unable to|not supported", text) and status != 0:
                said = "not run: compute-sanitizer refuses this device"
            elif status == 99 or re.search(r"(ERROR|RACECHECK) SUMMARY: (?!0 )", text):
                said = "found errors"
            elif ended == 0:
                said = "not run: no case ended in time" if status is None else f"not run: status {status}"
            elif status is None:
                said = f"clean as far as it came: {ended} of {len(names)} cases"
            else:
                said = f"clean: {ended} cases" if status == 0 else f"failed with status {status}"
        print(f"{tool}: {said}", flush=True)
        self.results["sanitizer"][tool] = said
        if not said.startswith("clean"):
            self.wrong.append(f"{tool} {said}")

    def demo(self, wanted: float) -> None:
        folder = self.out / "demo"
        command = [self.programs / "mixtape-demo", "--device", "cuda", "--modes", "fp32,tf32,fp16,bf16"]
        status, text = self.execute([*command, "--out", folder], self.seconds(wanted))
        shutil.rmtree(folder, ignore_errors=True)
        self.log("demo", text)
        table = text[text.find("\nmode"):].strip() if "\nmode" in text else ""
        print(table or text.strip(), flush=True)
        self.results["demo"] = {"status": status, "table": table}
        if status != 0:
            self.wrong.append("demo: " + ("time was up" if status is None else text.strip().splitlines()[-1]))

    def everything(self) -> None:
        names = self.all_tests()
        quick = [n for n in names if n.startswith(("Devices.", "Ops/OnDevice.IsWhatItIsOnTheCpu/"))]
        self.load(quick[0] if quick else "none", 90)
        self.tests("quick tests", quick, 60)
        self.benchmark("products", "ceiling,gemm", 110)
        self.tests("other tests", [n for n in names if n not in set(quick)], 110)
        self.gpt2(40)
        self.benchmark("rest", "ceiling,attention,memory,conv,step", 90)
        self.torch(75)
        for tool in "memcheck", "racecheck", "synccheck":
            self.sanitize(tool, [n for n in names if SANITIZED.match(n)], 45)
        self.demo(30)


def find_cublas() -> dict[str, str]:
    """The folder of a library that the loader may not find by itself: in a Python package, or the toolkit."""
    if "MIXTAPE_CUBLAS" in os.environ:
        return {}
    places = [Path(p) for p in sys.path if p] + [Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/lib")]
    for place in places:
        for found in sorted(place.glob("nvidia/*/lib/libcublas.so.1?")) + sorted(place.glob("libcublas.so.1?")):
            return {"MIXTAPE_CUBLAS": str(found)}
    return {}


def main(arguments: list[str]) -> int:
    minutes = arguments[1] if len(arguments) == 2 and arguments[0] == "--minutes" else "8"
    if arguments not in ([], ["--minutes", minutes]) or not re.fullmatch(r"[1-9]\d*", minutes):
        print(__doc__)
        return 0 if arguments == ["--help"] else 2
    out = Path(os.environ.get("OUT") or "out")
    with tempfile.TemporaryDirectory() as folder:
        packed = here / "programs.tar.xz"
        if packed.exists():
            shutil.unpack_archive(packed, folder)
        return report(Run(float(minutes), out, Path(folder) if packed.exists() else here))


def report(run: Run) -> int:
    status, text = run.execute([run.programs / "bench_gpu", "--smoke", "--filter", "nothing"], 60)
    if status != 0:
        print(f"nothing was run: {text.strip() or 'bench_gpu does not start'}")
        return 2
    out = run.out
    out.mkdir(parents=True, exist_ok=True)
    run.everything()
    run.results["wrong"] = run.wrong
    device = next((b["device"]["name"] for b in run.results["benchmarks"]), "device")
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") + time.strftime("-%Y-%m-%d")
    (out / f"{name}.json").write_text(json.dumps(run.results, indent=1) + "\n")
    (out / f"{name}.md").write_text(gpu_report.markdown(run.results))
    print("\n".join(run.wrong))
    passed = sum(stage["passed"] for stage in run.results["tests"].values())
    verdict = f"{len(run.wrong)} things are wrong" if run.wrong else "nothing is wrong"
    print(f"{device}: {passed} tests passed, {verdict}")
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
