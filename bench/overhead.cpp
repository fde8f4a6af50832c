// What an op costs besides its arithmetic: one-element tensors, one thread.

#include <benchmark/benchmark.h>

#include "mixtape.h"

namespace mixtape {
namespace {

Tensor one(bool leaf) {
  const Tensor x = ones({1});
  return leaf ? x.set_requires_grad() : x;
}

void add_unrecorded(benchmark::State& state) {
  const Tensor a = one(false), b = one(false);
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(add_unrecorded);

void add_recorded(benchmark::State& state) {
  const Tensor a = one(true), b = one(true);
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(add_recorded);

void add_under_autocast(benchmark::State& state) {
  const Tensor a = one(true), b = one(true);
  const amp::Autocast on({.low = bf16});
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(add_under_autocast);

void view(benchmark::State& state) {
  const Tensor a = one(false);
  for (auto _ : state) benchmark::DoNotOptimize(reshape(a, {1, 1}));
}
BENCHMARK(view);

// A chain of 1,000 ops, forward and backward; the time is per op.
template <class F>
void chain(benchmark::State& state, const F& f) {
  const Tensor a = one(true), b = one(true);
  for (auto _ : state) {
    a.set_grad({});
    b.set_grad({});
    Tensor x = a;
    for (int i = 0; i < 1000; ++i) x = f(x, b);
    x.backward();
  }
  state.counters["per_op"] = benchmark::Counter(
      1000, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
void chain_add(benchmark::State& state) {
  chain(state, [](const Tensor& x, const Tensor& b) { return x + b; });
}
BENCHMARK(chain_add)->Unit(benchmark::kMicrosecond);
void chain_mul(benchmark::State& state) {
  chain(state, [](const Tensor& x, const Tensor& b) { return x * b; });
}
BENCHMARK(chain_mul)->Unit(benchmark::kMicrosecond);
void chain_tanh(benchmark::State& state) {
  chain(state, [](const Tensor& x, const Tensor&) { return tanh(x); });
}
BENCHMARK(chain_tanh)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
