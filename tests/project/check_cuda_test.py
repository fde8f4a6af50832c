"""The check of nvcc's machine code: each rule finds what is planted in a recorded loop, and the whole check what stand-ins for
CUDA's tools tell.

usage: check_cuda_test.py ROOT"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

root = Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "script"))
import check_cuda  # noqa: E402
import sass  # noqa: E402

RECORDED = (root / "tests/data/tensor_core_loops.sass").read_text()
TENSOR, GROUPS = "_Z11gemm_tensorI4HalfEvv", "_Z11gemm_groupsI4HalfEvv"


class Rules(unittest.TestCase):
    LOOP = check_cuda.Limits("", "", per_mma=8.5, per_load=4, moves=0)
    GROUP = check_cuda.Limits("", "", per_mma=8.5, groups=4, registers=168, inner=1)

    def wrong(self, limits: check_cuda.Limits, kernel: str, planted: dict[str, str] = {}, registers: int = 168) -> list[str]:
        text = RECORDED
        for was, now in planted.items():
            self.assertIn(was, text)
            text = text.replace(was, now)
        return check_cuda.wrong_loop(limits, dict(sass.kernels(text))[kernel], registers)[0]

    def test_what_nvcc_made_passes(self) -> None:
        self.assertEqual(self.wrong(self.LOOP, TENSOR), [])
        self.assertEqual(self.wrong(self.GROUP, GROUPS), [])

    def test_the_fast_path_is_the_one_that_copies_asynchronously(self) -> None:
        body = dict(sass.kernels(RECORDED))[TENSOR]
        loop = sass.fast_path(body)
        self.assertEqual([loop.count(what) for what in ("HMMA", "LDSM", "LDGSTS", "BAR", "IMAD")], [4, 1, 1, 1, 1])
        self.assertEqual(len(loop.path), 33)
        self.assertEqual(loop.path[-1].name, "BRA")
        # A way around the copy is shorter, and one with copies of elements as well is longer: neither counts.
        around = RECORDED.replace("PLOP3.LUT P0, PT, PT, PT, UP0, 0x80, 0x0", "@P4 BRA 0x330")
        self.assertEqual(len(sass.fast_path(dict(sass.kernels(around))[TENSOR]).path), 33)
        over = RECORDED.replace("@!P0 LDG.E.U16 R21, desc[UR10][R24.64]", "@P4 BRA 0x250")
        self.assertEqual(len(sass.fast_path(dict(sass.kernels(over))[TENSOR]).path), 30)

    def test_a_branch_back_from_code_that_was_left_is_no_loop(self) -> None:
        longer = "".join(f"/*{0x10000 + i:05x}*/ NOP ;\n" for i in range(60))
        text = RECORDED.replace("DEPBAR.LE SB0, 0x1 ;", f"DEPBAR.LE SB0, 0x1 ;\n{longer}").replace("BRA 0x4f0;", "BRA 0x1a0;")
        self.assertEqual(len(sass.fast_path(dict(sass.kernels(text))[TENSOR]).path), 93)

    def test_each_planted_fault_is_found(self) -> None:
        last_mma = "HMMA.16816.F32 R4, R20, R22, R4"
        for planted, wanted in (
            ({last_mma: "NOP"}, "11.0 instructions for each of 3 tensor-core instructions, more than 8.5"),
            ({"USHF.L.U32 UR7, UR4, 0xb, URZ": "LDSM.16.M88.4 R40, [R3]"}, "2 LDSM load for 4 HMMA: fewer than 4 each"),
            ({"LDSM.16.M88.4": "LDS.128"}, "0 LDSM load for 4 HMMA: fewer than 4 each"),
            ({"VIADD R2, R2, 0x80": "IMAD.MOV.U32 R2, RZ, RZ, R3"}, "1 moves between registers in the loop, more than 0"),
            ({"@!P0 LEA R26, R0, UR7, 0x4": "@!P0 BRA 0x2e0"}, "1 loops within the loop, more than 0"),
            ({"LDGSTS.E.BYPASS.128": "LDG.E.128"}, "no asynchronous copy"),
            ({"@!P0 STS [R26]": "@!P0 ST.E [R26]"}, "shared memory is reached by generic addresses"),
            ({"HMMA": "FFMA"}, "no loop with tensor-core instructions"),
        ):
            self.assertIn(wanted, self.wrong(self.LOOP, TENSOR, planted))

    def test_each_planted_fault_of_a_cluster_is_found(self) -> None:
        limits = check_cuda.Limits("", "", groups=4, inner=1, shares_boxes=True)
        shared = {"UTMALDG.2D": "UTMALDG.2D.MULTICAST"}
        self.assertEqual(self.wrong(limits, GROUPS, shared), [])
        self.assertEqual(self.wrong(limits, GROUPS), ["no box is loaded for several blocks"])
        self.assertEqual(self.wrong(limits, GROUPS, shared | {"UIADD3.64 UR12, UR8, 0x4, URZ": "MEMBAR.ALL.GPU"}),
                         ["the loop waits for memory (MEMBAR)"])

    def test_each_planted_fault_of_wgmma_is_found(self) -> None:
        found = "not 4 to 1 to 1"
        for planted, wanted in (
            ({"UTMALDG.2D": "NOP"}, "no box of a tensor map is loaded"),
            ({"UIADD3.64 UR12, UR8, 0x4, URZ": "WARPGROUP.DEPBAR.LE gsb0, 0x0"},  # waits in between, as C7510 tells
             f"4 HGMMA, 1 WARPGROUP.ARRIVE and 2 WARPGROUP.DEPBAR, {found}"),
            ({"UIADD3.64 UR12, UR8, 0x4, URZ": "WARPGROUP.ARRIVE"},
             f"4 HGMMA, 2 WARPGROUP.ARRIVE and 1 WARPGROUP.DEPBAR, {found}"),
            ({"HGMMA.64x8x16.F32 R24, gdesc[UR8], R24, gsb0": "NOP"},
             f"3 HGMMA, 1 WARPGROUP.ARRIVE and 1 WARPGROUP.DEPBAR, {found}"),
        ):
            self.assertIn(wanted, self.wrong(self.GROUP, GROUPS, planted))
        self.assertEqual(self.wrong(self.GROUP, GROUPS, registers=176), ["176 registers, more than 168"])


class Check(unittest.TestCase):
    """Stand-ins for the CUDA Toolkit's cuobjdump, which tells of one kernel in each object file, and nvdisasm."""

    def setUp(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.tree = Path(self.folder.name)
        shutil.copytree(root / "script", self.tree / "script")
        one_family = 'LIMITS = [Limits("f16", "gemm_tensor<Half>", 8.5, 4, 0)]\n\n\ndef kernels_of('
        script = self.tree / "script/check_cuda.py"
        before, after = script.read_text().split("\n\ndef kernels_of(")
        script.write_text(f"{before}\n\n{one_family}{after}")

    def write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def run_check(self, path: str) -> tuple[int, str]:
        run = subprocess.run([self.tree / "script/check_cuda.py", self.tree / "build"], text=True, capture_output=True,
                             stdin=subprocess.DEVNULL, env={**os.environ, "PATH": path, "CUDA_PATH": ""})
        self.assertEqual(run.stderr, "")
        return run.returncode, run.stdout

    def check(self, stack: int = 0, product: str = RECORDED, other: str = "same", arch: str = "sm_90a") -> tuple[int, str]:
        other_name = "_Z11map_nothingIdEvv"
        for name in "gemm", "unary":
            self.write(f"build/kernels/libmixtape_cuda.a.p/{name}.cu.o", "")
        self.write("sass", product)
        for name, kernel in ("gemm", TENSOR), ("unary", other_name):
            for of in "sm_80", arch:
                known = kernel + (other if (name, of) == ("unary", "sm_90a") and other != "same" else "")
                self.write(f"{name}.cu.o.{of}", f" Function {known}:\n  REG:40 STACK:{stack} SHARED:0 LOCAL:0\n")
        lists = "\\n".join(f"ELF file: gemm.{of}.cubin" for of in ("sm_80", arch))
        self.write("bin/cuobjdump", f"""#!/bin/sh
case "$*" in
  *--list-elf*) printf '{lists}\\n' ;;
  *-sass*) cat {self.tree}/sass ;;
  *) cat {self.tree}/$(basename "$4").$2 ;;
esac
""", 0o755)
        self.write("bin/nvdisasm", "#!/bin/sh\n", 0o755)
        return self.run_check(f"{self.tree}/bin:{os.environ['PATH']}")

    def test_what_is_as_it_should_be_passes_with_its_figures(self) -> None:
        code, text = self.check()
        self.assertEqual(code, 0, text)
        self.assertIn("sm_90a: 2 kernels, at most 40 registers", text)
        self.assertIn("sm_80: f16: 1 kernels, 8.2 instructions per MMA of 4, 1 LDSM, 0 moves, 40 registers", text)

    def test_what_nvcc_did_badly_is_found(self) -> None:
        for arguments, wanted in (
            ({"stack": 8}, "sm_80: void map_nothing<double>(): 8 bytes of stack"),
            ({"product": RECORDED.replace("LDSM", "LDS")}, "sm_90a: void gemm_tensor<Half>(): 0 LDSM load for 4 HMMA"),
            ({"product": RECORDED.replace("HMMA", "FFMA")}, "no loop with tensor-core instructions"),
            ({"product": ""}, "sm_80: f16: no such kernel"),
            ({"product": ""}, "sm_90a: f16: no such kernel"),
            ({"other": "x"}, "the architectures have different kernels"),
        ):
            code, text = self.check(**arguments)
            self.assertEqual(code, 1)
            self.assertIn(wanted, text)

    def test_limits_hold_where_the_loops_were_written_for(self) -> None:
        code, text = self.check(product=RECORDED.replace("LDSM", "LDS"), arch="sm_120")
        self.assertEqual(text.count("0 LDSM load for 4 HMMA"), 1, text)
        self.assertIn("sm_120: f16: 1 kernels, 8.2 instructions per MMA of 4, 0 LDSM", text)

    def test_without_its_tools_it_reads_ptx_and_is_skipped_with_the_reason(self) -> None:
        self.write("build/kernels/libmixtape_cuda.a.p/gemm.cu.o", "")
        for body, code, wanted in (("mma.sync.aligned ldmatrix.sync cp.async.cg", 77,
                                    "cuobjdump and nvdisasm are not here (script/bootstrap --cuda-tools): of the machine code "
                                    "nothing is checked, 1 products only as PTX"),
                                   ("mma.sync.aligned ldmatrix.sync", 1, "no asynchronous copy"),
                                   ("mma.sync.aligned cp.async.cg", 1, "fragments do not come by ldmatrix"),
                                   ("fma.rn cp.async.cg", 1, "no tensor-core instruction")):
            self.write("bin/nvcc", f"#!/bin/sh\necho '.entry _Z11gemm_tensorI4HalfEvv( {body}'\n", 0o755)
            found, text = self.run_check(f"{self.tree}/bin:/usr/bin:/bin")
            self.assertEqual(found, code, text)
            self.assertIn(wanted, text)

    def test_without_a_build_by_nvcc_it_is_skipped(self) -> None:
        code, text = self.run_check(os.environ["PATH"])
        self.assertEqual(code, 77)
        self.assertIn("is no build with -Dcuda=enabled", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
