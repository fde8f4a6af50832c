// A training step under amp::Compare, beside the two steps that it compares.

#include <benchmark/benchmark.h>

#include "amp/compare.h"
#include "bench/models.h"
#include "mixtape.h"

namespace mixtape::bench {
namespace {

struct Training {
  models::Gpt net{{.vocabulary = gpt.vocabulary,
                   .context = gpt.context,
                   .layers = gpt.layers,
                   .heads = gpt.heads,
                   .width = gpt.width,
                   .dropout = 0}};
  Tensor x = randint(0, gpt.vocabulary, Shape{gpt.batch, gpt.context}),
         y = randint(0, gpt.vocabulary, Shape{gpt.batch, gpt.context});

  void step(const amp::AutocastOptions& region) {
    net.zero_grad();
    Tensor loss;
    {
      const amp::Autocast on(region);
      loss = cross_entropy(transpose(net(x), 1, 2), y);
    }
    loss.backward();
  }
};

void step(benchmark::State& state, DType low) {
  const Seed seed(1);
  Training training;
  for (auto _ : state) training.step({.low = low});
}
void compare(benchmark::State& state, DType low) {
  const Seed seed(1);
  Training training;
  for (auto _ : state) {
    const amp::Compare both([&](const amp::AutocastOptions& region) { training.step(region); },
                            {.region = {.low = low}});
    benchmark::DoNotOptimize(both.error());
  }
}
BENCHMARK_CAPTURE(step, f32, f32)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(step, bf16, bf16)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(compare, bf16, bf16)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace mixtape::bench

BENCHMARK_MAIN();
