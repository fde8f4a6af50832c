// Training steps of small networks, batch 64, in each precision; beside libtorch in the same
// process where it is installed. `--benchmark_filter` picks one, for its peak memory (peak_rss_mb
// is the growth of the process since before the network was made).

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <cstdlib>

#include "bench/models.h"
#ifdef MIXTAPE_TORCH
#include "bench/peers/torch.h"
#endif

namespace mixtape {
namespace {

double rss_mb() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_maxrss) / 1024;
}
const double rss_at_start = rss_mb();

void step(benchmark::State& state, const bench::CnnSize& size, DType low) {
  const Seed seed(1);
  const Tensor x = randn({64, 1, 28, 28}), y = randint(0, 10, {64});
  bench::Cnn net(size);
  optim::Adam opt(net.parameters(), {.lr = 1e-3});
  amp::GradScaler scaler(low);
  for (auto _ : state) {
    opt.zero_grad();
    Tensor loss;
    {
      const amp::Autocast on({.low = low});
      loss = cross_entropy(net(x), y);
    }
    scaler.scale(loss).backward();
    scaler.step(opt);
    scaler.update();
  }
  state.counters["peak_rss_mb"] = rss_mb() - rss_at_start;
}

#ifdef MIXTAPE_TORCH
void torch_step(benchmark::State& state, const bench::CnnSize& size, bool bf16) {
  peers::TorchCnn net(size, bf16);
  for (auto _ : state) net.step();
  state.counters["peak_rss_mb"] = rss_mb() - rss_at_start;
}
#endif

void compare(const std::string& name, const bench::CnnSize& size) {
  const auto milliseconds = [](auto* b) { b->Unit(benchmark::kMillisecond)->UseRealTime(); };
  for (const DType low : {f32, f16, bf16})
    milliseconds(
        benchmark::RegisterBenchmark((name + "/" + std::string(mixtape::name(low))).c_str(),
                                     [=](benchmark::State& s) { step(s, size, low); }));
#ifdef MIXTAPE_TORCH
  for (const bool narrow : {false, true})
    milliseconds(
        benchmark::RegisterBenchmark((name + "/" + (narrow ? "bf16" : "f32") + "/libtorch").c_str(),
                                     [=](benchmark::State& s) { torch_step(s, size, narrow); }));
#endif
}

}  // namespace
}  // namespace mixtape

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
#ifdef MIXTAPE_TORCH
  const char* threads = std::getenv("MIXTAPE_NUM_THREADS");
  mixtape::peers::set_threads(threads ? std::atoi(threads) : 0);
#endif
  mixtape::compare("demo_cnn", mixtape::bench::demo_cnn);
  mixtape::compare("wide_cnn", mixtape::bench::wide_cnn);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
