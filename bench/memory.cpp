// Peak resident memory of a training process. Each network and precision runs in its own child
// process, without any peer's libraries.

#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/steps.h"

namespace mixtape::bench {
namespace {

bool failed = false;

template <class Size>
void add(const std::string& name, const Size& size) {
  for (const DType low : {f32, f16, bf16})
    benchmark::RegisterBenchmark(
        ("memory/" + name + "/" + std::string(mixtape::name(low))).c_str(),
        [=](benchmark::State& state) {
          for (auto _ : state) {
            const pid_t child = fork();  // before any thread starts
            if (child == 0) {
              const Call step = training(size, low);
              for (int i = 0; i < 10; ++i) step();
              _exit(0);
            }
            int status = 1;
            rusage usage;
            if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) {
              failed = true;
              return state.SkipWithError("the training failed");
            }
            state.counters["peak_mb"] = double(usage.ru_maxrss) / 1024;
          }
        })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime()
        ->Iterations(1);
}

}  // namespace
}  // namespace mixtape::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  using namespace mixtape::bench;
  add("mlp", mlp);
  add("cnn", wide_cnn);
  add("lstm", lstm);
  add("gpt", gpt);
  benchmark::RunSpecifiedBenchmarks();
  return failed;
}
