"""Several processes under one MPI: they connect, and where one breaks all end, soon, with an exit code that is not 0 and a first
line that says which and where. Skips where that MPI is not here.

usage: ranks_test.py MPI PROGRAM SOURCE_OF_PLUGIN [PLUGIN...], MPI being openmpi or mpich"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

mpi = sys.argv[1]
program, source, *plugins = map(os.path.abspath, sys.argv[2:])
FULL_NAME = {"openmpi": r"Open MPI \d+\.\d+\.\d+", "mpich": r"MPICH \d+\.\d+\.\d+"}


def of(kind: str) -> tuple[list[str], str]:
    """The command that starts processes, and the plug-in; empty if there is none."""
    launcher = shutil.which(f"mpirun.{kind}")
    if not launcher and (plain := shutil.which("mpirun")):
        said = subprocess.run([plain, "--version"], text=True, capture_output=True).stdout
        launcher = plain if ("Open MPI" in said) == (kind == "openmpi") else None
    command = [launcher] if launcher else []
    return command + ["--oversubscribe"] * (command != [] and kind == "openmpi"), next((p for p in plugins if f"_{kind}." in p), "")


launch, plugin = of(mpi)


# As root and without a network Open MPI has more to say.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
               "MIXTAPE_MPI_PLUGIN": plugin}


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

    def test_long_transfers_are_cut(self) -> None:
        """The plug-in as its first lines say to compile it, but as if MPI could not count beyond 20000 bytes."""
        compiler = shutil.which(f"mpicc.{mpi}") or shutil.which("mpicc")
        if not compiler:
            self.skipTest("there is no mpicc")
        with tempfile.TemporaryDirectory() as folder:
            own = f"{folder}/libmixtape_mpi.so"
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-DMIXTAPE_PIECE=20000", "-o", own, source], check=True)
            self.connects(Run(2, "sums", MIXTAPE_MPI_PLUGIN=own), 2, FULL_NAME[mpi])

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


class Choice(unittest.TestCase):
    def fails(self, said: str, run: Run) -> None:
        self.assertNotEqual(run.code, 0, run.all)
        self.assertRegex(run.err.splitlines()[0], said, run.all)

    def test_no_plugin(self) -> None:
        self.fails(r"started by MPI as one of several, but Mixtape's plug-in for MPI was not found \(/nowhere.so: .*No such file",
                   Run(2, "sums", MIXTAPE_MPI_PLUGIN="/nowhere.so"))

    def test_a_file_that_is_no_plugin(self) -> None:
        library = re.search(r"=> (\S*/libc\.so\S*)", subprocess.run(["ldd", program], text=True, capture_output=True).stdout)[1]
        self.fails("libc.* is no plug-in of this version of Mixtape", Run(2, "sums", MIXTAPE_MPI_PLUGIN=library))

    def test_the_plugin_of_another_mpi(self) -> None:
        other = next((p for p in plugins if p != plugin), "")
        if not other:
            self.skipTest("there is one MPI")
        self.fails(r"2 processes were started, but (Open MPI|MPICH) \S+ connects 1: it is not the MPI that started them",
                   Run(2, "sums", MIXTAPE_MPI_PLUGIN=other))

    def test_launchers_without_this_mpi(self) -> None:
        self.fails("2 processes were started, but .* connects 1", Run(0, "sums", by=[], SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="2"))
        self.fails("NCCL is no engine yet, and nothing else connects processes", Run(0, "sums", by=[], RANK="0", WORLD_SIZE="2"))
        self.assertIn("rank 0 of 1 by none", Run(0, "sums", by=[], RANK="0", WORLD_SIZE="1").out)

    def test_a_wish(self) -> None:
        self.assertEqual(Run(2, "sums", MIXTAPE_ENGINE="none").out, "rank 0 of 1 by none\n" * 2)
        self.assertRegex(Run(0, "sums", by=[], MIXTAPE_ENGINE="mpi").out, f"rank 0 of 1 by {FULL_NAME[mpi]}\n")
        self.fails('the engine must be mpi or none, got "pigeons"', Run(2, "sums", MIXTAPE_ENGINE="pigeons"))


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
        self.assertIn("rank 1 of 4: goes on without its World, and is ended\n", run.err)

    def test_exit(self) -> None:
        for call in "exit", "quick_exit":
            self.ends(call, "rank 1 of 4: ends before the others, which end with it$")

    def test_several_at_once(self) -> None:
        self.ends("all_throw", r"rank \d of 4: leaves its World by an exception$")
        self.ends("all_exit", r"rank \d of 4: ends before the others, which end with it$")

    def test_fewer_steps(self) -> None:
        self.ends("early", r"rank \d of 4: ranks have run apart: .*rank 1 (is )?in the end of its World")

    def test_ranks_in_different_places(self) -> None:
        self.ends("apart", r"rank \d of 4: ranks have run apart: .*rank 1 (is )?in a sum")

    def test_a_rank_that_is_stuck(self) -> None:
        run = self.ends("stuck", r"mixtape: warning: rank \d of 4 has waited")  # or first in a gather, where one is slow to start
        self.assertRegex(run.err, r"(?m)^mixtape: warning: rank \d of 4 has waited 0.\d+ s in a barrier for rank 1$")
        self.assertRegex(run.err, r"(?m)^rank \d of 4 waited 2 s in a barrier for rank 1$")

    def test_a_rank_that_is_killed(self) -> None:
        """Others name it, if the launcher leaves them the time. Open MPI speaks first, now and then; MPICH kills all at once,
        so that they may see another end first, or nothing."""
        for signal in "kill", "term":
            run = self.ends(signal, "")
            lost = re.search(r"(?m)^rank \d of 4 lost ranks? (.*) in a barrier: its process has ended$", run.err)
            if mpi == "mpich":
                self.assertTrue(lost or run.err == "", run.all)
            else:
                self.assertTrue(lost and "1" in lost[1] or "process rank 1 with PID" in run.err, run.all)

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
        self.assertNotEqual(run.code, 0)
        self.assertIn("error: World: MPI: starting failed: it was finalized before", run.err)


if __name__ == "__main__":
    if not launch or not plugin:
        print(f"there is no {'mpirun' if not launch else 'plug-in'} of {mpi}")
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
