"""Several processes under one MPI, or connected by TCP: they meet, and where one breaks all end, soon, with an exit code that is
not 0 and a first line that says which and where. Skips where that MPI is not here.

usage: ranks_test.py ENGINE PROGRAM SOURCE_OF_PLUGIN [PLUGIN...], ENGINE being openmpi, mpich, tcp or nccl"""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable
from typing import TypeVar

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "script"))
import launchers  # noqa: E402

T = TypeVar("T")

mpi = sys.argv[1]
program, source, *plugins = map(os.path.abspath, sys.argv[2:])
FULL_NAME = {"openmpi": r"Open MPI \d+\.\d+\.\d+", "mpich": r"MPICH \d+\.\d+\.\d+", "tcp": "TCP",
             "nccl": r"NCCL 2\.19\.0 over TCP"}


def of(*engines: str) -> Callable[[T], T | None]:
    """Leaves out a test, or a class of them, that other engines have nothing to do with."""
    return lambda test: test if mpi in engines else None


of_mpi = of("openmpi", "mpich")
launch, plugin = launchers.launcher(mpi), launchers.plugin(mpi, plugins)
ENVIRONMENT = launchers.environment(plugin)


class Run:
    def __init__(self, ranks: int, *arguments: str, by: list[str] | None = None, **environment: str) -> None:
        command = [*(launch if by is None else by), *(["-n", str(ranks)] if ranks else []), program, *arguments]
        self.begin = time.monotonic()
        done = subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=60,
                              env={**ENVIRONMENT, **environment})
        self.end = time.monotonic()
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.all = f"{' '.join(command)}: {self.code}\n{self.out}\n{self.err}"

    def seconds_to_end(self) -> float:
        broken = re.findall(r"breaks at (\S+)", self.out)
        return self.end - min(map(float, broken), default=self.begin)


class Fine(unittest.TestCase):
    def connects(self, run: Run, ranks: int, by: str) -> None:
        self.assertEqual((run.code, run.err), (0, ""), run.all)
        for rank in range(ranks):
            self.assertRegex(run.out, rf"rank {rank} of {ranks} by {by}\n")

    def test_sums_gathers_and_broadcasts(self) -> None:
        self.connects(Run(1, "sums"), 1, "none")
        self.connects(Run(2, "sums"), 2, FULL_NAME[mpi])
        self.connects(Run(4, "sums"), 4, FULL_NAME[mpi])

    def test_a_learner(self) -> None:
        """Batch norm, dropout, crops and one cycle: weights, log and checkpoint do not depend on the number of ranks."""
        for dtype in "f32", "bf16", "f16":
            with tempfile.TemporaryDirectory() as folder:
                files = []
                for ranks in 0, 2, 4:
                    out = pathlib.Path(folder) / str(ranks)
                    run = Run(ranks, "learner", str(out), dtype, **({} if ranks else {"MIXTAPE_ENGINE": "none"}),
                              by=None if ranks else [])
                    self.assertEqual(run.code, 0, run.all)
                    files.append({path.name: re.sub(rb'"seconds":[^,}]*', b"", path.read_bytes()) for path in out.iterdir()})
                self.assertIn("last.ckpt", files[0])
                self.assertEqual(files[0], files[1])
                self.assertEqual(files[0], files[2])

    @of_mpi
    def test_long_transfers_are_cut(self) -> None:
        """The plug-in as its first lines say to compile it, but as if MPI could not count beyond 20000 bytes."""
        compiler = shutil.which(f"mpicc.{mpi}") or shutil.which("mpicc")
        if not compiler:
            self.skipTest("there is no mpicc")
        with tempfile.TemporaryDirectory() as folder:
            own = f"{folder}/libmixtape_mpi.so"
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-DMIXTAPE_PIECE=20000", "-o", own, source], check=True)
            self.connects(Run(2, "sums", MIXTAPE_MPI_PLUGIN=own), 2, FULL_NAME[mpi])

    @of_mpi
    def test_a_program_that_uses_mpi_itself(self) -> None:
        library = re.search(r"(libmpi\w*\.so\S*) ", subprocess.run(["ldd", plugin], text=True, capture_output=True).stdout)[1]
        self.connects(Run(2, "own_mpi", library), 2, FULL_NAME[mpi])
        run = Run(2, "one_thread", library)
        self.assertNotEqual(run.code, 0)
        self.assertIn("MPI: starting failed: the program initialized it without MPI_THREAD_SERIALIZED", run.err)

    def test_a_forked_process_is_no_rank(self) -> None:
        self.connects(Run(2, "fork"), 2, FULL_NAME[mpi])

    def test_programs_link_no_mpi(self) -> None:
        self.assertNotRegex(subprocess.run(["ldd", program], text=True, capture_output=True, check=True).stdout, "mpi|nccl")


@of_mpi
class Choice(unittest.TestCase):
    def fails(self, said: str, run: Run) -> None:
        self.assertNotEqual(run.code, 0, run.all)
        self.assertRegex(run.err.splitlines()[0], said, run.all)

    def test_no_plugin(self) -> None:
        self.fails(r"MPI is to connect the ranks, but Mixtape's plug-in for it was not found \(/nowhere.so: .*No such file",
                   Run(2, "sums", MIXTAPE_MPI_PLUGIN="/nowhere.so"))

    def test_a_file_that_is_no_plugin(self) -> None:
        library = re.search(r"=> (\S*/libc\.so\S*)", subprocess.run(["ldd", program], text=True, capture_output=True).stdout)[1]
        self.fails("libc.* is not a plug-in of this version of Mixtape", Run(2, "sums", MIXTAPE_MPI_PLUGIN=library))

    def test_the_plugin_of_another_mpi(self) -> None:
        other = next((p for p in plugins if p != plugin and "_nccl." not in p), "")
        if not other:
            self.skipTest("there is one MPI")
        self.fails(r"2 processes were started, but (Open MPI|MPICH) \S+ connects 1: it is not the MPI that started them",
                   Run(2, "sums", MIXTAPE_MPI_PLUGIN=other))

    def test_launchers_without_this_mpi(self) -> None:
        self.fails("2 processes were started, but .* connects 1", Run(0, "sums", by=[], SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2"))

    def test_a_wish(self) -> None:
        self.assertEqual(Run(2, "sums", MIXTAPE_ENGINE="none").out, "rank 0 of 1 by none\n" * 2)
        self.assertRegex(Run(0, "sums", by=[], MIXTAPE_ENGINE="mpi").out, f"rank 0 of 1 by {FULL_NAME[mpi]}\n")
        self.fails('the engine must be mpi, tcp, nccl or none, got "pigeons"', Run(2, "sums", MIXTAPE_ENGINE="pigeons"))


@of("tcp")
class Meeting(unittest.TestCase):
    """Processes that do not meet."""

    def fails(self, said: str, **variables: str) -> None:
        run = Run(0, "stuck", by=[], **variables)  # its time limit is 2 s
        self.assertEqual(run.code, 1, run.all)
        self.assertRegex(run.err, f"(?m)^error: World: {said}$")

    def test_variables(self) -> None:
        self.fails("the engine tcp needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, which torchrun sets: "
                   "there is no MASTER_ADDR", RANK="0", WORLD_SIZE="2")
        self.fails(".*: there is no WORLD_SIZE", MIXTAPE_ENGINE="tcp")
        self.fails('RANK must be a number from 0 to 1, got "2"', RANK="2", WORLD_SIZE="2")
        for size in ("two", "0", "-2", "2x", ""):
            self.fails(f'WORLD_SIZE must be a number >= 1, got "{size}"', RANK="0", WORLD_SIZE=size)
        self.fails('MASTER_PORT must be a number from 1 to 65534, got "http"', RANK="1", WORLD_SIZE="2", MASTER_ADDR="localhost",
                   MASTER_PORT="http")
        self.assertEqual(Run(0, "sums", by=[*launch, "-n", "0"]).code, 2)
        self.assertIn("rank 0 of 1 by none", Run(0, "sums", by=[], RANK="0", WORLD_SIZE="1").out)
        self.assertIn("rank 0 of 1 by TCP", Run(0, "sums", by=[], RANK="0", WORLD_SIZE="1", MIXTAPE_ENGINE="tcp").out)

    def test_a_launcher_within_another(self) -> None:
        self.assertIn("rank 1 of 2 by TCP", Run(2, "sums", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1").out)
        self.assertIn("rank 1 of 2 by TCP", Run(2, "sums", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2", MIXTAPE_ENGINE="tcp").out)
        run = Run(2, "sums", SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2")
        self.assertNotEqual(run.code, 0)
        self.assertIn("a launcher of MPI has started processes, and RANK and WORLD_SIZE tell of 2 others", run.err)

    def processes(self, *ranks: int, size: int = 3, **variables: str) -> list[str]:
        """Starts those ranks alone, and returns their messages."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        meet = {**ENVIRONMENT, "WORLD_SIZE": str(size), "MASTER_ADDR": "localhost", "MASTER_PORT": str(port - 1), **variables}
        started = [subprocess.Popen([program, "stuck"], env={**meet, "RANK": str(rank)}, text=True, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for rank in ranks]
        for _ in range(100):  # others knock, too
            with socket.socket() as other:
                if other.connect_ex(("localhost", port)) == 0:
                    other.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    with socket.socket() as outside:  # as if from another address of the machine
                        self.heard_outside = outside.connect_ex(("127.0.0.2", port)) == 0
                    break
            time.sleep(0.01)
        said = [process.communicate(timeout=20)[1] for process in started]
        self.assertNotIn(0, [process.returncode for process in started])
        return said

    def test_missing_ranks_are_named(self) -> None:
        self.assertRegex(self.processes(0)[0], r"(?m)^error: World: rank 0 of 3 waited 2 s at port \d+ for ranks 1, 2 to connect$")
        first, last = self.processes(0, 2)
        self.assertRegex(first, r"(?m)^error: World: rank 0 of 3 waited 2 s at port \d+ for rank 1 to connect$")
        self.assertRegex(last, r"(?m)^error: World: rank 2 of 3 waited 2 s at most for an answer of rank 0 at localhost:\d+: it has "
                               "ended, waits for others, or something else listens there$")

    def test_only_this_machine_is_heard_where_all_are_on_it(self) -> None:
        self.processes(0, LOCAL_WORLD_SIZE="3")
        self.assertFalse(self.heard_outside)
        self.processes(0)
        self.assertTrue(self.heard_outside)

    def test_a_missing_first_is_named(self) -> None:
        self.assertRegex(self.processes(1)[0],
                         r"(?m)^error: World: rank 1 of 3 tried for 2 s to reach rank 0 at localhost:\d+: Connection refused$")
        self.assertRegex(self.processes(1, MASTER_ADDR="nowhere.invalid")[0], r"rank 0 at nowhere.invalid:\d+: \w+")

    def test_two_of_one_rank(self) -> None:
        self.assertRegex(self.processes(0, 1, 1)[0], "(?m)^error: World: two processes say that they are rank 1$")

    def test_under_torchrun(self) -> None:
        torchrun = shutil.which("torchrun")
        if not torchrun:
            self.skipTest("there is no torchrun")
        command = [torchrun, "--no_python", "--nproc_per_node", "2"]
        if subprocess.run([*command, "true"], capture_output=True).returncode:
            self.skipTest(f"{torchrun} cannot start programs")
        run = Run(0, "sums", by=command)
        self.assertEqual(run.code, 0, run.all)
        self.assertIn("rank 1 of 2 by TCP\n", run.out)


@of("nccl")
class Nccl(unittest.TestCase):
    """The calls of NCCL, and their failures, as its stand-in tells of them. (On emulated devices.)"""

    def calls(self, ranks: int, *arguments: str, **variables: str) -> tuple[Run, list[list[str]]]:
        with tempfile.TemporaryDirectory() as folder:
            run = Run(ranks, *arguments, STAND_IN_LOG=f"{folder}/calls", TMPDIR=folder, **variables)
            logs = [pathlib.Path(f"{folder}/calls{rank}") for rank in range(ranks)]
            found = [log.read_text().splitlines() if log.exists() else [] for log in logs]
            self.assertEqual([path.name for path in pathlib.Path(folder).glob("nccl-stand-in-*")] if run.code == 0 else [], [])
        return run, found

    def test_gradients_have_the_same_bits_as_through_the_host(self) -> None:
        results = [Run(1, "net"), Run(2, "net"), Run(2, "net", MIXTAPE_ENGINE="tcp"), Run(4, "net"),
                   Run(4, "late", MIXTAPE_LATE="1")]
        numbers = [re.search(r"trained by .*: (\S+)\n", run.out) for run in results]
        self.assertNotIn(None, numbers, results[-1].all)
        self.assertEqual(len({number[1] for number in numbers}), 1)
        self.assertEqual([run.err for run in results], [""] * 5)

    def test_calls(self) -> None:
        """Buckets of 576 and 1088 numbers, padded to 64 for each rank, in two rounds; nothing else travels between devices."""
        run, logs = self.calls(2, "net")
        self.assertEqual(run.code, 0, run.all)
        for rank, log in enumerate(logs):
            self.assertEqual(log[:3 - rank], ["ncclGetVersion", *["ncclGetUniqueId"] * (rank == 0), "ncclCommInitRankConfig"])
            groups = log[3 - rank:-2]
            one = ["ncclGroupStart", f"ncclSend {{}} to {1 - rank}", f"ncclRecv {{}} from {1 - rank}", "ncclGroupEnd"]
            first, second = ([line.format(n) for line in one] for n in (1280, 2304))
            self.assertEqual(groups, (first * 2 + second * 2) * 5)
            self.assertEqual(log[-2:], ["ncclCommFinalize", "ncclCommDestroy"])

    def fails(self, said: str, *arguments: str, **variables: str) -> list[list[str]]:
        run, logs = self.calls(2, *(arguments or ["net"]), **variables)
        self.assertNotEqual(run.code, 0, run.all)
        self.assertRegex(run.err, said)
        return logs

    def test_no_nccl(self) -> None:
        self.fails(r"rank \d of 2: the engine nccl needs NCCL 2.19 or later, which was not found \(/nowhere.so: .*: install it "
                   r"\(libnccl2 on Debian and Ubuntu\), or name its file by MIXTAPE_NCCL", MIXTAPE_NCCL="/nowhere.so")
        self.fails(r"rank \d of 2: NCCL must be 2.19 or later, got 2.18.5", STAND_IN_VERSION="21805")
        library = re.search(r"=> (\S*/libc\.so\S*)", subprocess.run(["ldd", program], text=True, capture_output=True).stdout)[1]
        self.fails("libc.* has no ncclGetVersion: it is not NCCL, or older than 2.19", MIXTAPE_NCCL=library)
        self.fails(r"rank \d of 2: the engine nccl connects GPUs, but this rank computes on cpu", "on_cpu")

    def test_calls_that_fail(self) -> None:
        self.fails(r"^rank 0 of 2: NCCL: beginning failed: unhandled system error: the stand-in was told to fail",
                   STAND_IN_FAIL="ncclGetUniqueId 1")
        self.fails(r"^rank \d of 2: NCCL: connecting GPUs failed: unhandled system error", STAND_IN_FAIL="ncclCommInitRankConfig 1")
        for function in "GroupStart", "GroupEnd", "Send", "Recv":
            logs = self.fails(r"^rank \d of 2: NCCL: a transfer failed: unhandled system error: the stand-in was told to fail\n",
                              STAND_IN_FAIL=f"nccl{function} 3")
            self.assertIn("ncclCommAbort", logs[0] + logs[1])

    def test_a_failure_that_comes_later(self) -> None:
        logs = self.fails(r"^rank \d of 2: NCCL: a transfer failed: remote process exited or there was a network error",
                          STAND_IN_FAIL="remote")
        self.assertIn("ncclCommAbort", logs[0] + logs[1])

    def test_bytes_that_do_not_come(self) -> None:
        logs = self.fails(r"(?m)^rank \d of 2 waited 2 s in bucket \d of step 0 \(.*\) for rank \d$", "net", STAND_IN_SILENT="2")
        self.assertIn("ncclCommAbort", logs[0] + logs[1])

    def test_a_rank_that_ends(self) -> None:
        logs = self.fails("^rank 1 of 2: leaves its World by an exception\n", "in_backward")
        self.assertIn("ncclCommAbort", logs[1])

    def test_a_tensor_of_another_device(self) -> None:
        self.fails(r"rank 1 of 2 exchanges what is on cuda:1, but a tensor is on cuda:0", "elsewhere")

    def test_the_real_library_has_the_functions(self) -> None:
        real = next((f for f in ("/usr/local/cuda/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2") if os.path.exists(f)),
                    "libnccl.so.2")
        if subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{real}')"], capture_output=True).returncode:
            self.skipTest("there is no NCCL")
        self.fails(r"^rank \d of 2: NCCL: (beginning|connecting GPUs) failed: ", MIXTAPE_NCCL=real)  # emulated devices are none


@of("openmpi", "mpich", "tcp")  # under NCCL it is TCP that notices
class Broken(unittest.TestCase):
    def ends(self, what: str, first: str) -> Run:
        run = Run(4, what)
        self.assertNotEqual(run.code, 0, run.all)
        self.assertLess(run.seconds_to_end(), 5, run.all)
        self.assertRegex((run.err.splitlines() or [""])[0], f"^{first}", run.all)
        return run

    def test_an_exception(self) -> None:
        for where in "throw", "in_backward":
            run = self.ends(where, "rank 1 of 4: leaves its World by an exception$")
            self.assertRegex(run.err, "^.*\nerror: .*something is wrong\n")

    def test_an_exception_that_nothing_catches(self) -> None:
        self.ends("uncaught", "rank 1 of 4: something is wrong$")

    def test_a_program_that_goes_on_after_an_exception(self) -> None:
        run = self.ends("goes_on", "rank 1 of 4: leaves its World by an exception$")
        self.assertIn("rank 1 of 4: is still running after its World ended, and is ended\n", run.err)

    def test_exit(self) -> None:
        for call in "exit", "quick_exit":
            self.ends(call, "rank 1 of 4: ends before the others, which end with it$")

    def test_several_at_once(self) -> None:
        self.ends("all_throw", r"rank \d of 4: leaves its World by an exception$")
        self.ends("all_exit", r"rank \d of 4: ends before the others, which end with it$")

    def test_fewer_steps(self) -> None:
        self.ends("early", r"rank \d of 4: ranks are out of step: .*rank 1 (is )?in the end of its World")

    def test_ranks_in_different_places(self) -> None:
        self.ends("apart", r"rank \d of 4: ranks are out of step: .*rank 1 (is )?in a sum")

    def test_a_rank_that_is_stuck(self) -> None:
        """Its limit is 2 s. The first to wait may do so in a gather, where one is slow to start."""
        for _ in range(3):  # a busy machine may be late
            run = self.ends("stuck", r"mixtape: warning: rank \d of 4 has waited")
            self.assertRegex(run.err, r"(?m)^mixtape: warning: rank \d of 4 has waited 0.\d+ s in a barrier for rank 1$")
            self.assertRegex(run.err, r"(?m)^rank \d of 4 waited 2 s in a barrier for rank 1$")
            if run.seconds_to_end() < 3:
                return
        self.fail(f"it took {run.seconds_to_end()} s to end")

    def test_a_rank_that_is_killed(self) -> None:
        """Others name it first, if the launcher leaves them the time. On one core Open MPI speaks before them, on more now and then;
        MPICH kills all when files of the dead are closed, so that a busy machine may say nothing."""
        flags = re.MULTILINE if len(os.sched_getaffinity(0)) == 1 else 0
        lost = r"^rank \d of 4 lost ranks? 1 in a barrier: its (process|connection) has ended\n"
        for signal in "kill", "term":
            said = [self.ends(signal, "").err for _ in range(5 if mpi in ("openmpi", "mpich") else 1)]
            self.assertGreaterEqual(sum(bool(re.search(lost, err, flags)) for err in said), (len(said) + 1) // 2, said)
            if mpi == "mpich":
                self.assertEqual([err for err in said if err and "lost rank" not in err], [])
            elif mpi == "openmpi":
                self.assertEqual([err for err in said if "lost rank" not in err and "process rank 1 with PID" not in err], [])

    @of("mpich")
    def test_a_launcher_that_lets_the_others_be(self) -> None:
        """Then they name the rank that was killed, and end by themselves, also one that exchanges nothing."""
        for what, first in ("kill", r"rank \d of 4 lost rank 1 in a barrier: its process has ended$"), ("stuck", "mixtape: warning"):
            run = Run(4, what, by=[*launch, "-disable-auto-cleanup"])
            self.assertNotEqual(run.code, 0, run.all)
            self.assertLess(run.seconds_to_end(), 5, run.all)
            if run.err or what == "stuck":  # a busy machine may kill before they speak
                self.assertRegex((run.err.splitlines() or [""])[0], first)

    def test_a_launcher_that_is_told_to_end(self) -> None:
        with subprocess.Popen([*launch, "-n", "4", program, "forever"], env=ENVIRONMENT, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
            for _ in range(4):
                self.assertIn(" of 4 by ", run.stdout.readline())
            run.terminate()
            self.assertNotEqual(run.wait(5), 0)

    def test_a_second_world(self) -> None:
        run = self.ends("second", "rank 1 of 4: leaves its World by an exception$")
        self.assertIn("error: World: this thread has a World: a program makes one, at its beginning", run.err)
        run = Run(2, "again")
        if mpi in ("tcp", "nccl"):
            return self.assertEqual(run.code, 0, run.all)
        self.assertNotEqual(run.code, 0)
        self.assertIn("error: World: MPI: starting failed: it was finalized before", run.err)


if __name__ == "__main__":
    launchers.skip_unless(mpi, plugin)
    unittest.main(argv=sys.argv[:1])
