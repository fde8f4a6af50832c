// An LSTM, forward and backward: all time steps in one op, and one op per time step.

#include <benchmark/benchmark.h>

#include "mixtape.h"

namespace mixtape {
namespace {

// steps, batch, inputs, hidden
void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"t", "b", "in", "n"});
  b->Args({50, 16, 32, 64})
      ->Args({200, 1, 64, 128})
      ->Args({100, 32, 64, 128})
      ->Args({50, 64, 256, 512});
  b->Unit(benchmark::kMillisecond)->UseRealTime();
}

void one_op(benchmark::State& state) {
  const nn::LSTM net(state.range(2), state.range(3));
  const Tensor x = randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) sum(net(x).output).backward();
}
BENCHMARK(one_op)->Apply(sizes);

void op_per_step(benchmark::State& state) {
  const nn::LSTM net(state.range(2), state.range(3));
  const nn::RecurrentWeights& w = net.weights[0];
  const Tensor x = randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) {
    const Tensor gates = linear(x, w.weight_ih, w.bias_ih);
    std::vector<Tensor> outputs;
    Tensor h, c;
    for (int64_t t = 0; t < state.range(0); ++t) {
      const Tensor y = lstm(narrow(gates, 0, t, 1), w.weight_hh, w.bias_hh, h, c);
      h = select(y, 0, 0);
      c = select(y, 0, 1);
      outputs.push_back(h);
    }
    sum(stack(outputs)).backward();
  }
}
BENCHMARK(op_per_step)->Apply(sizes);

void forward_only(benchmark::State& state) {
  const NoGrad off;
  const nn::LSTM net(state.range(2), state.range(3));
  const Tensor x = randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) benchmark::DoNotOptimize(net(x));
}
BENCHMARK(forward_only)->Apply(sizes);

}  // namespace
}  // namespace mixtape

BENCHMARK_MAIN();
