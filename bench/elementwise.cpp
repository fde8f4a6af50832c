// Gradients of elementwise ops: one backward pass over a million elements.

#include <benchmark/benchmark.h>

#include <string>

#include "mixtape.h"

namespace mixtape {
namespace {

constexpr int64_t elements = 1 << 20;

using Op = Tensor (*)(const Tensor& a, const Tensor& b);
constexpr std::pair<const char*, Op> ops[] = {
    {"mul", [](const Tensor& a, const Tensor& b) { return a * b; }},
    {"div", [](const Tensor& a, const Tensor& b) { return a / b; }},
    {"maximum", [](const Tensor& a, const Tensor& b) { return maximum(a, b); }},
    {"pow", [](const Tensor& a, const Tensor& b) { return pow(a, b); }},
    {"mul_scalar", [](const Tensor& a, const Tensor&) { return a * 1.5; }},
    {"div_from_scalar", [](const Tensor& a, const Tensor&) { return 1.5 / a; }},
    {"pow_scalar", [](const Tensor& a, const Tensor&) { return pow(a, 2); }},
};

void gradients(benchmark::State& state, Op op, DType dtype) {
  const auto operand = [&] {
    return uniform({elements}, 0.5, 2, f32).to(dtype).set_requires_grad();
  };
  const Tensor a = operand(), b = operand();
  const Tensor y = op(a, b), dy = ones_like(y);
  for (auto _ : state)
    benchmark::DoNotOptimize(
        grad({y}, {a, b}, {.gradients = {dy}, .retain_graph = true, .allow_unused = true}));
}

const bool registered = [] {
  for (const auto& [op_name, op] : ops)
    for (const DType dtype : {f32, bf16})
      benchmark::RegisterBenchmark(
          (std::string("gradients/") + op_name + "/" + std::string(name(dtype))).c_str(), gradients,
          op, dtype)
          ->Unit(benchmark::kMicrosecond);
  return true;
}();

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
