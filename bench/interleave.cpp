#include "bench/interleave.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "bench/machine.h"
#include "kernels/cpu/loops/parallel.h"

namespace mixtape::bench {
namespace {

Settings chosen;
bool failed = false;  // true once a variant of this library did not run
std::function<void(int)> set_peer_threads = [](int) {};

struct Quartiles {
  double low, median, high;
};
Quartiles quartiles(std::vector<double> v) {
  std::ranges::sort(v);
  const size_t n = v.size();
  return {v[n / 4], (v[(n - 1) / 2] + v[n / 2]) / 2, v[n - 1 - n / 4]};
}

constexpr double longest = 120;  // seconds for all rounds of a workload, if there are more than 5

// The times of a variant, or why there are none.
struct Timing {
  std::string form = {};
  std::string error = {};            // why it does not run; "": it does
  std::vector<double> seconds = {};  // per round
};

struct Workload {
  int threads;
  std::vector<Variant> variants;
  std::vector<Timing> timings = {};                 // per variant
  std::map<DType, std::vector<double>> roofs = {};  // operations per second, one per round

  void measure() {
    if (!timings.empty()) return;
    timings.resize(variants.size());
    const kernels::cpu::ThreadLimit limit(threads);
    set_peer_threads(threads);
    struct Runner {
      size_t variant;
      Task task;
      int64_t count;  // of calls timed together
    };
    std::vector<Runner> runners;
    double round = 0;  // seconds
    // One that does not run, such as a peer's LSTM in bf16 on some processors, keeps no other from
    // running.
    for (size_t i = 0; i < variants.size(); ++i) try {
        Runner runner{i, variants[i].make(), 1};
        const Task& task = runner.task;
        timings[i].form = task.form;
        task.call();
        if (!chosen.smoke) {
          task.call();
          const double once = stretch(task, 1);
          runner.count = std::clamp<int64_t>(
              int64_t(std::ceil(chosen.stretch * 1e-3 / std::max(once, 1e-9))), 1, 1'000'000);
          round += once * double(runner.count + 1);
        }
        runners.push_back(std::move(runner));
      } catch (const std::exception& e) {
        timings[i].error = e.what();
      }
    if (chosen.smoke) {
      for (const Runner& r : runners) timings[r.variant].seconds = {1};
      return;
    }
    const int rounds = std::min(chosen.rounds, std::max(5, int(longest / round)));
    bool peer = true;  // true if one may have run last
    for (int r = 0; r < rounds; ++r) {
      for (const DType dtype : {f32, bf16})
        roofs[dtype].push_back(multiply_add_rate(dtype, threads));
      for (const Runner& runner : runners) {
        // A peer's threads spin before they sleep (4 ms in libgomp) and would take cores from the
        // next variant.
        if (threads > 1 && peer) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        peer = !variants[runner.variant].peer.empty();
        runner.task.call();
        timings[runner.variant].seconds.push_back(stretch(runner.task, runner.count));
      }
    }
  }
  double stretch(const Task& task, int64_t count) const {
    if (task.timed) return task.timed(count) / double(count);
    const double start = now(threads);
    for (int64_t i = 0; i < count; ++i) task.call();
    return (now(threads) - start) / double(count);
  }
  // The fraction of the machine's peak, per round.
  double of_peak(size_t one) const {
    const std::vector<double>& roof = roofs.at(variants[one].dtype == bf16 ? bf16 : f32);
    std::vector<double> all;
    for (size_t r = 0; r < roof.size(); ++r)
      all.push_back(variants[one].operations / timings[one].seconds[r] / roof[r]);
    return quartiles(std::move(all)).median;
  }
  // The time of `one` relative to `other`, per round.
  Quartiles ratio(size_t one, size_t other) const {
    std::vector<double> all;
    for (size_t r = 0; r < timings[one].seconds.size(); ++r)
      all.push_back(timings[one].seconds[r] / timings[other].seconds[r]);
    return quartiles(std::move(all));
  }
};

void report(benchmark::State& state, const Workload& w, size_t index) {
  const Variant& v = w.variants[index];
  const Timing& timing = w.timings[index];
  if (!timing.error.empty()) {
    failed |= v.peer.empty();
    return state.SkipWithError(timing.error.c_str());
  }
  const Quartiles t = quartiles(timing.seconds);
  for (auto _ : state) state.SetIterationTime(t.median);
  if (chosen.smoke) return;
  state.SetLabel(timing.form);
  auto& counters = state.counters;
  counters["low_ms"] = t.low * 1e3;
  counters["high_ms"] = t.high * 1e3;
  counters["rounds"] = double(timing.seconds.size());
  if (v.operations > 0) {
    counters["flops"] = v.operations / t.median;
    counters["of_peak"] = w.of_peak(index);
  }
  if (v.bytes) {
    const double moved = v.bytes();
    counters["bytes"] = moved / t.median;
    counters["of_copy"] = moved / t.median / copy_rate(moved, w.threads);
  }
  if (!v.peer.empty()) return;
  const auto put = [&](const std::string& name, const Quartiles& q) {
    counters[name] = q.median;
    counters[name + "_low"] = q.low;
    counters[name + "_high"] = q.high;
  };
  for (size_t i = 0; i < w.variants.size(); ++i) {
    const Variant& other = w.variants[i];
    if (!w.timings[i].error.empty()) continue;
    if (other.peer.empty() && other.dtype == f32 && v.dtype != f32)
      put("of_f32", w.ratio(index, i));
    if (!other.peer.empty() && other.dtype == v.dtype) put("of_" + other.peer, w.ratio(index, i));
  }
}

[[noreturn]] void refuse(const char* option) {
  std::fprintf(stderr, "%s needs a positive number\n", option);
  std::exit(2);
}

// Removes --NAME=NUMBER[,NUMBER...] from the arguments and returns the numbers.
bool take(const char* argument, const char* name, std::vector<int>& numbers) {
  const size_t length = std::strlen(name);
  if (std::strncmp(argument, name, length) != 0 || argument[length] != '=') return false;
  numbers.clear();
  const char *at = argument + length + 1, *const end = at + std::strlen(at);
  do {
    int n = 0;
    const auto [stop, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n <= 0 || (stop != end && *stop != ',')) refuse(name);
    numbers.push_back(n);
    at = stop + 1;
  } while (at <= end);
  return true;
}

}  // namespace

const Settings& settings() { return chosen; }
int64_t pick(int64_t real, int64_t tiny) { return chosen.smoke ? tiny : real; }
void on_threads(std::function<void(int)> set) { set_peer_threads = std::move(set); }

void compare(const std::string& name, const std::vector<Variant>& variants) {
  for (const int threads : chosen.threads) {
    const auto w = std::make_shared<Workload>(Workload{threads, variants});
    for (size_t i = 0; i < variants.size(); ++i) {
      std::string line = name + "/threads:" + std::to_string(threads) + "/" +
                         std::string(mixtape::name(variants[i].dtype));
      if (!variants[i].peer.empty()) line += "/" + variants[i].peer;
      benchmark::RegisterBenchmark(line.c_str(),
                                   [w, i](benchmark::State& state) {
                                     w->measure();
                                     report(state, *w, i);
                                   })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime()
          ->Iterations(1);
    }
  }
}

int run(int argc, char** argv, void (*declare)()) {
  const int most = kernels::cpu::num_threads();
  chosen.threads = most > 1 ? std::vector{1, most} : std::vector{1};
  std::vector<char*> left = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    std::vector<int> one;
    if (std::strcmp(argv[i], "--smoke") == 0)
      chosen.smoke = true;
    else if (std::strcmp(argv[i], "--full") == 0)
      chosen.full = true;
    else if (std::strncmp(argv[i], "--torch=", 8) == 0)
      chosen.torch = argv[i] + 8;
    else if (take(argv[i], "--rounds", one))
      chosen.rounds = one[0];
    else if (take(argv[i], "--stretch", one))
      chosen.stretch = one[0];
    else if (!take(argv[i], "--threads", chosen.threads))
      left.push_back(argv[i]);
  }
  int count = int(left.size());
  benchmark::Initialize(&count, left.data());
  if (benchmark::ReportUnrecognizedArguments(count, left.data())) return 2;
  if (chosen.smoke) chosen.threads = {1};
  declare();
#ifdef MIXTAPE_TORCH
  benchmark::AddCustomContext("libtorch", MIXTAPE_TORCH);
#endif
  if (!chosen.smoke)
    for (const int threads : chosen.threads) {
      const auto note = [&](const char* what, double rate) {
        benchmark::AddCustomContext(std::string(what) + "/threads:" + std::to_string(threads),
                                    std::to_string(rate / 1e9));
      };
      note("fma_gflops", fma_rate(threads));
      if (const auto rate = bf16_rate(threads)) note("bf16_gflops", *rate);
      note("copy_gbytes", copy_rate(1e9, threads));
    }
  benchmark::RunSpecifiedBenchmarks();
  return chosen.smoke && failed;  // script/bench reports errors beside the figures
}

}  // namespace mixtape::bench
