// A training step as its network or batch grows, one size at a time: time, and the peak of tensors.
// script/bench growth fits exponents and draws them.

#include <benchmark/benchmark.h>

#include "bench/steps.h"
#include "kernels/cpu/loops/parallel.h"

namespace mixtape::bench {
namespace {

template <class Size>
void step(benchmark::State& state, const Size& size, DType low, int threads) {
  const kernels::cpu::ThreadLimit limit(threads);
  const Call call = training(size, low);
  call();  // makes the optimizer's state
  reset_peak();
  for (auto _ : state) call();
  state.counters["peak_bytes"] = double(memory_stats().peak);
}

// growth/NET/AXIS/VALUE/DTYPE/threads:N for each value of one of the sizes.
template <class Size>
void add(const std::string& net, const std::string& axis, Size size, int64_t Size::* which,
         const std::vector<int64_t>& values) {
  std::vector<int> threads{1};
  if (kernels::cpu::num_threads() > 1) threads.push_back(kernels::cpu::num_threads());
  for (const int n : threads)
    for (const DType low : {f32, bf16})
      for (const int64_t value : values) {
        size.*which = value;
        benchmark::RegisterBenchmark(
            ("growth/" + net + '/' + axis + '/' + std::to_string(value) + '/' +
             std::string(name(low)) + "/threads:" + std::to_string(n))
                .c_str(),
            [=](benchmark::State& s) { step(s, size, low, n); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  using namespace mixtape::bench;
  const GptSize text{4, 128, 65, 4, 4, 256};
  add("gpt", "batch", text, &GptSize::batch, {1, 2, 4, 8, 16});
  add("gpt", "length", text, &GptSize::context, {64, 128, 256, 512, 1024});
  add("gpt", "width", text, &GptSize::width, {64, 128, 256, 512, 1024});
  add("resnet", "batch", resnet20, &ResNetSize::batch, {8, 16, 32, 64});
  add("resnet", "width", resnet20, &ResNetSize::width, {8, 16, 32, 64});
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
