"""The scripts, without building anything: options, what bootstrap would install, how results are counted, and that
each check finds what was planted for it.

usage: scripts_test.py ROOT COMPILER FLAG..."""
import glob
import gzip
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree
from pathlib import Path

root = Path(sys.argv[1]).resolve()
compiler = sys.argv[2:]


class ScriptTest(unittest.TestCase):
    """A tree of its own for each test, that holds only the scripts."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tree = Path(self.folder.name)
        self.tree.chmod(0o755)
        shutil.copytree(root / "script", self.tree / "script")

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def with_bin(self, **settings: str) -> dict[str, str]:
        """An environment where the stand-ins in bin/ come first."""
        return {**os.environ, "PATH": f"{self.tree}/bin:{os.environ['PATH']}", **settings}

    def run_script(self, name: str, *arguments: str, **options) -> subprocess.CompletedProcess:
        command = [self.tree / "script" / name, *arguments]
        return subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, **options)


class Options(ScriptTest):
    def setUp(self) -> None:
        """All that can be run but demo, which hands its options to a program."""
        super().setUp()
        self.scripts = [path.name for path in (self.tree / "script").iterdir() if os.access(path, os.X_OK) and path.is_file()]
        self.scripts.remove("demo")

    def test_help_explains_and_builds_nothing(self) -> None:
        for name in self.scripts:
            run = self.run_script(name, "--help", cwd=self.tree)
            self.assertEqual(run.returncode, 0, name)
            self.assertRegex(run.stdout, rf"usage: (script/)?({name}|run)\b")  # as script/gpu --package names gpu_run.py
        self.assertEqual([path.name for path in self.tree.iterdir()], ["script"])

    def test_an_unknown_option_is_exit_2_and_of_a_command_one_line(self) -> None:
        for name in self.scripts:
            run = self.run_script(name, "--no-such-option", cwd=self.tree)
            self.assertEqual(run.returncode, 2, name)
            if "." not in name and name != "demo_ranks":  # which takes a program first
                self.assertEqual(run.stderr, f"{name}: unknown option --no-such-option (--help explains)\n")
                self.assertEqual(run.stdout, "")
        self.assertEqual([path.name for path in self.tree.iterdir()], ["script"])

    def test_an_option_without_its_value_is_refused(self) -> None:
        for arguments in [("bootstrap", "--arch"), ("bootstrap", "--arch", "pdp11"), ("test", "--arch"), ("test", "--arch", "pdp11"),
                          ("test", "--filter"), ("test", "--data"), ("bench", "--benchmark_filter"), ("bench", "--out"),
                          ("bench", "--compare", "one"), ("bench", "--libtorch"), ("bench", "--libtorch", "none"), ("bench", "--torch"),
                          ("lint", "--only"), ("gpu", "--package"), ("gpu", "--minutes", "x"),
                          ("gpu", "--lab", "--package", "none")]:
            self.assertEqual(self.run_script(*arguments).returncode, 2, arguments)

    def test_some_benchmarks_run_by_themselves(self) -> None:
        for name in "dist", "batches", "growth", "photos":
            for arguments, said in ([name, "train"], "runs by itself"), ([name, "--full"], "takes neither --full nor --benchmark_*"), (
                    ["--benchmark_filter=a", name], "takes neither --full nor --benchmark_*"):
                run = self.run_script("bench", *arguments)
                self.assertEqual((run.returncode, run.stderr), (2, f"bench: {name} {said} (--help explains)\n"))

    def test_demo_hands_its_arguments_to_the_program(self) -> None:
        self.write("build/examples/mixtape-demo", '#!/bin/sh\necho "got $@"; exit 7\n', 0o755)
        run = self.run_script("demo", "--help", "two words")
        self.assertEqual((run.returncode, run.stdout), (7, "got --help two words\n"))


class Bootstrap(ScriptTest):
    """Stand-ins for the package tools: dpkg-query knows all packages but ABSENT, apt-get writes down its calls."""

    def bootstrap(self, absent: str = "none", *options: str, apt_fails: int = 0, user: int | None = None) -> tuple:
        calls = self.tree / "calls"
        calls.touch()
        apt = f'echo "$@" >> {calls}\n[ "$(wc -l < {calls})" -gt {apt_fails} ]\n'
        self.write("bin/apt-get", "#!/bin/sh\n" + apt, 0o755)
        query = f'for package; do [ "$package" = {absent} ] || echo "installed $package"; done\n'
        self.write("bin/dpkg-query", "#!/bin/sh\n" + query, 0o755)
        self.write("bin/sudo", "#!/bin/sh\nexit 1\n", 0o755)
        self.write("bin/sleep", "#!/bin/sh\n", 0o755)
        run = self.run_script("bootstrap", *options, env=self.with_bin(), **({} if user is None else {"user": user}))
        return run, calls.read_text().splitlines()

    def test_does_nothing_when_all_is_there(self) -> None:
        run, calls = self.bootstrap()
        self.assertEqual((run.returncode, run.stdout, run.stderr, calls), (0, "", "", []))

    @unittest.skipUnless(os.geteuid() == 0, "installs as root only")
    def test_installs_what_is_missing_and_retries_once(self) -> None:
        run, calls = self.bootstrap("libfmt-dev", apt_fails=1)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual([" update" in call for call in calls], [True, True, False])
        self.assertTrue(calls[-1].endswith("install -y --no-install-recommends libfmt-dev"), calls[-1])
        self.assertEqual(self.bootstrap("libfmt-dev", apt_fails=99)[0].returncode, 1)

    @unittest.skipUnless(os.geteuid() == 0, "installs as root only")
    def test_goes_on_without_what_is_only_handy(self) -> None:
        for package in "libopenmpi-dev", "mpich":
            run, calls = self.bootstrap(package, apt_fails=99)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertTrue(calls[-1].endswith("update"), calls[-1])

    def test_the_tools_of_cuda_are_fetched_once(self) -> None:
        pip = self.tree / "pip"
        self.write("bin/python3", f"""#!/bin/sh
[ "$1 $2" = "-m venv" ] || exit 0
mkdir -p $3/bin $3/lib/python3/site-packages/nvidia/cu13/bin
printf '#!/bin/sh\necho "$@" >> {pip}; echo no network; exit $FAILS\n' > $3/bin/python
for tool in cuobjdump nvdisasm; do echo > $3/lib/python3/site-packages/nvidia/cu13/bin/$tool; done
chmod +x $3/bin/python $3/lib/python3/site-packages/nvidia/cu13/bin/*
""", 0o755)
        for fails, calls, said in (1, 1, "note: cuobjdump and nvdisasm could not be installed: no network\n"), (0, 2, ""), (0, 2, ""):
            with unittest.mock.patch.dict(os.environ, {"FAILS": str(fails), "PATH": "/usr/bin:/bin"}):
                run, _ = self.bootstrap("none", "--cuda-tools")
            self.assertEqual((run.returncode, run.stdout, run.stderr), (0, said, ""))
            self.assertEqual(len(pip.read_text().splitlines()), calls)
        self.assertIn("install --no-deps nvidia-cuda-cuobjdump==", pip.read_text())
        self.assertTrue(os.access(self.tree / "build-tools/bin/nvdisasm", os.X_OK))

    def test_libraries_for_another_processor_are_unpacked_once(self) -> None:
        self.write("bin/uname", "#!/bin/sh\necho x86_64\n", 0o755)
        self.write("bin/dpkg-deb", "#!/bin/sh\nmkdir -p $3/usr/lib\n", 0o755)
        cross = self.tree / "build-tools/aarch64/cross.ini"
        for fails, calls in (1, 1), (0, 3), (0, 3):
            run, did = self.bootstrap("none", "--arch", "aarch64", apt_fails=fails)
            said = "note: no libraries for AArch64: " if fails else ""
            self.assertEqual((run.returncode, run.stdout.strip(), run.stderr), (0, said.strip(), ""))
            self.assertEqual((len(did), cross.exists()), (calls, not fails))
        for call in did:
            self.assertIn("APT::Architecture=arm64", call)
            self.assertIn(f"Dir::State={cross.parent}/apt", call)
        self.assertTrue(did[-1].endswith(" libc6-dev"), did[-1])
        self.assertIn(f"'--sysroot={cross.parent}/sysroot'", cross.read_text())
        self.assertTrue((cross.parent / "sysroot/lib").exists())  # where programs look for their loader

    def test_without_root_it_prints_the_command(self) -> None:
        run, calls = self.bootstrap("libfmt-dev", user=65534 if os.geteuid() == 0 else None)
        self.assertEqual((run.returncode, calls), (1, []))
        self.assertIn("apt-get install -y --no-install-recommends libfmt-dev", run.stderr)


class Building(ScriptTest):
    """Stand-ins for meson and ninja, which write down their calls; what ninja builds is $PROGRAM, a script."""

    MESON = """#!/bin/sh
echo "meson $*" >> CALLS
case $1 in
  --version) echo 1.0 ;;
  setup)
    case $2 in */$NO_SETUP) echo "cannot configure"; exit 1 ;; esac
    mkdir -p $2/meson-private $2/meson-info && touch $2/build.ninja && echo x > $2/meson-private/coredata.dat
    printf '{"meson_version": {"full": "1.0"}, "directories": {"source": "%s", "build": "%s"}, "error": false}' $3 $2 \
      > $2/meson-info/meson-info.json ;;
  introspect) echo '[{"name": "core"}, {"name": "scores"}, {"name": "lint"}, {"name": "sweep"}]' ;;
  test)
    mkdir -p $3/meson-logs && [ -z "$LOG" ] || echo "$LOG" > $3/meson-logs/testlog.json
    exit ${STATUS:-0} ;;
esac
"""
    NINJA = """#!/bin/sh
echo "ninja $*" >> CALLS
case "$*" in
  *" build.ninja") echo "$STALE" && [ -z "$STALE" ]; exit ;;
  *"targets all") echo "bench/bench_train: phony"; exit ;;
esac
for target; do
  case $target in bench/* | examples/*)
    mkdir -p $(dirname $2/$target)
    printf '#!/bin/sh\n%s\n' "$PROGRAM" > $2/$target
    chmod +x $2/$target
  esac
done
case $2 in */$NO_BUILD) exit 1 ;; esac
"""
    PASSED = json.dumps({"name": "a:cpu / core", "result": "OK"})

    def setUp(self) -> None:
        super().setUp()
        for name, text in ("meson", self.MESON), ("ninja", self.NINJA):
            self.write(f"bin/{name}", text.replace("CALLS", f"{self.tree}/calls"), 0o755)
        self.write("bin/nvcc", "#!/bin/sh\n", 0o755)
        self.write("script/bootstrap", '#!/bin/sh\n[ -z "$NO_TOOLS" ]\n', 0o755)

    def build(self, name: str, *arguments: str, **settings: str) -> tuple[subprocess.CompletedProcess, list[str]]:
        """The run, and the calls of meson and ninja."""
        (self.tree / "calls").write_text("")
        run = self.run_script(name, *arguments, env=self.with_bin(**{"LOG": self.PASSED, **settings}))
        return run, (self.tree / "calls").read_text().splitlines()

    def anew(self, **settings: str) -> bool:
        """True if script/test discards its build folder and configures another."""
        self.write("build-test/left", "")
        run, calls = self.build("test", **settings)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        configured = any(call.startswith(f"meson setup {self.tree}/build-test ") for call in calls)
        self.assertEqual((self.tree / "build-test/left").exists(), not configured)
        return configured

    def test_it_builds_and_runs_the_tests(self) -> None:
        run, calls = self.build("test")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, "2 passed, 0 failed, 0 skipped"))
        did = [re.sub(rf"{self.tree}/| -j \d+| -D.*| --buildtype.*| --print.*", "", call) for call in calls]
        self.assertEqual(did, [f"meson setup build-test {self.tree}", "ninja -C build-test",
                               f"meson setup build-cuda {self.tree}", "meson configure build-cuda",
                               "ninja -C build-cuda examples/mixtape-demo tests/kernels_cuda_test tests/ptx_test "
                               "tests/ptx_hopper_test tests/ptx_cluster_test",
                               "meson test -C build-test --no-rebuild", "meson test -C build-cuda --no-rebuild"])

    def test_an_nvcc_that_is_too_old_has_no_tests(self) -> None:
        self.build("test")
        self.write("build-cuda/configure.log", "WARNING: nvcc cannot compile the CUDA kernels: no C++20\n")
        run, calls = self.build("test")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertIn("cannot compile the CUDA kernels: no C++20", run.stdout)
        self.assertNotIn("kernels_cuda", str(calls))

    def test_what_stops_it_is_a_failure(self) -> None:
        for what, where, said in (("NO_TOOLS", "yes", "script/bootstrap"), ("NO_SETUP", "build-test", "configuring"),
                                  ("NO_BUILD", "build-test", "the build"),
                                  ("NO_SETUP", "build-cuda", "configuring for nvcc"),
                                  ("NO_BUILD", "build-cuda", "the build with nvcc")):
            run, _ = self.build("test", **{what: where})
            self.assertEqual(run.returncode, 1, what)
            self.assertEqual(run.stdout.splitlines()[-2:],
                             [f"script/test: {said} failed", "0 passed, 1 failed, 0 skipped"])
        run, _ = self.build("test", "--filter", "none")
        self.assertEqual(run.returncode, 1)
        self.assertIn("the search for a test named none failed\n0 passed, 1 failed, 0 skipped\n", run.stdout)

    def test_what_meson_or_the_count_finds_wrong_is_a_failure(self) -> None:
        self.assertEqual(self.build("test", STATUS="3")[0].returncode, 3)
        self.assertEqual(self.build("test", LOG=self.PASSED.replace("OK", "FAIL"))[0].returncode, 1)

    def test_an_old_report_does_not_speak_for_a_crash(self) -> None:
        self.build("test")
        self.write("build-test/core.xml", '<testsuite><testcase classname="S" name="c" status="run"/></testsuite>')
        run, _ = self.build("test", LOG=self.PASSED.replace("OK", "FAIL"), STATUS="1")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (1, "0 passed, 2 failed, 0 skipped"))
        self.assertEqual(self.build("test", LOG="")[0].stdout.splitlines()[-2:],
                         ["no test ran", "0 passed, 0 failed, 0 skipped"])

    def test_a_filter_is_a_part_of_a_name_or_a_glob(self) -> None:
        for pattern, names in ("core", "core scores"), ("*lint", "lint"):
            _, calls = self.build("test", "--filter", pattern)
            self.assertRegex(calls[-1], rf" --num-processes \d+ {re.escape(names)}$")

    def test_another_processor_is_skipped_or_emulated(self) -> None:
        run, calls = self.build("test", "--arch", "aarch64")
        self.assertEqual((run.returncode, calls), (0, []))
        self.assertRegex(run.stdout, r"^skipped all for aarch64: not here: .*build-tools/aarch64/cross.ini \(script/bootstrap "
                                     r"--arch aarch64, on Debian for x86_64\)\n0 passed, 0 failed, 1 skipped\n$")
        self.write("build-tools/aarch64/cross.ini", "")
        for tool in "aarch64-linux-gnu-g++", "qemu-aarch64":
            self.write(f"bin/{tool}", "#!/bin/sh\n", 0o755)
        run, calls = self.build("test", "--arch", "aarch64")
        self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertIn(f" --cross-file {self.tree}/build-tools/aarch64/cross.ini ", calls[0])
        self.assertTrue(calls[-2].endswith(" tests/core_test"), calls[-2])
        self.assertTrue(calls[-1].endswith(" core"), calls[-1])
        run, calls = self.build("test", "--arch", "avx512")
        if "avx2" in Path("/proc/cpuinfo").read_text().split():
            self.assertEqual((run.returncode, run.stdout.splitlines()[-1]), (0, "1 passed, 0 failed, 0 skipped"))
            self.assertIn(" -Dcpu_arch=emulated", calls[0])
            self.assertTrue(calls[-1].endswith(" sweep"), calls[-1])
        else:
            self.assertEqual((run.returncode, calls), (0, []))
            self.assertEqual(run.stdout, "skipped all for avx512: not here: a processor with AVX2\n0 passed, 0 failed, 1 skipped\n")

    def test_a_build_folder_is_kept_while_it_is_good(self) -> None:
        self.assertTrue(self.anew())
        self.assertFalse(self.anew())
        info = self.tree / "build-test/meson-info/meson-info.json"
        for was, now in ('"1.0"', '"0.9"'), ("false", "true"), (f'"source": "{self.tree}', '"source": "/elsewhere'):
            info.write_text(info.read_text().replace(was, now))
            self.assertTrue(self.anew(), now)
        for name in "meson-info/meson-info.json", "meson-private/coredata.dat", "build.ninja":
            (self.tree / "build-test" / name).unlink()
            self.assertTrue(self.anew(), name)
        self.assertTrue(self.anew(STALE="ninja: error: a file is gone"))

    def test_an_error_in_meson_build_is_told_and_the_folder_kept(self) -> None:
        self.anew()
        self.write("build-test/left", "")
        run, _ = self.build("test", STALE="../meson.build:3:0: ERROR: no such thing")
        self.assertEqual(run.returncode, 1)
        self.assertIn("ERROR: no such thing", run.stdout)
        self.assertTrue((self.tree / "build-test/left").exists())

    def test_demo_builds_its_program(self) -> None:
        run, calls = self.build("demo", "two words", PROGRAM='echo "got $@"')
        self.assertEqual((run.returncode, run.stdout), (0, "got two words\n"), run.stderr)
        # nvcc is not waited for where no device is there.
        there = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg")
        self.assertIn("-Dcuda=auto" if there else "-Dcuda=disabled", str(calls))

    def test_bench_runs_what_it_builds_with_no_processor_imposed(self) -> None:
        line = {"name": "train/mlp", "run_name": "train/mlp", "real_time": 1, "time_unit": "ms"}
        wrong = {**line, "error_occurred": True, "error_message": "beyond its peer"}
        for benchmark, status in (line, 0), (wrong, 1):
            found = json.dumps({"context": {}, "benchmarks": [benchmark]})
            run, _ = self.build("bench", "train", OPENBLAS_CORETYPE="Core2", PROGRAM=f"""
for option; do case $option in --benchmark_out=*) echo '{found}' > ${{option#*=}} ;; esac; done
echo "${{OPENBLAS_CORETYPE-free}}"
""")
            self.assertEqual(run.returncode, status, run.stdout + run.stderr)
            self.assertEqual((self.tree / "build/bench/found/train.txt").read_text(), "free\n")
        self.assertIn("ERROR: beyond its peer", run.stdout)

    def test_bench_compares_with_the_libtorch_it_is_given(self) -> None:
        run = self.run_script("bench", "--libtorch", str(self.tree))
        self.assertEqual((run.returncode, run.stderr), (
            2, f"bench: no libtorch in {self.tree}: there is no lib/libtorch_cpu.so (--help explains)\n"))
        self.write("lib/libtorch_cpu.so", "")
        for given, wanted in ([], "/usr"), (["--libtorch", str(self.tree)], str(self.tree)):
            _, calls = self.build("bench", "train", *given, PROGRAM="exit 0")
            changed, *_ = [call for call in calls if f"-Dlibtorch={wanted}" in call]
            self.assertTrue(changed.startswith("meson configure build "), changed)  # before meson runs with the old one

    def test_bench_runs_the_pytorch_of_an_interpreter(self) -> None:
        self.assertEqual(self.run_script("bench", "--torch", "none", "train").stderr,
                         "bench: no Python interpreter none (--help explains)\n")
        self.write("bin/python", f"#!/bin/sh\nexit $(cat {self.tree}/status)\n", 0o755)
        self.write("status", "1")
        python = str(self.tree / "bin/python")
        self.assertEqual(self.run_script("bench", "--torch", python, "train").stderr,
                         f"bench: no PyTorch in {python} (--help explains)\n")
        self.write("status", "0")
        self.build("bench", "train", "--torch", python, PROGRAM='printf "%s\n" "$@"; exit 1')
        self.assertIn(f"--torch={python} script/bench_torch.py \n", (self.tree / "build/bench/found/train.txt").read_text())


class Nvcc(ScriptTest):
    """meson's reaction to an nvcc: stand-ins, which compile nothing."""

    def setup(self, nvcc: str, cuda: str) -> tuple[str, str]:
        """meson's output, and the build.ninja."""
        self.write("bin/nvcc", f"#!/bin/sh\n{nvcc}\n", 0o755)
        self.write("lib64/libcudart_static.a", "!<arch>\n")
        command = ["meson", "setup", self.tree / "build", root, f"-Dcuda={cuda}", "-Dexamples=disabled",
                   "-Dtests=disabled", "-Dbench=disabled"]
        run = subprocess.run(command, text=True, capture_output=True, env=self.with_bin())
        ninja = self.tree / "build/build.ninja"
        return run.stdout, ninja.read_text() if ninja.exists() else ""

    def test_an_option_that_it_lacks_is_not_used(self) -> None:
        kernels = len(list((root / "kernels" / "cuda").rglob("*.cu")))
        for help_text in "", "--compress-mode [size]":
            with self.subTest(help_text):
                said, ninja = self.setup(f"echo '{help_text}'", "auto")
                commands = [line for line in ninja.splitlines() if "bin/nvcc -" in line]
                self.assertGreaterEqual(len(commands), kernels, said)
                self.assertEqual({"--compress-mode=size" in command for command in commands}, {bool(help_text)})
                shutil.rmtree(self.tree / "build")

    def test_all_architectures_are_those_that_it_knows(self) -> None:
        for known, wanted in ("sm_80\nsm_90", False), ("sm_80\nsm_90\nsm_100\nsm_120", True):
            with self.subTest(known):
                _, ninja = self.setup(f"printf '{known}\\n'", "auto")
                self.assertIn("code=sm_90a", ninja)
                for arch in "sm_100", "sm_120":
                    self.assertEqual(f"code={arch}" in ninja, wanted)
                shutil.rmtree(self.tree / "build")

    def test_one_that_is_too_old_is_left_alone_and_that_is_told(self) -> None:
        fatal = "[ $1 = --help ] || { echo nvcc fatal: no such device >&2; exit 1; }"
        said, ninja = self.setup(fatal, "auto")
        self.assertIn(f"WARNING: {self.tree}/bin/nvcc cannot compile the CUDA kernels: nvcc fatal: no such", said)
        self.assertNotIn("device.cu.o", ninja)
        self.assertIn("build.ninja", ninja)
        shutil.rmtree(self.tree / "build")
        said, ninja = self.setup(fatal, "enabled")
        self.assertIn("cannot compile the CUDA kernels: nvcc fatal: no such device", said)
        self.assertEqual(ninja, "")


class CheckKernels(ScriptTest):
    """A stand-in for nm, by which the program has two kernels; what it launched stands in a report."""

    KERNELS = """// A __global__ function.
template <class T>
__global__ void copy(const T* x) {}
__global__ __launch_bounds__(most, sizeof(T) > 4 ? min(1, 2) : 2) void
fill_rows(int* x);
"""

    def check(self, launched: str = "10\n20\n", age: int = -9, **files: str) -> tuple[int, str]:
        for name, text in {"a.cu": self.KERNELS, **files}.items():
            self.write(f"kernels/cuda/{name}", text)
        self.write("bin/nm", "#!/bin/sh\necho 0010 t mixtape::cuda::copy'<float>(float*)'\n"
                             "echo 0020 t 'mixtape::cuda::fill_rows(int*)'\necho 0030 t 'cuda::other(int)'\n", 0o755)
        self.write("build/tests/a_test", "")
        self.write("build/launched/a_test-123", launched)
        program = self.tree / "build/tests/a_test"
        time = (self.tree / "build/launched/a_test-123").stat().st_mtime
        os.utime(program, (time + age, time + age))
        run = self.run_script("check_kernels.py", str(self.tree / "build"), env=self.with_bin())
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout

    def test_all_that_ran_pass(self) -> None:
        self.assertEqual(self.check(), (0, "2 of 2 kernels ran\n"))

    def test_what_no_test_launched_is_found(self) -> None:
        self.assertEqual(self.check("10\n30\n"), (1, "a.cu: fill_rows was launched by no test\n1 of 2 kernels ran\n"))

    def test_a_name_of_two_kernels_is_an_error(self) -> None:
        code, text = self.check(**{"b.cuh": "__global__ void copy(int n) {}\n"})
        self.assertEqual((code, text.splitlines()[0]), (1, "a.cu, b.cuh: two kernels are named copy"))

    def test_where_no_kernel_is_found_something_is_wrong(self) -> None:
        self.assertEqual(self.check(**{"a.cu": ""}), (1, "0 of 0 kernels ran\n"))

    def test_a_report_of_an_older_program_does_not_count(self) -> None:
        self.assertEqual(self.check(age=9), (77, "no test program said which kernels it launched\n"))


class Lint(ScriptTest):
    """A stand-in for clang-format, to which files with bad in their names are bad."""

    def lint(self, *arguments: str, version: str = "19.1.7", compiler: str = "true") -> subprocess.CompletedProcess:
        self.write("bin/clang-format-19", f"""#!/bin/sh
[ $1 != --version ] || echo "Debian clang-format version {version}"
for file; do
  case $file in *bad*) echo "$file:1:2: warning: code should be clang-formatted [-Wclang-format-violations]" >&2 ;; esac
done
""", 0o755)
        self.write("tests/packaging/hello.cpp", "")
        return self.run_script("lint", *arguments, env=self.with_bin(CXX=compiler))

    def test_a_bad_format_is_found(self) -> None:
        self.write("core/good.h", "")
        self.write("build-x/bad.h", "")
        self.assertEqual(self.lint("--only", "format").returncode, 0)
        self.write("core/bad.h", "")
        self.write("kernels/cuda/bad.cu", "")
        run = self.lint("--only", "format")
        self.assertEqual((run.returncode, run.stdout),
                         (1, "clang-format-19 -i would change:\ncore/bad.h\nkernels/cuda/bad.cu\n"))
        run = self.lint("--only", "format", version="15.0")
        self.assertEqual((run.returncode, run.stdout),
                         (77, "FORMAT IS NOT CHECKED: clang-format-19 decides it, and here it is 15\n"))

    def test_a_check_that_did_not_run_is_told_at_the_end(self) -> None:
        self.write("core/good.h", "")
        tidy = "clang-tidy did not run: it or build/compile_commands.json is absent\n"
        run = self.lint()
        self.assertEqual((run.returncode, run.stderr), (0, tidy))
        run = self.lint(version="15.0")
        self.assertEqual(run.returncode, 0)
        self.assertEqual(run.stderr, "FORMAT IS NOT CHECKED: clang-format-19 decides it, and here it is 15\n" + tidy)
        self.write("bin/clang-format-19", "#!/bin/sh\nexit 127\n", 0o755)
        run = self.run_script("lint", "--only", "format", env=self.with_bin())
        self.assertEqual((run.returncode, run.stdout),
                         (77, "FORMAT IS NOT CHECKED: clang-format-19 decides it, and here it is absent\n"))

    def test_one_bad_check_is_enough(self) -> None:
        for name in "core/good.h", "kernels/cpu/a.h", *(f"{f}/a.h" for f in "autograd nn optim amp io train".split()):
            self.write(name, "")
        run = self.lint()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("== style\n", run.stdout)
        self.write("core/bad.h", "")
        run = self.lint()
        self.assertEqual(run.returncode, 1)
        self.assertIn("== cost\n", run.stdout)

    def test_a_cost_over_the_budget_fails_where_that_is_asked_for(self) -> None:
        self.write("bin/greedy", "#!/usr/bin/env python3\nb'x' * 300_000_000\n", 0o755)
        strict = ["--strict-cost"]
        for compiler, options, code in ("greedy", [], 0), ("greedy", strict, 1), ("true", strict, 0), ("false", [], 1):
            run = self.lint("--only", "cost", *options, compiler=compiler)
            self.assertEqual(run.returncode, code, (compiler, run.stdout, run.stderr))


class Style(ScriptTest):
    def found(self, name: str, text: str, *arguments: str) -> str:
        self.write(name, text)
        run = self.run_script("check_style.py", *arguments, str(self.tree))
        self.assertEqual(run.returncode, int(name in run.stdout), run.stdout + run.stderr)
        (self.tree / name).unlink()
        return run.stdout

    def test_a_word_that_was_replaced_is_found_where_it_may_not_stand(self) -> None:
        for name, text, line in [
            ("core/a.h", "\n\nauto n = pieces(7, 2);\n", 3),
            ("docs/a.md", "a `NamedTensors`\n", 1),
            ("kernels/cpu/gemm/a.h", "// One\nstruct Side {};\n", 2),
            ("amp/a.cpp", "bool spoilt = false;\n", 1),
        ]:
            found = self.found(name, text, "--only", "words")
            self.assertTrue(found.startswith(f"{name}:{line}: \""), found)
            self.assertIn("has become", found)
        for name, text in [
            ("autograd/engine.cpp", "  seen(node);"), ("autograd/engine.cpp", "  arrive(node);"),
            ("core/a.h", "At here;"), ("nn/a.cpp", "const At line(x);"), ("core/a.h", "Where x;"), ("core/a.h", "Where at = here();"),
            ("core/a.h", "struct Where {"), ("core/a.cpp", "struct Counts {"), ("kernels/cuda/reduce/a.cu", "struct Lines {"),
            ("train/a.cpp", "if (useful(x))"), ("tests/a.cpp", "sort_saved(x)"), ("amp/a.cpp", "class GradientSurvey {"),
            ("docs/a.md", "a `Strip`"), ("nn/a.cpp", "bool judged;"), ("core/a.h", "const Where& at;"), ("amp/a.h", "Counts add(int x);"), ("kernels/cpu/a.h", "Lanes* x = y;"),
            ("kernels/cuda/a.cu", "wide<float>(x)"), ("kernels/cpu/gemm/a.h", "int unit;"),
            ("kernels/cuda/optim/a.cuh", "using Quad = int;"), ("amp/scaler.h", "  Iteration now;"),
            ("amp/scaler.cpp", "s.known = true;"), ("amp/scaler.h", "bool known = false;"), ("amp/a.h", "struct LossScale {"),
            ("core/a.cpp", "narrow(dtype)"), ("dist/a.h", "// Nobody waits"), ("docs/a.md", "whoever reads"),
            ("tests/a.cpp", "// what\n// somebody holds"),
            *(("optim/a.h", f"struct {name} {{") for name in ("Rule", "AdamRule", "Block", "Row", "Run", "Plan")),
            ("train/a.cpp", "using Plan = int;"),
        ]:
            self.assertIn(f"{name}:{text.count(chr(10)) + 1}: \"", self.found(name, text, "--only", "words"), text)
        for name, text in [
            ("train/a.h", "struct Side {};"), ("bench/worklog/7-a.md", "pieces(7, 2)"), ("a.bin", "pieces("),
            ("autograd/a.cpp", "state.seen(x);"), ("nn/a.h", "// At most (or least) two. Where it fits, one"),
            ("amp/scaler.cpp", "// a scale that is known, and now"), ("kernels/a.h", "template <class F, class Plan>"),
            ("tests/a.cpp", "struct Row {};"), ("autograd/a.cpp", "narrow(x, 0, 1, 2)"), ("nn/a.h", "struct Block {};"),
        ]:
            self.assertEqual(self.found(name, text, "--only", "words"), "")

    def test_comments_that_begin_badly_are_found(self) -> None:
        for line, word in ("// How it is done", "How"), ("  // What follows", "What"), ("/* Of these", "Of"), ("# Whether it is", "Whether"), (
                "int x;  // what it has", "what"), ("f(x)  # how", "how"):
            found = self.found("tests/a.cpp", f"\n{line}\n{line}\n", "--only", "comments")
            self.assertIn(f"tests/a.cpp:2: a comment begins with {word}\n", found)
            self.assertIn("2 comment lines begin with Of, What, Whether or How, more than 1\n", found)
        for line in "int x;  // of the device", "// However", "// the text\n// of it", "// One may do so", 'check(f, "a;  // what");':
            self.assertEqual(self.found("nn/a.h", f"{line}\n{line}\n", "--only", "comments"), "")

    def test_long_functions_are_found_and_what_only_looks_like_one_is_not(self) -> None:
        body = "  // }\n  f('{');\n" * 30
        long = "// A brace {\ntemplate <class T>\nstatic auto %s(T x)\n    -> int {\n" + body + "}\n"
        other = "namespace mixtape {\nstruct S : T<int (*)(int)> {\n" + "  int x = 1;\n" * 99 + "  S() : a{1} {}\n};\n}\n"
        self.assertEqual(self.found("nn/a.cpp", other, "--only", "functions"), "")
        found = self.found("nn/a.cpp", long % "a" + other + long % "b", "--only", "functions")
        self.assertIn("nn/a.cpp:2: a() has 64 lines, more than 60\n", found)
        self.assertIn(": b() has 64 lines, more than 60\n", found)
        self.assertEqual(self.found("tests/a.cpp", "void f() {\n" + "  ;\n" * 99 + "}\n", "--only", "functions"), "")

    def test_files_and_folders_have_limits(self) -> None:
        self.assertIn("io/a.cpp:1: 501 lines, more than 500", self.found("io/a.cpp", "\n" * 501, "--only", "files"))
        self.assertIn("emulator/ptx/a.cpp:1: 501 lines", self.found("emulator/ptx/a.cpp", "\n" * 501, "--only", "files"))
        for name, lines in ("autograd/ops.h", 600), ("tests/a.cpp", 501), ("emulator/a.h", 500):
            self.assertEqual(self.found(name, "\n" * lines, "--only", "files"), "")
        self.write("io/a.cpp", "\n" * 9000)
        run = self.run_script("check_style.py", "--only", "budgets", str(self.tree))
        self.assertEqual(run.returncode, 1)
        self.assertIn("io: 9000 lines, more than the ", run.stdout)


class Layers(ScriptTest):
    def found(self, name: str, text: str) -> str:
        self.write(name, text)
        run = self.run_script("check_layers.py", str(self.tree))
        self.assertEqual(run.returncode, int(bool(run.stdout)), run.stderr)
        (self.tree / name).unlink()
        return run.stdout

    def test_includes_that_point_down_pass(self) -> None:
        self.write("core/tensor.h", '#include "core/check.h"\n')
        self.write("core/check.h", "#include <fmt/core.h>\n")
        self.assertEqual(self.found("optim/sgd.cpp", '#include "autograd/tape.h"\n#include "core/tensor.h"\n'), "")
        self.assertEqual(self.found("kernels/cpu/gemm.h", "#include <Eigen/Core>\n"), "")
        self.assertEqual(self.found("io/a.cpp", '#include <fmt/ranges.h>\nx = fmt::format("{}", fmt::join(y, ""));\n'), "")
        self.assertEqual(self.found("kernels/cuda/gpu.cuh", '#include "emulator/simt/simt.h"\n'), "")
        self.assertEqual(self.found("tests/a_test.cpp", '#include "train/learner.h"\n#include <mixtape.h>\n'), "")

    def test_each_planted_violation_is_found(self) -> None:
        self.write("core/tensor.h", "")
        self.write("core/check.h", "#include <fmt/core.h>\n")
        outside = "../" + "shared/data"
        for name, text, complaint in [
            ("core/a.h", '#include "nn/linear.h"', "core must not include nn/linear.h"),
            ("core/a.h", "#include <amp/autocast.h>", "core must not include amp/autocast.h"),
            ("nn/a.cpp", '#include "kernels/kernels.h"', "nn must not include kernels/kernels.h"),
            ("core/a.cpp", '#include "emulator/simt/simt.h"', "core must not include emulator/simt/simt.h"),
            ("optim/a.cpp", '#include "autograd/ops.h"', "optim must not include autograd/ops.h"),
            ("io/a.cpp", "\n  #  include <mixtape.h>", "io must not include <mixtape.h>"),
            ("nn/a.cpp", '#include "linear.h"', '"linear.h" does not start with a layer'),
            ("kernels/cpu/a.cpp", '#include "core/tensor.h"', "never Tensors: core/tensor.h"),
            ("kernels/a.h", '#include "core/check.h"', "neither fmt nor Eigen: core/check.h -> fmt/core.h"),
            ("kernels/cuda/a.cu", "#include <Eigen/Core>", "neither fmt nor Eigen: Eigen/Core"),
            ("bench/lab/a.cuh", "#include <fmt/core.h>", "neither fmt nor Eigen: fmt/core.h"),
            ("io/a.h", "#include <nlohmann/json.hpp>", "too heavy for a public header: nlohmann/json.hpp"),
            ("io/a.cpp", '#include <fmt/core.h>\nx = fmt::format("");', "fmt::format needs <fmt/format.h> in this file"),
            ("tests/a_test.cpp", '#include <fmt/format.h>\nx = fmt::join(y, "");', "fmt::join needs <fmt/ranges.h> in this file"),
            ("docs/a.md", f"see {outside}", "lies outside the project"),
        ]:
            with self.subTest(name=name, text=text):
                found = self.found(name, text + "\n")
                self.assertIn(complaint, found)
                self.assertTrue(found.startswith(f"{name}:{text.count(chr(10)) + 1}: "), found)
                self.assertEqual(found.count("\n"), 1, found)


class Clang(ScriptTest):
    def test_a_source_that_clang_does_not_compile_is_found(self) -> None:
        def check(*names: str, **more: str) -> subprocess.CompletedProcess:
            entries = [{"file": name, "output": name + ".o", "directory": str(self.tree),
                        "command": f"c++ -std=c++20 '-DTEXT=\"a b\"' -O2 -c {name}"} for name in names]
            self.write("build/compile_commands.json", json.dumps(entries))
            return self.run_script("check_clang.py", str(self.tree / "build"), env=self.with_bin(**more))

        self.write("bin/clang++", """#!/bin/sh
  case $* in
    '-std=c++20 -DTEXT="a b" -fsyntax-only'*good.cpp) ;;
    *) echo "no: $*" >&2; exit 1 ;;
  esac
""", 0o755)
        run = check("core/good.cpp", "tests/other.cpp", "dist/plugin.c")
        self.assertEqual((run.returncode, run.stdout), (0, "clang++ read 1 files of the library; 0 do not compile\n"))
        run = check("core/good.cpp", "nn/bad.cpp")
        self.assertEqual(run.returncode, 1)
        self.assertIn("nn/bad.cpp", run.stdout)
        self.assertEqual(check().returncode, 1)  # a check of nothing
        (self.tree / "bin/clang++").unlink()
        (self.tree / "bin/python3").symlink_to(sys.executable)
        run = check("core/good.cpp", PATH=str(self.tree / "bin"))
        self.assertEqual((run.returncode, run.stdout), (77, "clang++ did not check the library: it is absent\n"))


class Headers(ScriptTest):
    def test_a_header_that_needs_another_or_has_no_guard_is_found(self) -> None:
        check = ("check_headers.py", str(self.tree), str(self.tree / "compiled"), *compiler)
        self.write("core/good.h", "#pragma once\n#include <vector>\nstruct Good { std::vector<int> v; };\n")
        self.write("kernels/cpu/internal.h", "std::vector<int> v;\n")
        self.assertEqual(self.run_script(*check).stdout, "1 headers, 0 do not compile alone\n")
        self.write("core/needy.h", "#pragma once\ninline std::vector<int> v;\n")
        self.write("nn/unguarded.h", "struct Twice {};\n")
        run = self.run_script(*check)
        self.assertEqual(run.returncode, 1)
        for name in "core/needy.h", "nn/unguarded.h":
            self.assertIn(f"{name} does not compile alone", run.stdout)
        self.assertTrue(run.stdout.endswith("3 headers, 2 do not compile alone\n"), run.stdout)
        # A base is precompiled, and hides no more than its own includes.
        self.write("core/tensor.h", "#pragma once\n#include <vector>\nusing Tensor = std::vector<int>;\n")
        self.write("core/of_base.h", '#pragma once\n#include "core/tensor.h"\ninline Tensor a;\ninline std::vector<int> b;\n')
        self.write("core/lacks.h", '#pragma once\n#include "core/tensor.h"\ninline std::list<int> c;\n')
        self.write("core/no_base.h", "#pragma once\ninline Tensor d;\n")
        self.write("core/twice.h", '#include "core/tensor.h"\nstruct Again {};\n')
        run = self.run_script(*check)
        for name in "core/lacks.h", "core/no_base.h", "core/twice.h":
            self.assertIn(f"{name} does not compile alone", run.stdout)
        self.assertTrue(run.stdout.endswith("8 headers, 5 do not compile alone\n"), run.stdout)
        self.assertTrue((self.tree / "compiled/base_core_tensor.h.gch").exists())


class Docs(ScriptTest):
    """Two small headers, and what the documents make of each thing in them."""

    def setUp(self) -> None:
        super().setUp()
        self.write("ops", "#!/bin/sh\nprintf 'add Widest add\\nadd_scalar Any add_scalar\\nsum Full sum sum_of_rows\\n"
                          "hidden Low hidden\\n'\n", 0o755)
        self.write("tests/amp/policy_test.cpp", "")  # which policies.md names, as nn.md does this
        self.write("tests/support/op_rows/rows.cpp", "add(a, b) sum(a) mean(a) total(a) add_(a)")
        self.write("docs/modules.md", "## Weights that are computed\n")
        self.write("docs/mixed-precision.md", "before\n<!-- policies: made -->\nold\n<!-- end of policies -->\n")
        self.write("autograd/ops.h", """#pragma once
// All of it.

namespace mixtape {

// --- arithmetic: broadcasts ---
Tensor add(const Tensor& a, const Tensor& b);  // a|b
Tensor add(const Tensor& a,
           double b = {});  // with a number
enum class How { Fast, Slow };
struct SumOptions {
  std::vector<int> dims = {};  // none: all
};
// The sum, and
// its mean.
Tensor sum(const Tensor& x, const SumOptions& options = {});
Tensor mean(const Tensor& x);
Tensor total(const Tensor& x);
inline Tensor sum(const Tensor& a, const Tensor& b) { return add(a, b); }

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }

// --- in place ---
// All of x.

const Tensor& add_(const Tensor& x, double y);

}  // namespace mixtape
""")
        self.write("autograd/ops/sum.cpp", """namespace {
struct Hidden : Op {
  static constexpr OpInfo info{"hidden", Precision::Low};
};
Tensor helped(const Tensor& x) { return std::max(1, 2) + sum(x); }
}
Tensor total(const Tensor& x) { return call<Hidden>(sum(x), 1); }
Tensor mean(const Tensor& x) {
  return helped(x);  // not hidden(x)
}
""")
        self.write("nn/layer.h", """#pragma once
// Layers.

template <class Derived>
struct Base : Module<Derived> {  // maps
  Tensor weight, bias;  // [out]
  Buffer count;
  std::vector<Layer> layers;

  explicit Base(int64_t size) : weight(ones({size})) {
    check(size > 0, "a size of {}", size);
  }
  MIXTAPE_FIELDS(weight, bias, count, layers)
};
struct Layer : Base<Layer> {  // [in] -> [out]
  using Base::Base;
};
struct Exp : Module<Exp> {
  Tensor forward(const Tensor& x) const { return exp(x, low_); }
  MIXTAPE_FIELDS()
};
template <class Derived, auto op, class... Options>
struct OpModule : Module<Derived> {
  explicit OpModule(Options... options) : options_(std::move(options)...) {}
  Tensor forward(const Tensor& x) const { return op(x); }
  MIXTAPE_FIELDS()
};
struct Log : OpModule<Log, log_e> {};
struct Pow : OpModule<Pow, power, double> {
  explicit Pow(double exponent = 2) : OpModule(exponent) {}
};
struct NoModule {  // of nothing
  int x;
};
""")

    def docs(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run_script("docs", "--ops", str(self.tree / "ops"), *arguments)

    def document(self, name: str) -> str:
        run = self.docs()
        self.assertEqual(run.returncode, 0, run.stderr)
        return (self.tree / "docs" / name).read_text()

    def test_functions_have_signature_comment_policy_and_name(self) -> None:
        text = self.document("ops.md")
        for line in [
            "## Arithmetic\n\nBroadcasts.",
            "| `add(a, b)` | a\\|b | Widest | `torch.add` |",
            "| `add(a, double b = {})` | with a number | Any | `torch.add` |",
            "| `sum(x, SumOptions options = {})` | The sum, and its mean. | Full | `torch.sum` |",
            "| `mean(x)` | The sum, and its mean. | as `sum` | `torch.mean` |",
            "| `total(x)` | The sum, and its mean. | as `hidden` | `torch.total` |",
            "| `sum(a, b)` | The sum, and its mean. | as `add` | `torch.sum` |",
            "Operators: `+` is `add`.",
            "- `How`: `Fast`, `Slow`\n- `SumOptions`: `vector<int> dims = {}` (none: all)\n",
            "## In place\n\nAll of x.",
            "| `add_(x, double y)` |  | `Tensor.add_` |",
            "`hidden` (Low)",
        ]:
            self.assertIn(line, text)

    def test_the_header_of_a_section_takes_one_line(self) -> None:
        header = self.tree / "autograd/ops.h"
        header.write_text(header.read_text().replace("// --- arithmetic: broadcasts ---", "// --- arithmetic: long\n// ---"))
        run = self.docs()
        self.assertEqual(run.returncode, 1)
        self.assertIn("the header of a section needs one line, ending with ---: // --- arithmetic: long", run.stderr)

    def test_modules_have_those_of_their_base(self) -> None:
        text = self.document("nn.md")
        fields = "`weight` [out]<br>`bias` [out]<br>`count` buffer<br>`layers` `std::vector<Layer>`"
        self.assertIn(f"| `Layer(int64_t size)` | [in] -> [out]. maps. | {fields} | `nn.Layer` |", text)
        self.assertIn("| `Exp()` | `exp(x, low)` |  | `nn.Exp` |", text)
        self.assertIn("| `Log()` | `log_e(x)` |  | `nn.Log` |", text)
        self.assertIn("| `Pow(double exponent = 2)` | `power(x, exponent)` |  | `nn.Pow` |", text)
        self.assertIn("- `NoModule`: `int x`. Of nothing.\n", text)
        self.assertNotIn("`Base", text)

    def test_models_and_what_makes_them(self) -> None:
        self.write("nn/models/net.h", "#pragma once\n// Nets.\n\nstruct Net : nn::Module<Net> {  // [in] -> [out]\n"
                                      "  MIXTAPE_FIELDS()\n};\nNet small_net(int64_t depth = 2);  // a small one\n")
        self.assertIn("## nn/models/net.h\n\nNets.\n\n| module |  | parameters and buffers |\n|---|---|---|\n"
                      "| `Net()` | [in] -> [out]. |  |\n| `small_net(int64_t depth = 2) -> Net` | a small one |  |\n",
                      self.document("nn.md"))

    def test_references_have_what_is_public(self) -> None:
        self.write("core/thing.h", """#pragma once
// Things.

namespace mixtape {
namespace detail {
void hidden();
}  // namespace detail

enum class Mode { Fast, Slow };
struct ThingOptions {
  double lr = 1e-3, eps = 0;  // > 0
  std::optional<int> size = {};
};
// One thing.
class Thing : public Other, NoCopy {
 public:
  explicit Thing(const ThingOptions& options = {});  // throws Error
  Thing(const Thing&) = delete;
  ~Thing();
  // The state, and back.
  const StateDict& state_dict() const;
  void load_state_dict(const StateDict& dict);
  int* steps() const { return steps_; }
  void seen() override;
  struct Counters {
    int64_t updates = 0;
  };

 protected:
  void reset();

 private:
  int* steps_;
};

// Makes | breaks one.
template <class F>
  requires std::derived_from<std::invoke_result_t<F&, std::vector<Tensor>>, Thing>
Thing make(F&& f, std::span<const Tensor> xs);
using Maker = std::function<Thing()>;
}  // namespace mixtape
""")
        text = self.document("reference/core.md")
        for part in [
            "| `core/thing.h` | `ThingOptions` `Thing` `Mode` `make` `Maker` |\n",
            "## [core/thing.h](../../core/thing.h)\n\nThings.\n",
            "| `Thing make(F f, span<Tensor> xs)` | Makes \\| breaks one. |\n| `Maker = function<Thing()>` |  |\n",
            "- `Mode`: `Fast`, `Slow`\n",
            "| `double lr = 1e-3, eps = 0` | > 0 |\n| `optional<int> size = {}` |  |\n",
            "### Thing\n\nOne thing. Derives from `Other`.\n\n| member |  |\n|---|---|\n"
            "| `Thing(ThingOptions options = {})` | throws Error |\n"
            "| `StateDict state_dict()`<br>`void load_state_dict(StateDict dict)` | The state, and back. |\n"
            "| `int* steps()` |  |\n\n### Thing::Counters\n\n| member |  |\n|---|---|\n| `int64_t updates = 0` |  |\n",
        ]:
            self.assertIn(part, text)
        for name in "hidden", "seen", "reset", "steps_", "~Thing":
            self.assertNotIn(name, text)

    def test_references_name_together_what_one_comment_explains(self) -> None:
        self.write("optim/schedules.h", """#pragma once
// Rates.

// Reads one.
Rates read_rates(const Source& source);
Rates parse_rates(std::string_view text);
bool has_rates(const Source& source);
struct Constant {  // stays
  Constant(Constant&&) noexcept;
  double factor = 1;

  void validate() const;
  double rate(int64_t step) const;
  Constant& scaled() &;  // by factor
  Constant scaled() &&;
  Constant sum(const Constant& a) const, sum(double a = f(0, 1)) const, half() const;  // a new one
};
struct Other {
  double rate(int64_t step) const;  // twice that
};
""")
        text = self.document("reference/optim.md")
        for part in [
            "| `Rates read_rates(Source source)`<br>`Rates parse_rates(string_view text)` | Reads one. |\n"
            "| `bool has_rates(Source source)` |  |\n",
            "### Constant\n\nstays\n\n| member |  |\n|---|---|\n| `double factor = 1` |  |\n"
            "| `Constant scaled()` | by factor |\n"
            "| `Constant sum(Constant a)`<br>`Constant sum(double a = f(0, 1))`<br>`Constant half()` | a new one |\n\n### Other",
            "| `double rate(int64_t step)` | twice that |\n",
        ]:
            self.assertIn(part, text)

    def test_functions_without_a_comment_are_found(self) -> None:
        self.write("docs/README.md", "")
        head, function = "#pragma once\n// A thing.\n\nstruct Thing {\n", "  Tensor f%d(const Tensor& x) const;\n"
        kept = "  int size = 0;\n  std::function<int(int)> g = {};\n  int told();  // once\n\n"
        self.write("optim/thing.h", head + kept + "};\n")
        self.assertEqual(self.docs().returncode, 0)
        run = self.docs("--check")
        self.assertEqual((run.returncode, run.stdout), (0, ""))
        self.write("optim/thing.h", head + kept + "".join(function % i for i in range(4)) + "};\n")
        self.assertEqual(self.docs().returncode, 0)
        run = self.docs("--check")
        self.assertEqual(run.returncode, 1)
        self.assertEqual(run.stdout, "".join(f"optim/thing.h: Thing: Tensor f{i}(Tensor x)\n" for i in range(4)) +
                         "optim: 4 public functions have no comment: say in a line what each does\n")

    def test_policies_stand_in_their_block(self) -> None:
        text = self.document("mixed-precision.md")
        head = "before\n<!-- policies: made -->\n\n| policy | ops |\n|---|---|\n| Low | `hidden` |\n"
        self.assertTrue(text.startswith(head), text)
        tail = "| Any | `add_scalar` |\n\nEvery op, with its tests: [policies.md](policies.md).\n\n<!-- end of policies -->\n"
        self.assertTrue(text.endswith(tail), text)

    def test_policies_name_their_tests(self) -> None:
        self.assertIn("| `sum` | Full | `sum` `sum_of_rows` |\n", self.document("policies.md"))
        self.write("ops", "#!/bin/sh\nprintf 'add Widest add\\nsum Full\\nhidden Low hidden\\n'\n", 0o755)
        run = self.docs()
        self.assertEqual((run.returncode, run.stdout), (1, ""))
        self.assertEqual(run.stderr, "docs: no row in tests/support/op_rows/ for sum\n")

    def test_functions_without_a_row_are_found(self) -> None:
        self.assertEqual(self.docs().returncode, 0)
        self.write("tests/support/op_rows/rows.cpp", 'add(a, b) sum(a) "mean" total(a) add_(a)')
        run = self.docs("--check")
        self.assertEqual((run.returncode, run.stdout), (1, "autograd/ops.h: mean has no row in tests/support/op_rows\n"))

    def test_a_stale_document_is_told_with_the_command(self) -> None:
        run = self.docs("--check")
        self.assertEqual(run.returncode, 1)
        self.assertIn("docs/nn.md is stale: run script/docs\n", run.stdout)
        self.assertFalse((self.tree / "docs/ops.md").exists())
        self.assertEqual(self.docs().returncode, 0)
        self.assertEqual(self.docs("--check").returncode, 0)
        header = self.tree / "autograd/ops.h"
        header.write_text(header.read_text().replace("with a number", "and a number"))
        run = self.docs("--check")
        self.assertEqual(run.returncode, 1)
        self.assertIn("+| `add(a, double b = {})` | and a number |", run.stdout)
        self.assertTrue(run.stdout.endswith("docs/ops.md is stale: run script/docs\n"), run.stdout)

    def test_a_file_a_heading_or_a_name_that_does_not_exist_is_told(self) -> None:
        self.assertEqual(self.docs().returncode, 0)
        self.write("docs/guide.md", "# A `guide`: more, of it\n[ops](ops.md#in-place), [here](#a-guide-more-of-it)\n")
        self.write("README.md", "`nn/layer.h`, `nn/`, `a / b.c` and `nn/gone.h`, [web](https://a.b/c), `[x](y)`\n"
                                "[a](docs/gone.md) [b](docs/guide.md#gone)\n```text\n[c](d)\n```\n"
                                "`nn::Layer(3)`, `std::gone`, `nn::Base::gone`\n")
        run = self.docs("--check")
        gone = "nn::Base::gone", "nn/gone.h", "docs/gone.md", "docs/guide.md#gone"
        told = "".join(f"README.md names {name}, which does not exist\n" for name in gone)
        self.assertEqual((run.returncode, run.stdout), (1, told))

    def test_a_long_readme_is_told(self) -> None:
        self.assertEqual(self.docs().returncode, 0)
        self.write("README.md", "word " * 700)
        self.assertEqual(self.docs("--check").returncode, 0)
        self.write("README.md", "word " * 701)
        run = self.docs("--check")
        self.assertEqual((run.returncode, run.stdout), (1, "README.md has 701 words, more than 700: move some to docs/\n"))

    def test_what_cannot_be_documented_is_an_error(self) -> None:
        for text, complaint in [
            ("struct Mute : Module<Mute> {\n  MIXTAPE_FIELDS()\n};\n", "Mute needs a comment"),
            ("struct Odd : Module<Odd> {  // x\n  MIXTAPE_FIELDS(w)\n};\n", "names w, which no line declares"),
            ("struct Open {\n", "no end of: struct Open {"),
        ]:
            with self.subTest(text=text):
                self.write("nn/bad.h", text + "\nusing X = int;\n" if "Open" not in text else text)
                run = self.docs()
                self.assertEqual((run.returncode, run.stdout), (1, ""))
                self.assertIn(complaint, run.stderr)
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)


class Contributing(unittest.TestCase):
    def test_it_shows_the_code_of_the_library(self) -> None:
        blocks = re.findall(r"^```diff\n(.*?)^```", (root / "CONTRIBUTING.md").read_text(), re.M | re.S)
        self.assertEqual(len(blocks), 2)
        for name, lines in re.findall(r"^ (\S+)\n((?:[-+ ].*\n)+)", "\n".join(blocks), re.M):
            code = (root / name).read_text()
            for added in re.findall(r"^\+(?:.*\n\+)*.*\n", lines, re.M):
                self.assertTrue(re.sub(r"^\+", "", added, flags=re.M) in code, f"{name} has other lines than:\n{added}")


class Gpu(ScriptTest):
    """Stand-ins for the programs. Of the tests, Nn.Breaks ends its process, and so all that would follow in it."""

    TESTS = """#!/usr/bin/env python3
import os, sys
tests = ["Devices.Move", "Ops/OnDevice.IsWhatItIsOnTheCpu/gelu", "Nn.Breaks", "Nn.NeedsFile"]
tests += [f"Nn.Follows{n}" for n in range(100)]
if "--gtest_list_tests" in sys.argv:
    for name in tests:
        suite, case = name.split(".")
        print(f"{suite}.\\n  {case}  # GetParam() = 1.5")
for name in next((a[15:].split(":") for a in sys.argv if a.startswith("--gtest_filter=")), []):
    if name == BREAKS:
        os.abort()
    skipped = name.endswith("File")
    on_device = os.environ.get("MIXTAPE_TEST_DEVICE") == "cuda:0"
    right = on_device == name.startswith("Nn.")
    print(f"[ {' SKIPPED' if skipped else '      OK' if right else ' FAILED '} ] {name} (0 ms)")
print("[----------] Global test environment tear-down")
"""
    FIGURES = {
        "device": {"name": "A GPU", "capability": "9.0", "multiprocessors": 132, "memory_bytes": 2**37},
        "date": "2026-01-02T03:04:05Z", "command": "bench_gpu", "peer": "cuBLAS 130000", "copy_bytes_per_second": 4e12,
        "left_out": [],
        "figures": [
            {"name": "gemm", "kind": "operations", "ours": {"median_ms": 2, "low_ms": 1.9, "high_ms": 2.1}, "wrong": [],
             "per_second": 5e14, "of_peer": 0.9, "error": 1e-3},
            {"name": "add", "kind": "bytes", "ours": {"median_ms": 1, "low_ms": 1, "high_ms": 1}, "wrong": [],
             "per_second": 3e12, "error": 0},
            {"name": "odd", "kind": "bytes", "wrong": ["an error of 1"], "error": 1},
        ],
    }

    TORCH = {"version": "2.9", "device": "A GPU", "left_out": ["gpt2/eager/64: out of memory", "gpt2/compiled: time was up"], "figures": [
        {"name": "gemm", "median_ms": 1.6, "per_second": 6.25e14, "unit": "FLOP/s"},
        {"name": "gpt2/eager/32", "median_ms": 131.072, "per_second": 250e3, "unit": "tokens/s"}]}
    GPT2 = """#!/bin/sh
[ "$8" != 64 ] || { echo 'Error: out of memory: 9 GB'; exit 1; }
echo 'step 10/20  loss 9.1  norm 1.0  lr 6e-04  999 ms  1.0k tokens/s  0.1 % of 989 TFLOP/s'
echo 'step 20/20  loss 9.0  norm 1.0  lr 6e-04  100 ms  327.7k tokens/s  31.1 % of 989 TFLOP/s'
"""

    def package(self, breaks: str = "None", device: bool = True, seconds_to_load: int = 90) -> subprocess.CompletedProcess:
        script = (root / "script/gpu_run.py").read_text()
        self.write("package/run", script.replace('"none", 90)', f'"none", {seconds_to_load})'), 0o755)
        self.write("package/gpu_report.py", (root / "script/gpu_report.py").read_text())
        torch = f"import json, sys\njson.dump({self.TORCH}, open(sys.argv[1], 'w'))\n"
        self.write("package/gpu_torch.py", torch if self.TORCH else "import sys\nsys.exit('no PyTorch here: none')\n")
        self.write("package/gpt2", self.GPT2, 0o755)
        self.write("package/cuda_test", self.TESTS.replace("BREAKS", breaks), 0o755)
        bench = "echo 'bench_gpu: no CUDA device' >&2; exit 2\n"
        if device:
            bench = f"for file; do :; done; [ $1 = --smoke ] || cat {self.tree}/figures > $file\n"
        self.write("figures", json.dumps(self.FIGURES))
        self.write("package/bench_gpu", "#!/bin/sh\n" + bench, 0o755)
        self.write("package/mixtape-demo", "#!/bin/sh\necho; echo 'mode  train loss'\n", 0o755)
        self.write("bin/compute-sanitizer", '#!/bin/sh\nshift 4\nexec "$@"\n', 0o755)
        return subprocess.run([self.tree / "package/run"], text=True, capture_output=True,
                              env=self.with_bin(OUT=str(self.tree / "out")))

    def test_without_a_device_nothing_runs_and_that_is_an_error(self) -> None:
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        run = self.run_script("gpu", env=self.with_bin())
        self.assertEqual(run.returncode, 1)
        self.assertIn("no CUDA device here: nothing was run", run.stderr)
        run = self.package(device=False)
        self.assertEqual((run.returncode, run.stdout), (2, "nothing was run: bench_gpu: no CUDA device\n"))

    def test_a_package_does_not_replace_a_folder(self) -> None:
        self.assertEqual(self.run_script("gpu", "--package", str(self.tree)).returncode, 2)

    def test_a_package_is_made_where_the_script_was_called(self) -> None:
        (self.tree / "script" / "package").mkdir()
        run = self.run_script("gpu", "--package", "package", cwd=self.tree / "script")
        self.assertIn(f"{self.tree}/script/package exists", run.stderr)

    def test_the_lab_writes_its_table(self) -> None:
        self.write("script/bootstrap", "#!/bin/sh\n", 0o755)
        lab = "#!/bin/sh\\necho '| 0 | naive |'"
        self.write("bin/meson", f"""#!/bin/sh
[ "$1" = --version ] || {{ mkdir -p "$2/bench" && printf "{lab}" >"$2/bench/lab_gemm" && chmod +x "$2/bench/lab_gemm"; }}
""", 0o755)
        self.write("bin/ninja", "#!/bin/sh\n", 0o755)
        self.write("bin/nvidia-smi", "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 9.0'\n", 0o755)
        for counts, line in (('echo "$2 $(cat "$3") counted"', "sm_90a | 0 | naive | counted\n"), ("exit 1", "| 0 | naive |\n")):
            self.write("script/lab_counts.py", f"#!/bin/sh\n{counts}\n", 0o755)
            run = self.run_script("gpu", "--lab", env=self.with_bin())
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            results = list((self.tree / "bench" / "results").glob("lab-nvidia-h100-80gb-hbm3-*.md"))
            self.assertEqual([path.read_text() for path in results], [line])

    def test_all_stages_run_and_are_written_down(self) -> None:
        run = self.package()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"^loading the kernels: \d+ s\nquick tests: 2 passed, 0 failed, 0 skipped\n")
        self.assertIn("other tests: 101 passed, 0 failed, 1 skipped\n", run.stdout)
        self.assertIn("gpt2: 327.7k tokens/s, 32 x 1024 at once\n", run.stdout)
        self.assertTrue(run.stdout.endswith("A GPU: 103 tests passed, nothing is wrong\n"), run.stdout)
        self.assertLessEqual(len(list((self.tree / "out").iterdir())), 8)
        page = next((self.tree / "out").glob("a-gpu-*.md")).read_text()
        for line in [
            "# A GPU, 2026-01-02",
            "| other tests | 101 passed, 0 failed, 1 skipped, 0 unfinished |",
            "| gemm | 2.0000 | 10.0 % | 500.0 TFLOP/s | 0.90x | 1.0e-03 |",
            "| add | 1.0000 | 0.0 % | 3000 GB/s | 75 % of a copy | 0.0e+00 |",
            "| odd | WRONG: an error of 1 | | | | |",
            "PyTorch 2.9. Left out: gpt2/eager/64: out of memory. Left out: gpt2/compiled: time was up.",
            "| gpt2, 32 x 1024 tokens | 327.7k tokens/s | | |",
            "| gemm | 500.0 TFLOP/s | 625.0 TFLOP/s | 0.80x |",
            "| gpt2/eager/32 | 327.7k tokens/s | 250.0k tokens/s | 1.31x |",
        ]:
            self.assertIn(line + "\n", page)

    def test_without_pytorch_it_says_so(self) -> None:
        with unittest.mock.patch.object(Gpu, "TORCH", None):
            run = self.package()
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("PyTorch: no PyTorch here: none.\n", next((self.tree / "out").glob("a-gpu-*.md")).read_text())

    def test_a_training_that_fails_is_told(self) -> None:
        with unittest.mock.patch.object(Gpu, "GPT2", "#!/bin/sh\necho 'Error: it broke'\nexit 1\n"):
            run = self.package()
        self.assertEqual(run.returncode, 1)
        self.assertIn("\ngpt2: Error: it broke\n", run.stdout)

    def test_pytorch_is_timed_where_it_is(self) -> None:
        run = subprocess.run(["python3", root / "script/gpu_torch.py", self.tree / "torch.json", "--smoke"], text=True, capture_output=True)
        if run.returncode == 3:
            self.assertTrue(run.stdout.startswith("no PyTorch here: "), run.stdout)
            self.skipTest(run.stdout.strip())
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        names = [figure["name"] for figure in json.loads((self.tree / "torch.json").read_text())["figures"]]
        self.assertLessEqual({"gemm/bf16/4096", "attention/bf16/128/backward", "gpt2/eager/2"}, set(names))

    def test_a_python_without_pytorch_is_named(self) -> None:
        self.write("torch.py", "raise ImportError('libcublas.so: cannot open')\n")
        run = subprocess.run(["python3", root / "script/gpu_torch.py", "x"], text=True, capture_output=True,
                             env={**os.environ, "PYTHONPATH": str(self.tree)})
        self.assertEqual((run.returncode, run.stdout), (3, "no PyTorch here: libcublas.so: cannot open\n"))

    def test_loading_that_takes_too_long_is_told(self) -> None:
        slow = "import os, sys, time\nif 'CUDA_MODULE_LOADING' in os.environ: time.sleep(9)\n"
        with unittest.mock.patch.object(Gpu, "TESTS", self.TESTS.replace("import os, sys\n", slow)):
            run = self.package(seconds_to_load=1)
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("loading the kernels: 1 s, and not done: the tests below may be cut short", run.stdout)
        self.assertIn("quick tests: 2 passed", run.stdout)

    def test_a_crash_is_the_failure_of_one_test(self) -> None:
        run = self.package('"Nn.Breaks"')
        self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
        self.assertIn("other tests: 100 passed, 1 failed, 1 skipped\n  FAILED Nn.Breaks\n", run.stdout)
        self.assertIn("| failed | Nn.Breaks |\n", next((self.tree / "out").glob("a-gpu-*.md")).read_text())
        self.assertTrue(run.stdout.endswith("A GPU: 102 tests passed, 1 things are wrong\n"), run.stdout)


class Bench(ScriptTest):
    """Output of programs, and the report made from it."""

    def line(self, name: str, ms: float, **counters) -> dict:
        return {"name": name, "run_name": name, "run_type": "iteration", "iterations": 1, "real_time": ms, "time_unit": "ms",
                "low_ms": 0.99 * ms, "high_ms": 1.01 * ms, "rounds": 9, **counters}

    def figures(self, out: str, f32_ms: float = 2, fma: float = 100, peers: float = 1) -> None:
        against = {"of_libtorch": 0.8, "of_libtorch_low": 0.7, "of_libtorch_high": 0.9}
        gain = {"of_f32": 0.5, "of_f32_low": 0.4, "of_f32_high": 0.6}
        end = "/iterations:1/manual_time"
        lines = [
            self.line(f"train/mlp/threads:1/f32{end}", f32_ms, flops=50e9, of_peak=0.5, **against),
            self.line(f"train/mlp/threads:1/bf16{end}", 1, flops=100e9, of_peak=1, **gain),
            self.line(f"train/mlp/threads:1/f32/libtorch{end}", 2.5, flops=40e9, label="fused optimizer"),
            self.line(f"ops/matmul/forward/threads:1/f32{end}", 1, flops=90e9, bytes=1e9, of_peak=1, of_copy=0.1),
            {**self.line("memory/mlp/f32/iterations:1/real_time", 30), "peak_mb": 17.2},
        ]
        if peers != 1:
            lines += [self.line(f"ops/{n}/threads:1/f32/libtorch{end}", peers**n) for n in range(-3, 4)]
        chain = [{"name": f"chain_{kind}", "run_name": "chain", "aggregate_name": kind, "iterations": 5, "repetitions": 5,
                  "real_time": time, "time_unit": "us", "per_op": per_op}
                 for kind, time, per_op in (("mean", 300, 3e-7), ("median", 250, 2.5e-7), ("stddev", 9, 9e-9))]
        context = {"fma_gflops/threads:1": str(fma), "copy_gbytes/threads:1": "40", "num_cpus": 2,
                   "libtorch": "2.9.1"}
        self.write("found/train.json", json.dumps({"context": context, "benchmarks": lines}))
        self.write("found/overhead.json", json.dumps({"context": {"fma_gflops/threads:1": "60"}, "benchmarks": chain}))
        self.write("found/about.json", json.dumps({"device": "A CPU", "date": "2026-01-02", "command": "script/bench",
                                                   "cost": {"libmixtape.a": "9 MB"}}))
        run = self.run_script("bench_report.py", str(self.tree / "found"), str(self.tree / out))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertEqual(run.stdout, (self.tree / f"{out}.md").read_text())

    def test_a_table_a_file_and_a_page(self) -> None:
        self.figures("a")
        text = (self.tree / "a.md").read_text()
        for wanted in ["# A CPU, 2026-01-02", " libtorch is 2.9.1.\n", "| f32 multiply-adds | 100 GFLOP/s |",
                       "| train/mlp | 1 | f32 | 2 ms | 2.0 % | 500 steps/s | | 50 % of peak | 0.80 (0.70 to 0.90), fused optimizer |",
                       "| train/mlp | 1 | bf16 | 1 ms | 2.0 % | 1000 steps/s | 2.00x | 100 % of peak | |",
                       "| chain | | | 250 ns |", "| memory/mlp/f32 | 17 MB |", "| libmixtape.a | 9 MB |"]:
            self.assertIn(wanted, text)
        self.assertEqual(text.count("train/mlp |"), 2)  # a peer's times are in the file alone
        page = (self.tree / "a.html").read_text()
        self.assertEqual(page.count("<svg"), 3)  # against libtorch, against f32, roofline
        self.assertNotIn("var(", page)  # unknown to many viewers, which would fill all black
        self.assertIn("prefers-color-scheme: dark", page)
        picture = xml.etree.ElementTree.parse(self.tree / "a.svg").getroot()
        self.assertEqual(picture.find("{*}title").text.count(";"), 2)  # three drawings
        self.assertIn("ops/matmul/forward f32: 90 GFLOP/s", "".join(picture.itertext()))
        for kind in "rect[@class='b0']", "path[@class='line c0']", "path[@class='dots c0']", "rect[@class='b2']":
            self.assertTrue(picture.findall(".//{*}" + kind), kind)
        self.assertEqual(len(json.loads((self.tree / "a.json").read_text())["figures"]), 6)

    def test_programs_without_peaks_have_a_table_too(self) -> None:
        self.write("found/loader.json", json.dumps({"context": {"num_cpus": 2}, "benchmarks": [self.line("images", 3)]}))
        run = self.run_script("bench_report.py", str(self.tree / "found"), str(self.tree / "a"))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertIn("| images | | | 3 ms |", run.stdout)

    def test_products_have_peers_of_their_own_and_means(self) -> None:
        lines = [self.line(f"gemm/{name}/threads:1/f32/iterations:1/manual_time", 1, flops=flops, of_peak=flops / 100e9,
                           of_onednn=ratio, of_onednn_low=ratio, of_onednn_high=ratio)
                 for name, flops, ratio in (("a", 90e9, 0.5), ("b", 40e9, 2))]
        context = {"fma_gflops/threads:1": "100", "copy_gbytes/threads:1": "40"}
        self.write("found/gemm.json", json.dumps({"context": context, "benchmarks": lines}))
        self.figures("a")
        text = (self.tree / "a.md").read_text()
        for wanted in ["| over f32 | of the roof | of libtorch |", "| over f32 | of the roof | of onednn |",
                       "| gemm/a | 1 | f32 | 1 ms | 2.0 % | 90 GFLOP/s | | 90 % of peak | 0.50 (0.50 to 0.50) |",
                       "| 1 | f32 | 2 | 60.0 % | | 1.00 |"]:
            self.assertIn(wanted, text)

    def compare(self) -> subprocess.CompletedProcess:
        return self.run_script("bench", "--compare", str(self.tree / "a.json"), str(self.tree / "b.json"))

    def test_what_got_slower_is_told_beyond_the_noise(self) -> None:
        self.figures("a")
        for ms, status, said in [(2.02, 0, "0 slower, 0 faster, 4 within"), (2.3, 1, "1 slower, 0 faster, 3 within"),
                                 (1.5, 0, "0 slower, 1 faster, 3 within")]:
            self.figures("b", f32_ms=ms)
            run = self.compare()
            self.assertEqual(run.returncode, status, run.stdout)
            self.assertIn(said, run.stdout)
            self.assertNotIn("machine", run.stdout)

    def test_noise_is_what_peers_differ_by(self) -> None:
        self.figures("a", peers=1.001)
        self.figures("b", f32_ms=2.3, peers=1.06)
        self.assertIn("0 slower, 0 faster, 4 within", self.compare().stdout)

    def test_what_is_missing_is_no_success(self) -> None:
        self.figures("a", peers=1.001)
        old = json.loads((self.tree / "a.json").read_text())
        mine = [f for f in old["figures"] if f.get("peer") is None and f["name"] != "memory/mlp/f32"]  # not run
        self.write("b.json", json.dumps({**old, "figures": [{**mine[0], "error": "wrong"}, *mine[1:]]}))
        run = self.compare()
        self.assertEqual(run.returncode, 1)
        self.assertIn("not in the new run, or only as an error: train/mlp 1 f32\n0 slower", run.stdout)
        self.write("a.json", json.dumps({**old, "figures": mine[1:]}))
        self.assertEqual(self.compare().returncode, 0)

    def test_another_machine_is_told(self) -> None:
        self.figures("a")
        self.figures("b", fma=70)
        self.assertIn("the machine was not the same: fma_gflops/threads:1 100 and 70", self.compare().stdout)

    def test_what_is_no_result_is_refused(self) -> None:
        self.figures("a")
        self.write("b.json", "{}")
        run = self.compare()
        self.assertEqual(run.returncode, 2)
        self.assertIn("not results of script/bench", run.stderr)


class Snippets(ScriptTest):
    def extract(self, text: str) -> str:
        """The program made from a document, or the complaint about it."""
        self.write("a.md", text)
        command = [sys.executable, root / "tests/project/snippets.py", "write", "a.md", "a.cpp"]
        run = subprocess.run(command, cwd=self.tree, text=True, capture_output=True)
        return run.stderr if run.returncode else (self.tree / "a.cpp").read_text()

    def test_blocks_are_a_program(self) -> None:
        self.assertEqual(self.extract("```cpp\nint x = f();\n```\n\n```cpp\nstruct S {};\n```\n"),
                         "#include <mixtape.h>\n\nusing namespace mixtape;\n\n"
                         '#line 6 "a.md"\nstruct S {};\n\nint main() {\n#line 2 "a.md"\nint x = f();\n\n}\n')

    def test_a_block_that_is_given_something_is_a_function(self) -> None:
        text = "```cpp\n#include <a>\nint main() {}\n```\n```cpp (int a, int b)\n#include <b>\nf(a, b);\n```\n"
        text += "```cpp (S s)\ng(s);\n```\n"
        self.assertEqual(self.extract(text),
                         '#line 2 "a.md"\n#include <a>\nint main() {}\n\n'
                         '#line 6 "a.md"\n#include <b>\nvoid block_6(int a, int b) { f(a, b);\n}\n\n'
                         '#line 10 "a.md"\nvoid block_10(S s) { g(s);\n}\n\n')

    def test_a_block_that_would_not_be_compiled_is_an_error(self) -> None:
        own, block = "```cpp\n#include <a>\nint main() {}\n```\n", "```cpp\nf();\n```\n"
        other = [(block.replace("cpp", fence), 2) for fence in ("c++", "cpp x")]
        for text, line in (own + block, 6), (block + own, 2), *other:
            self.assertEqual(self.extract(text), f"a.md:{line}: a block that would not be compiled\n")


class MnistFolder(ScriptTest):
    def write_idx(self, images: int, labels: bytes | None) -> None:
        shutil.rmtree(self.tree / "mnist", ignore_errors=True)
        self.write("mnist/t10k-images-idx3-ubyte", "")
        pixels = struct.pack(">IIII", 0x803, images, 2, 3) + bytes(6 * images)
        (self.tree / "mnist/t10k-images-idx3-ubyte").write_bytes(pixels)
        if labels is not None:
            (self.tree / "mnist/t10k-labels-idx1-ubyte.gz").write_bytes(labels)

    def test_a_folder_for_each_digit(self) -> None:
        self.write_idx(3, gzip.compress(struct.pack(">II", 0x801, 3) + b"\3\7\3"))
        self.assertEqual(self.run_script("mnist_folder", "mnist", "out", "3", "5", cwd=self.tree).returncode, 0)
        found = sorted(path.relative_to(self.tree / "out").as_posix() for path in (self.tree / "out").rglob("*"))
        self.assertEqual(found, ["3", "3/00000.png", "3/00002.png", "5"])

    def test_a_mistake_is_one_line_and_no_folder(self) -> None:
        labels = struct.pack(">II", 0x801, 3) + b"\3\7\3"
        for images, packed, arguments, said in [
            (3, None, [], "mnist: no t10k-labels-idx1-ubyte, plain or .gz"),
            (3, b"junk", [], "mnist/t10k-labels-idx1-ubyte.gz: Not a gzipped file"),
            (3, gzip.compress(labels)[:-9], [], "mnist/t10k-labels-idx1-ubyte.gz: Compressed file ended"),
            (3, gzip.compress(labels[:5]), [], "mnist/t10k-labels-idx1-ubyte.gz: "),
            (3, gzip.compress(labels[:-1]), [], "mnist/t10k-labels-idx1-ubyte.gz: not an IDX file of bytes of rank 1"),
            (4, gzip.compress(labels), [], "mnist: 4 images for 3 labels"),
            (3, gzip.compress(labels), ["12"], "12 is no digit"),
            (3, gzip.compress(labels), ["3", "--bogus"], "unknown option --bogus (--help explains)"),
        ]:
            self.write_idx(images, packed)
            run = self.run_script("mnist_folder", "mnist", "out", *arguments, cwd=self.tree)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (2, "", 1), run.stderr)
            self.assertTrue(run.stderr.startswith(f"mnist_folder: {said}"), run.stderr)
            self.assertFalse((self.tree / "out").exists())
        for arguments, said in (["none", "out"], "none: neither train-images"), (["mnist"], "needs MNIST and DIR"):
            run = self.run_script("mnist_folder", *arguments, cwd=self.tree)
            self.assertEqual(run.returncode, 2)
            self.assertTrue(run.stderr.startswith(f"mnist_folder: {said}"), run.stderr)


class Summary(ScriptTest):
    def summary(self, *tests: dict) -> list[str]:
        lines = "".join(json.dumps({"stdout": "", **test}) + "\n" for test in tests)
        self.write("build/meson-logs/testlog.json", lines)
        run = self.run_script("summary.py", str(self.tree / "build"))
        lines = run.stdout.splitlines()
        passed, failed = (int(part.split()[0]) for part in lines[-1].split(", ")[:2])
        self.assertEqual(run.returncode, int(failed > 0 or passed == 0), run.stderr)
        return lines

    def report(self, name: str, *cases: str) -> None:
        text = "".join(f'<testcase classname="S" name="c{n}" status="run">{case}</testcase>' for n, case in enumerate(cases))
        self.write(f"build/{name}.xml", f"<testsuites><testsuite>{text}</testsuite></testsuites>")

    def test_a_gtest_program_counts_by_its_cases(self) -> None:
        self.report("core", "", "", '<failure message="1 is not 2"/>', '<skipped message="a.cpp:3&#x0A;no GPU"/>')
        lines = self.summary({"name": "mixtape:cpu / core", "result": "FAIL"}, {"name": "lint", "result": "OK"})
        self.assertIn("FAILED mixtape:cpu / core: S.c2", lines)
        self.assertIn("skipped 1 in mixtape:cpu / core: no GPU", lines)
        self.assertEqual(lines[-1], "3 passed, 1 failed, 1 skipped")

    def test_a_crash_a_time_out_and_a_late_error_are_failures(self) -> None:
        self.report("leaks", "")
        lines = self.summary(
            {"name": "crashed", "result": "FAIL"},
            {"name": "hung", "result": "TIMEOUT"},
            {"name": "leaks", "result": "FAIL"},
        )
        self.assertIn("FAILED hung: the program timeout", lines)
        self.assertEqual(lines[-1], "1 passed, 3 failed, 0 skipped")

    def test_skips_of_a_python_program_are_counted(self) -> None:
        lines = self.summary({"name": "scripts", "result": "OK", "stderr": "..s.s\nRan 5 tests\n\nOK (skipped=2)\n"},
                             {"name": "demo", "result": "FAIL", "stderr": "\nFAILED (failures=1, skipped=1)\n"},
                             {"name": "plot", "result": "OK", "stderr": "\nOK\n"})
        self.assertIn("skipped 2 in scripts: by unittest, which does not say why", lines)
        self.assertEqual(lines[-1], "2 passed, 1 failed, 3 skipped")

    def test_nothing_run_is_a_failure(self) -> None:
        self.assertEqual(self.summary(), ["no test ran", "0 passed, 0 failed, 0 skipped"])
        lines = self.summary({"name": "format", "result": "SKIP", "stdout": "clang-format is absent\n"})
        self.assertEqual(lines[0], "skipped 1 in format: clang-format is absent")
        self.assertEqual(lines[-2:], ["no test ran", "0 passed, 0 failed, 1 skipped"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
