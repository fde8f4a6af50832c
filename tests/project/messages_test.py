"""Programs with a mistake that a compiler finds: its message says what must hold.

usage: messages_test.py ROOT COMPILER FLAG..."""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

root, compiler = Path(sys.argv[1]), sys.argv[2:]
if any("clang" in word for word in compiler):
    compiler.append("-ferror-limit=0")
LAYERS = "core", "autograd", "nn", "optim", "amp", "dist", "io", "train"
OP = 'static constexpr OpInfo info{"f"};'
BACKWARD = "static Grads backward(const Ctx&, const Tensor& dy) { return {dy}; }"
PAIR = "struct Pair { Tensor first, second; };"
# By the header, the beginning of its message, and a program that draws it.
MISTAKES = {
    ("core/dtype.h", "not an element type"): "auto f() { return Tensor().data<long double>(); }",
    ("autograd/function.h", "an op has a name"):
        "struct F : Function<F> { static Tensor forward(Ctx&, const Tensor& x) { return x; } " + BACKWARD + " };"
        "auto f() { return F::apply(Tensor()); }",
    ("autograd/function.h", "forward() returns a Tensor, or"):
        "struct F : Function<F> { " + OP + " static int forward(Ctx&, const Tensor&) { return 1; } " + BACKWARD + " };"
        "auto f() { return F::apply(Tensor()); }",
    ("autograd/function.h", "an op with several results has a backward()"):
        "struct F : Function<F> { " + OP + " static std::array<Tensor, 2> forward(Ctx&, const Tensor& x) { return {x, x}; } };"
        "auto f() { return F::apply(Tensor()); }",
    ("autograd/on_vectors.h", "the function returns a Tensor, or"): "auto f() { return vmap([](const Tensor&) { return 1; })(Tensor()); }",
    ("nn/fields.h", "a field in MIXTAPE_FIELDS is a Tensor"): "struct M : nn::Module<M> { int n; MIXTAPE_FIELDS(n) };",
    ("nn/fields.h", "struct M : nn::Module<M>, but here"): "struct A : nn::Module<A> {}; struct M : nn::Module<A> { Tensor w; MIXTAPE_FIELDS(w) };",
    ("nn/fields.h", "derived from another module"): "struct M : nn::Linear { Tensor w; MIXTAPE_FIELDS(w) };",
    ("nn/functional_call.h", "a struct that forward returns needs tensors()"):
        PAIR + "struct M : nn::Module<M> { Pair forward(const Tensor& x) const { return {x, x}; } };"
        "auto f(const M& net) { return nn::functional_call(net, {}, Tensor()); }",
    ("nn/module.h", "forward must be const"):
        "struct M : nn::Module<M> { Tensor forward(const Tensor& x) { return x; } }; auto f(const M& net) { return net(Tensor()); }",
    ("train/learner.h", "a loss takes output and target"): "const train::LossFunction loss([](const Tensor& x) { return x; });",
    ("train/onnx.h", "forward must return tensors"):
        PAIR + "struct M : nn::Module<M> { Pair forward(const Tensor& x) const { return {x, x}; } };"
        'void f(M& net) { train::save_onnx("x", net, {Tensor()}); }',
}


class Messages(unittest.TestCase):
    def test_of_each_mistake(self) -> None:
        headers = {header for header, message in MISTAKES}
        lines = ["#include <array>", "#include <mixtape.h>", *(f"#include <{h}>" for h in sorted(headers)), "using namespace mixtape;"]
        lines += [f"namespace mistake{n} {{ {program} }}" for n, program in enumerate(MISTAKES.values())]
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.cpp"
            program.write_text("\n".join(lines))
            said = subprocess.run([*compiler, "-fsyntax-only", "-I", root, program], text=True, capture_output=True).stderr
        errors = re.findall(r"error: static.assert.*", said.replace('"', ""))
        missing = [message for header, message in MISTAKES if not any(message in error for error in errors)]
        self.assertEqual(missing, [], said)

    def test_of_all_headers(self) -> None:
        """A message in a header without a mistake above."""
        found = set()
        for header in (h for layer in LAYERS for h in root.glob(f"{layer}/*.h")):
            code = header.read_text().replace("\\\n", "\n")
            for texts in re.findall(r'static_assert\((?:(?!static_assert).)*?((?:"(?:[^"\\]|\\.)*"\s*)+)\);', code, re.S):
                message = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', texts))
                known = [key for key in MISTAKES if root / key[0] == header and message.startswith(key[1])]
                self.assertEqual(len(known), 1, f"{header}: {message}")
                found.add(known[0])
        self.assertEqual(found, set(MISTAKES))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
