// The overhead of an op: one-element tensors, one thread. Also the overhead of mixed precision for
// ops without casts and for an optimizer's step.

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

// With an override per module, which is looked up once per op and module.
void add_under_overrides(benchmark::State& state) {
  const Tensor a = one(true), b = one(true);
  const amp::Autocast on(
      {.low = bf16, .overrides = {{"softmax", Precision::Native}, {"head.*", Precision::Full}}});
  for (auto _ : state) benchmark::DoNotOptimize(a + b);
}
BENCHMARK(add_under_overrides);

void view(benchmark::State& state) {
  const Tensor a = one(false);
  for (auto _ : state) benchmark::DoNotOptimize(reshape(a, {1, 1}));
}
BENCHMARK(view);

// A chain of 1,000 ops, forward and backward; reports the time per op.
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

// The step of an MLP with a million parameters and 64 samples: AdamW alone, with a scaler, and with
// unscale() before the step. `whole` includes the forward and backward passes. (The rate is 0, so
// that gradients stay the same.)
enum class Scaling { None, Step, Unscale };
struct Mlp : nn::Module<Mlp> {
  nn::Linear in{784, 768}, mid{768, 512}, out{512, 10};
  Tensor forward(const Tensor& x) const { return out(relu(mid(relu(in(x))))); }
  MIXTAPE_FIELDS(in, mid, out)
};
void step(benchmark::State& state, Scaling scaling, bool whole) {
  const Mlp net;
  const Tensor x = randn({64, 784}), target = zeros({64}, i64);
  optim::AdamW opt(net.parameters(), {.lr = 0});
  amp::GradScaler scaler({.init_scale = 1, .growth_interval = 1 << 30});
  const auto pass = [&](const auto& f) {
    if (!whole) state.PauseTiming();
    f();
    if (!whole) state.ResumeTiming();
  };
  for (auto _ : state) {
    Tensor loss;
    pass([&] {
      opt.zero_grad();
      loss = cross_entropy(net(x), target);
    });
    if (scaling != Scaling::None) loss = scaler.scale(loss);
    pass([&] { loss.backward(); });
    if (scaling == Scaling::None) {
      opt.step();
      continue;
    }
    if (scaling == Scaling::Unscale) scaler.unscale(opt);
    benchmark::DoNotOptimize(scaler.step(opt));
    scaler.update();
  }
}
BENCHMARK_CAPTURE(step, alone, Scaling::None, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(step, scaled, Scaling::Step, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(step, unscaled, Scaling::Unscale, false)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(step, passes_alone, Scaling::None, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(step, passes_scaled, Scaling::Step, true)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(step, passes_unscaled, Scaling::Unscale, true)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
