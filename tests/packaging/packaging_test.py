#!/usr/bin/env python3
"""hello.cpp as a user's program: against an installed copy of the build, with the flags of pkg-config (shared
and static) and by CMake, where there is one; and with this source as a Meson subproject, whose library is made of the
build's own objects, since to compile them again would take minutes. Usage: packaging_test.py BUILD COMPILER..."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

build, compiler = sys.argv[1], sys.argv[2:]
here = pathlib.Path(__file__).resolve().parent


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = pathlib.Path(temp.name)
        log = pathlib.Path(build, "meson-logs/install-log.txt")  # what "ninja uninstall" removes: not this copy
        before = log.read_bytes() if log.exists() else None
        run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", temp.name)
        log.unlink() if before is None else log.write_bytes(before)
        [pc] = cls.folder.rglob("mixtape.pc")
        cls.pkgconfig, cls.libraries = pc.parent, pc.parent.parent

    def flags(self, *options: str) -> list[str]:
        environment = dict(os.environ, PKG_CONFIG_PATH=str(self.pkgconfig), PKG_CONFIG_SYSROOT_DIR=str(self.folder))
        return run("pkg-config", *options, "mixtape", env=environment).split()

    def check(self, program: pathlib.Path, shared: bool) -> None:
        run(program, env=dict(os.environ, LD_LIBRARY_PATH=str(self.libraries) if shared else ""))
        self.assertEqual("libmixtape.so" in run("readelf", "-d", program), shared)

    def test_shared_by_pkg_config(self) -> None:
        program = self.folder / "hello_shared"
        run(*compiler, "-std=c++20", here / "hello.cpp", *self.flags("--cflags", "--libs"), "-o", program)
        self.check(program, shared=True)

    def test_static_by_pkg_config(self) -> None:
        program = self.folder / "hello_static"
        flags = ["-l:libmixtape.a" if flag == "-lmixtape" else flag for flag in self.flags("--cflags", "--static", "--libs")]
        run(*compiler, "-std=c++20", here / "hello.cpp", *flags, "-o", program)
        self.check(program, shared=False)

    def test_own_op_by_pkg_config(self) -> None:
        program = self.folder / "own_op"
        run(*compiler, "-std=c++20", here / "own_op.cpp", *self.flags("--cflags", "--libs"), "-o", program)
        self.check(program, shared=True)

    def test_gdb_finds_its_printers(self) -> None:
        [script] = self.folder.rglob("*-gdb.py")
        library = (self.libraries / "libmixtape.so").resolve()
        [folder] = self.folder.rglob("gdb/auto-load")
        installed = library.relative_to(self.folder.resolve())  # as it will be called in /
        self.assertEqual(script, folder / installed.parent / f"{library.name}-gdb.py")
        self.assertEqual(script.read_text(), (here.parent.parent / "script/mixtape_gdb.py").read_text())

    def test_programs_need_nothing_that_only_building_does(self) -> None:
        [pc] = self.folder.rglob("mixtape.pc")
        self.assertNotRegex(pc.read_text(), "eigen|nlohmann|gtest|CLI11")

    def test_exports_what_public_headers_declare(self) -> None:
        headers = run(sys.executable, here.parent.parent / "script/public_headers.py").split()
        public = set(re.findall(r"\w+", "".join((here.parent.parent / header).read_text() for header in headers)))
        symbols = run("nm", "--dynamic", "--demangle", "--defined-only", self.libraries / "libmixtape.so")
        functions = re.findall(r"^\w+ T (mixtape::[\w:]+)\(", symbols, re.MULTILINE)
        self.assertIn("mixtape::matmul", functions)
        self.assertIn("mixtape::nn::Conv2d::Conv2d", functions)
        self.assertNotIn("mixtape::ops::", symbols)
        # (Kernels are exported for users' ops, and the emulator for kernels.)
        internal = "mixtape::kernels::", "mixtape::gpu::", "mixtape::simt::"
        # A function by its name, a member by that of its outermost class.
        undeclared = [f for f in functions if not f.startswith(internal)
                      and not public.issuperset(re.match(r"(?:[a-z_]\w*::)*\w+", f)[0].split("::"))]
        self.assertEqual(undeclared, [])

    @unittest.skipUnless(shutil.which("cmake"), "there is no cmake")
    def test_both_by_cmake(self) -> None:
        [config] = self.folder.rglob("mixtape-config.cmake")
        made = self.folder / "by_cmake"
        linked = self.folder / "lib"  # as /lib is where all is in /usr
        linked.symlink_to(self.libraries, target_is_directory=True)
        given = ["-G", "Ninja", f"-Dmixtape_DIR={linked / config.parent.relative_to(self.libraries)}", f"-DCMAKE_CXX_COMPILER={compiler[-1]}"]
        run("cmake", *given, "-S", here, "-B", made)
        run("cmake", "--build", made)
        self.check(made / "hello_mixtape", shared=True)
        self.check(made / "hello_static", shared=False)
        self.check(made / "own_op", shared=True)
        for other in "9.0", "0.0...<0.1":
            wanted = (here / "CMakeLists.txt").read_text().replace("mixtape 0.1 ", f"mixtape {other} ")
            (self.folder / "CMakeLists.txt").write_text(wanted)
            with self.assertRaisesRegex(AssertionError, "compatible with requested\n? *version"):
                run("cmake", *given, "-S", self.folder, "-B", self.folder / "refused")


class Subproject(unittest.TestCase):
    def test_links_and_runs(self) -> None:
        options = {option["name"]: option["value"] for option in json.loads(run("meson", "introspect", "--buildoptions", build))}
        same = [f"-D{name}={str(options[name]).lower()}" for name in ("optimization", "debug", "b_ndebug", "unity", "unity_size")]
        same += [f"-Dmixtape:{name}={str(options[name]).lower()}" for name in ("cuda", "cpu_arch", "zlib", "png", "werror")]
        with tempfile.TemporaryDirectory() as temp:
            folder = pathlib.Path(temp)
            shutil.copy(here / "hello.cpp", folder)
            shutil.copy(here / "consumer.build", folder / "meson.build")
            (folder / "subprojects").mkdir()
            (folder / "subprojects/mixtape").symlink_to(here.parent.parent, target_is_directory=True)
            reuse = [sys.executable, here / "reuse_objects.py", os.path.abspath(build), *compiler]
            run("meson", "setup", folder / "build", folder, *same, env=dict(os.environ, CXX=shlex.join(map(str, reuse))))
            targets = run("ninja", "-C", folder / "build", "-t", "targets", "all")
            self.assertNotRegex(targets, "(?m)^subprojects/mixtape/(tests|bench)")
            if ".cu.o" in targets:
                self.skipTest("nvcc would compile the kernels anew, for minutes")
            run("ninja", "-C", folder / "build", "hello")
            run(folder / "build/hello")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
