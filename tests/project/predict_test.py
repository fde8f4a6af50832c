"""The prediction of a training step: what is recorded on the emulated device, and what is made of it.

usage: predict_test.py ROOT GPT2"""
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

PROGRAM = Path(sys.argv.pop())
ROOT = Path(sys.argv.pop()).resolve()
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "script"))
import predict  # noqa: E402
import sass  # noqa: E402
from predict import Call, Launch, View  # noqa: E402

LAYERS, WIDTH, BATCH, CONTEXT, VOCABULARY = 2, 128, 4, 64, 320
SMALL = ["--layers", LAYERS, "--heads", 2, "--width", WIDTH, "--vocabulary", VOCABULARY, "--context", CONTEXT, "--batch-size", BATCH]


def instructions(*names: str) -> list[sass.Instruction]:
    """A loop of them, "*3 FFMA" three times, that ends the kernel."""
    body = []
    for name in names:
        times, _, what = name.rpartition(" ")
        body += [sass.Instruction(what, None, True)] * int(times.strip("*") or 1)
    return body + [sass.Instruction("BRA", 0, True), sass.Instruction("EXIT", None, False)]


class Recorded(unittest.TestCase):
    def test_a_step_is_recorded_whole_without_running(self) -> None:
        calls = predict.record(PROGRAM, [str(o) for o in SMALL])
        names = [call.name for call in calls]
        self.assertEqual(names[0], "norm_parts")
        self.assertEqual([names.count(name) for name in ("attention", "attention_grad", "layer_norm", "norm_parts")],
                         [LAYERS, LAYERS, 2 * LAYERS + 1, 1])
        for call in calls:
            for launch in call.launches:
                self.assertNotIn(" ", launch.kernel)
                self.assertTrue(launch.given, f"{launch.kernel} was given no memory")
        products = sum(math.prod(c.views[0].shape) * c.views[1].shape[-1] for c in calls if c.name == "gemm")
        tokens, block, head = BATCH * CONTEXT, 12 * WIDTH**2, VOCABULARY * WIDTH
        # Forward, and twice as much backward; logits are computed again in backward.
        self.assertEqual(products, tokens * (3 * LAYERS * block + 4 * head))
        part = next(c for c in calls if c.name == "optimizer_step")
        self.assertIn("bf16", [v.dtype for v in part.views])

    def test_a_record_that_cannot_be_written_is_named(self) -> None:
        done = subprocess.run([PROGRAM, "--device", "cuda:1", *map(str, SMALL)], capture_output=True, text=True,
                              env=os.environ | {"MIXTAPE_RECORD": "/no/such/folder/record"})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("MIXTAPE_RECORD: /no/such/folder/record cannot be written", done.stderr)

    def test_fewer_than_three_steps_are_named(self) -> None:
        with self.assertRaisesRegex(SystemExit, "the record has 1 steps, not 3"):
            predict.parse(["call norm_parts", "call fill"], {})

    def test_lines_become_calls(self) -> None:
        lines = ["call norm_parts", "call fill", "call norm_parts", "call gemm", "view 100 40 bf16 2x10 10x1", "view 200 4 f32 - -",
                 "scratch 300 16", "launch 7f gemm 2x3x1 32x1x1 100 300", "launch 80 add 1x1x1 32x1x1", "call norm_parts", "view 1 4 f32 1 1"]
        self.assertEqual(predict.parse(lines, {0x7f: "gemm<1>"}),
                         [Call("norm_parts"), Call("gemm", [View(256, 40, "bf16", (2, 10)), View(512, 4, "f32", ())], [View(768, 16)],
                                                  [Launch("gemm<1>", 6, [256, 768]), Launch("add", 1, [])])])


class Costs(unittest.TestCase):
    def code(self, **kernels: list[sass.Instruction]) -> predict.Code:
        code = predict.Code([])
        code.bodies = {name.replace("_of_", "<"): body for name, body in kernels.items()}
        return code

    def test_names_of_both_compilers_agree(self) -> None:
        for name in ("void gemm_groups<BFloat16, true, false, 256, 2>(GroupsGemm<BFloat16>)",
                     "gemm_groups<BFloat16, (bool)1, (bool)0, (int)256, (int)2>(G)"):
            self.assertEqual(predict.short(name), "gemm_groups<BFloat16,1,0,256,2>")

    def test_memory_moves_once_and_what_is_updated_twice(self) -> None:
        x, y, other = View(0x100, 64, "bf16", (32,)), View(0x200, 128, "f32", (32,)), View(0x400, 999, "f32", (9,))
        launch = Launch("k", 1, [0x100, 0x27f, 0x280])
        for name, least, wanted in ("add", 0, 192), ("add", 4, 256), ("accumulate", 0, 320), ("optimizer_step", 0, 64 + 128 * 7 / 4):
            self.assertEqual(predict.moved(Call(name, [x, y, other]), launch, least), wanted)

    def test_a_pass_is_bound_by_memory_or_by_its_instructions(self) -> None:
        x = View(0x100, 3_000_000_000, "f32", (750_000_000,))
        call = Call("sum", [x], launches=[Launch("sum", 1, [0x100])])
        for work, binds, seconds in (10, "DRAM", 1e-3), (400, "issue", 3e9 / 32 * 402 / 16 / (132 * 4 * 1.7e9)):
            cost = predict.cost(call, call.launches[0], self.code(sum=instructions("LDG.E.128", f"*{work} FADD")))
            self.assertEqual(cost.binds, binds)
            self.assertAlmostEqual(cost.needs[binds], seconds)
            self.assertAlmostEqual(cost.seconds, seconds / predict.REACHED["passes"] + predict.GAP)

    def test_a_product_goes_tile_by_tile(self) -> None:
        kernel = "gemm_groups<BFloat16,1,0,256,1>"
        body = instructions("*4 HGMMA.64x256x16.F32", "*75 IADD3", "SYNCS")
        storing = instructions("*4 STSM.16", "*95 FADD")
        storing[-2].target = len(body) - 1
        body = body[:-1] + storing
        call = Call("gemm", [View(0x1000, 1, "bf16", (128 * 133, 640)), View(0x2000, 1, "bf16", (640, 256)), View(0x3000, 1)])
        launch = Launch(kernel, 132, [0x1000])

        def needs(code: predict.Code) -> dict[str, float]:
            return {need: round(seconds * predict.CLOCK) for need, seconds in predict.of_product(call, launch, code).needs.items()}

        code = self.code()
        code.bodies[kernel] = body
        ends = 2 * 8 * 4 * 100 / 4  # two tiles on one of 132 multiprocessors, each of four boxes by eight warps
        self.assertEqual(needs(code), {"tensor cores": 20 * 1024 + ends, "issue": 20 * 8 * 81 / 4 + ends,
                                       "L2": round(20 * 384 * 128 / 28.5 + ends), "DRAM": 0})
        call.views[2:] = [View(0x5000, 1, "bf16", (128 * 133, 256)), View(0x3000, 1, "bf16", (128 * 133, 256))]  # the first is activated
        with mock.patch.object(predict.Code, "gelu", lambda _: 5.0):
            self.assertEqual(needs(code)["tensor cores"], 20 * 1024 + 2.6 * ends)
        call.views[2].address = 0x3000  # of c itself, which is added to
        call.scratch.append(View(0x4000, 2 * 4 * 128 * 133 * 256))  # two parts of k: three tiles on one
        self.assertEqual(needs(code)["tensor cores"], 3 * 5 * 1024 + 1.5 * ends)
        call.scratch.clear()
        launch.kernel = "gemm_groups<BFloat16,1,0,256,2>"  # 67 pairs of tiles; another block fetches half of each slice of b
        code.bodies[launch.kernel] = body
        self.assertEqual(needs(code)["L2"], round(20 * 256 * 128 / 28.5 + ends))

    def test_attention_multiplies_half_of_the_scores(self) -> None:
        kernel = "flash_forward<BFloat16,64>"
        code = self.code()
        code.bodies[kernel] = instructions("*8 HMMA.16816.F32", "*2 MUFU.EX2", "*30 FADD", "BAR.SYNC")
        heads, positions = 6, 1024
        call = Call("attention", [View(0x1000, 1, "bf16", (2, 3, positions, 64))])
        needs = predict.of_attention(call, Launch(kernel, heads * 8, [0x1000]), code).needs
        mma = heads * positions * (positions + 128) / 2 * 64 * 2 / predict.HMMA
        self.assertAlmostEqual(needs["issue"], mma * 42 / 8 / (132 * 4 * 1.7e9))
        self.assertAlmostEqual(needs["exponentials"], mma * 2 / 8 * 32 / (132 * 16 * 1.7e9))
        self.assertAlmostEqual(needs["tensor cores"], mma * 2048 / (0.65 * 2048 * 132 * 1.7e9))

    def test_what_the_build_lacks_is_named(self) -> None:
        call, launch = Call("fill", [View(1, 1)]), Launch("gone", 1, [1])
        with self.assertRaisesRegex(SystemExit, "the build with nvcc has no gone"):
            predict.cost(call, launch, self.code())
        with self.assertRaisesRegex(SystemExit, "gone has no loop with tensor-core instructions"):
            self.code(gone=instructions("FADD")).loop("gone")

    def test_the_report_calls_itself_a_prediction(self) -> None:
        call = Call("fill", [View(0x100, 3_000_000_000, "f32", (750_000_000,))], launches=[Launch("fill", 1, [0x100])])
        lines = predict.report([call, call], self.code(fill=instructions("STG.E.128")), 1000)
        self.assertIn("| norms, casts, residual | 2 | 2.4 | DRAM 100 % |", lines)
        self.assertEqual(lines[-1], "A prediction, not a measurement: 424k tokens a second.")

    def test_without_tools_it_says_so(self) -> None:
        with mock.patch.object(sass, "has_tools", lambda: False), tempfile.TemporaryFile("w+") as said, mock.patch("sys.stderr", said):
            self.assertEqual(predict.main(["a", "b"]), 1)
            said.seek(0)
            self.assertIn("no cuobjdump and nvdisasm", said.read())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
