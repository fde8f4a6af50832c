#!/usr/bin/env python3
"""hello.cpp as a user's program: against an installed copy of the build, with the flags of pkg-config (shared
and static) and by CMake, where there is one; and with this source as a Meson subproject, whose library is made of the
build's own objects, since to compile them again would take minutes. And what programs bring that might collide with the
library: files, symbols, an Eigen, an fmt, flags of their own. Usage: packaging_test.py BUILD COMPILER...

MIXTAPE_FMT names the include folder of an fmt newer than the system's, by default that of PyTorch's Python package."""
import importlib.util
import itertools
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
sys.path.insert(0, str(here.parents[1] / "script"))
from launchers import launcher


def run(*command, **options) -> str:
    done = subprocess.run(list(map(str, command)), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def newer_fmt() -> pathlib.Path | None:
    torch = importlib.util.find_spec("torch")
    given = os.environ.get("MIXTAPE_FMT") or (torch and torch.origin and pathlib.Path(torch.origin).parent / "include")
    return pathlib.Path(given) if given and pathlib.Path(given, "fmt/base.h").exists() else None


class Installed(unittest.TestCase):
    """An installed copy of the build, for the tests of the classes below."""

    @classmethod
    def setUpClass(cls) -> None:
        temp = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temp.cleanup)
        cls.folder = pathlib.Path(temp.name)
        cls.install(cls.folder)
        [pc] = cls.folder.rglob("mixtape.pc")
        cls.pkgconfig, cls.libraries = pc.parent, pc.parent.parent

    @staticmethod
    def install(folder: pathlib.Path, *options: str) -> None:
        log = pathlib.Path(build, "meson-logs/install-log.txt")  # "ninja uninstall" removes its files: not this copy
        before = log.read_bytes() if log.exists() else None
        run("meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", folder, *options)
        log.unlink() if before is None else log.write_bytes(before)

    def flags(self, *options: str, **environment: str) -> list[str]:
        environment = dict(os.environ, PKG_CONFIG_PATH=str(self.pkgconfig), PKG_CONFIG_SYSROOT_DIR=str(self.folder), **environment)
        return run("pkg-config", *options, "mixtape", env=environment).split()

    def object(self, source: str, *flags: str | pathlib.Path) -> pathlib.Path:
        target = self.folder / f"{source}.o"
        if not target.exists():
            run(*compiler, "-std=c++20", *flags, *self.flags("--cflags"), "-c", here / source, "-o", target)
        return target

    def link(self, *objects: pathlib.Path | str, shared: bool) -> pathlib.Path:
        flags = self.flags("--libs") if shared else [
            "-l:libmixtape.a" if flag == "-lmixtape" else flag for flag in self.flags("--static", "--libs")]
        return self.link_by(flags, *objects)

    def link_by(self, flags: list[str], *objects: pathlib.Path | str) -> pathlib.Path:
        program = self.folder / "program"
        run(*compiler, *objects, *flags, "-o", program)
        return program

    def check(self, program: pathlib.Path, shared: bool, **environment: str) -> None:
        run(program, env=dict(os.environ, LD_LIBRARY_PATH=str(self.libraries) if shared else "", **environment))
        self.assertEqual("libmixtape.so" in run("readelf", "-d", program), shared)


class Found(Installed):
    def test_by_pkg_config(self) -> None:
        for shared in True, False:
            self.check(self.link(self.object("hello.cpp"), shared=shared), shared)

    def test_own_op_by_pkg_config(self) -> None:
        self.check(self.link(self.object("own_op.cpp"), shared=True), shared=True)

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

    def test_the_shared_library_needs_no_files_of_zlib_and_others(self) -> None:
        """Where pkg-config knows fmt alone."""
        known = self.folder / "known"
        known.mkdir()
        shutil.copy(pathlib.Path(run("pkg-config", "--variable=pcfiledir", "fmt").strip(), "fmt.pc"), known)
        flags = self.flags("--cflags", "--libs", PKG_CONFIG_LIBDIR=str(known))
        self.assertNotIn("-lpng", flags)
        self.assertNotIn("-lturbojpeg", flags)
        static = " ".join(self.flags("--static", "--libs", PKG_CONFIG_LIBDIR=str(known)))
        needed = run("readelf", "-d", self.libraries / "libmixtape.so")
        for name in "png", "turbojpeg", "z":
            self.assertEqual(f"-l{name}" in static, f"lib{name}" in needed, name)

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
        self.check(made / "own_names", shared=True)
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON" for package in ("PNG", "ZLIB")]
        without = (here / "CMakeLists.txt").read_text().replace("foreach(kind mixtape static)", "foreach(kind mixtape)")
        (self.folder / "CMakeLists.txt").write_text(without)
        for source in here.glob("*.cpp"):
            shutil.copy(source, self.folder)
        run("cmake", *given, *absent, "-S", self.folder, "-B", self.folder / "without")
        for other in "9.0", "0.0...<0.1":
            wanted = (here / "CMakeLists.txt").read_text().replace("mixtape 0.1 ", f"mixtape {other} ")
            (self.folder / "CMakeLists.txt").write_text(wanted)
            with self.assertRaisesRegex(AssertionError, "compatible with requested\n? *version"):
                run("cmake", *given, "-S", self.folder, "-B", self.folder / "refused")


class Plugins(Installed):
    def test_are_found_beside_the_library(self) -> None:
        """By a program that links the shared library, and by one that links the static one and lies there."""
        plugins = sorted(self.libraries.glob("libmixtape_mpi_*.so"))
        commands = [command for plugin in plugins if (command := launcher(plugin.stem.rpartition("_")[2]))]
        if not commands:
            self.skipTest("no plug-in was built, or there is no mpirun of its MPI")
        made = self.folder / "ranks.o"
        run(*compiler, "-std=c++20", *self.flags("--cflags"), "-c", here.parent / "dist/ranks.cpp", "-o", made)
        for shared in True, False:
            program = self.link(made, "-ldl", shared=shared)
            if not shared:
                program = program.rename(self.libraries / "program")
            environment = {name: value for name, value in os.environ.items() if name != "MIXTAPE_MPI_PLUGIN"}
            environment |= {"LD_LIBRARY_PATH": str(self.libraries) if shared else "", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            for command in commands:
                self.assertIn("rank 1 of 2 by ", run(*command, "-n", 2, program, "sums", env=environment))


class Symbols(Installed):
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

    def test_only_mixtape_leaves_the_shared_library(self) -> None:
        symbols = run("nm", "--dynamic", "--defined-only", "--format=posix", self.libraries / "libmixtape.so").splitlines()
        ours = re.compile(r"_Z(T[VTISCHW]|GV|T[hv][\dn_]+)?Z?NK?[RO]?7mixtape")
        self.assertEqual([s for s in symbols if not ours.match(s)], [])
        # A program with another fmt would not find them. (What is weak is inline: it has its own.)
        self.assertEqual([s for s in symbols if "3fmt" in s and s.split()[1] != "W"], [])

    def test_every_function_of_mixtape_leaves_the_shared_library(self) -> None:
        """All that objects of the static library show, by their names without parameters (which have no type before them)."""
        rows = [line.split() for line in run("readelf", "--wide", "--symbols", self.libraries / "libmixtape.a").splitlines()]
        shown = {row[-1] for row in rows if row[3:4] == ["FUNC"] and row[4] != "LOCAL" and row[5] == "DEFAULT" and row[-2] != "UND"}
        names = run("c++filt", "--no-params", input="\n".join(shown)).splitlines()
        ours = {symbol for symbol, name in zip(shown, names, strict=True) if name.startswith("mixtape::")}
        self.assertGreater(len(ours), 2000)
        symbols = run("nm", "--dynamic", "--defined-only", "--format=posix", self.libraries / "libmixtape.so").splitlines()
        self.assertEqual(sorted(ours - {s.split()[0] for s in symbols}), [])

    def test_a_kernel_leaves_the_shared_library_but_not_its_parts(self) -> None:
        kernels = set(re.findall(r"(?m)^MIXTAPE_(?:CPU_)?KERNEL\(\s*(\w+)", (here.parent.parent / "kernels/kernels.h").read_text()))
        symbols = run("nm", "--dynamic", "--demangle", "--defined-only", self.libraries / "libmixtape.so")
        self.assertEqual(kernels - set(re.findall(r"mixtape::kernels::(\w+)$", symbols, re.MULTILINE)), set())
        self.assertEqual(re.findall(r"^\w+ \w (mixtape::kernels::cpu::.*)", symbols, re.MULTILINE), [])

    def test_what_is_compiled_for_one_processor_has_names_of_its_own(self) -> None:
        """A linker keeps either of two functions with one name. (What is portable may be shared.)"""
        compiled = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
        found = []
        for one in compiled:
            if target := re.search(r"-DMIXTAPE_TARGET=(\w+)", one["command"]):
                rows = run("nm", "--defined-only", "--extern-only", "--format=posix", pathlib.Path(build, one["output"])).splitlines()
                found += [(target[1], *row.split()[:2]) for row in rows]
        functions = [(target, name) for target, name, kind in found if kind in "TW"]
        self.assertTrue(any("eigen_gemm" in name for _, name in functions))
        self.assertEqual([name for target, name in functions if target not in name and target != "portable"], [])
        symbols = run("nm", "--defined-only", "--extern-only", self.libraries / "libmixtape.a").splitlines()
        self.assertEqual([s for s in symbols if re.search("N(5Eigen|8nlohmann)", s)], [])


class Neighbours(Installed):
    STRICT = "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"

    def test_files_of_the_same_names_and_all_warnings(self) -> None:
        """Our headers and a program's do not mix, in either order of their folders."""
        own, ours = f"-I{here / 'own_names'}", self.flags("--cflags")
        compilers = [c for c in ("g++", "clang++") if shutil.which(c)]
        for (name, version), folders in zip(itertools.product(compilers, ("20", "2b")), itertools.cycle([[own, *ours], [*ours, own]])):
            with self.subTest(compiler=name, version=version):
                run(name, f"-std=c++{version}", *self.STRICT, *folders, "-fsyntax-only", here / "own_names.cpp")

    def test_a_library_with_an_eigen_of_its_own(self) -> None:
        try:
            eigen = run("pkg-config", "--cflags", "eigen3").split()
        except AssertionError:
            self.skipTest("pkg-config does not know Eigen")
        other = self.object("other_eigen.cpp", "-Og", "-fPIC", *eigen)
        main = self.object("beside_eigen.cpp")
        for shared in True, False:
            for objects in [main, other], [other, main]:
                self.check(self.link(*objects, shared=shared), shared, MIXTAPE_ISA="portable")
        library = self.folder / "libother.so"
        run(*compiler, "-shared", other, "-o", library)
        for flags in [library, *self.flags("--libs")], [*self.flags("--libs"), library]:
            self.check(self.link_by(flags, main), shared=True, MIXTAPE_ISA="portable")

    @unittest.skipUnless(newer_fmt(), "neither MIXTAPE_FMT nor PyTorch's Python package has another fmt")
    def test_a_newer_fmt(self) -> None:
        main = self.object("prints.cpp", "-DFMT_HEADER_ONLY", "-isystem", newer_fmt(), *self.STRICT)
        for shared in True, False:
            self.check(self.link(main, shared=shared), shared)

    def test_flushed_subnormals(self) -> None:
        main = self.object("fast_math.cpp", "-O2", "-ffast-math")
        self.check(self.link("-ffast-math", main, shared=True), shared=True)

    def test_an_older_cxx_is_refused_in_two_lines(self) -> None:
        with self.assertRaises(AssertionError) as failed:
            run(*compiler, "-std=c++17", "-fsyntax-only", *self.flags("--cflags"), here / "hello.cpp")
        errors = re.findall("error: (.*)", str(failed.exception))
        self.assertEqual(len(errors), 2, errors)
        self.assertIn("Mixtape needs C++20: compile with -std=c++20", errors[0])


class Subproject(unittest.TestCase):
    def test_links_and_runs(self) -> None:
        options = {option["name"]: option["value"] for option in json.loads(run("meson", "introspect", "--buildoptions", build))}
        same = [f"-D{name}={str(options[name]).lower()}" for name in ("optimization", "debug", "b_ndebug", "unity", "unity_size")]
        same += [f"-Dmixtape:{name}={str(options[name]).lower()}" for name in ("cuda", "cpu_arch", "zlib", "png", "werror")]
        same += ["-Dmixtape:jpeg=disabled"]  # as where libjpeg-turbo is not: the library builds without
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
