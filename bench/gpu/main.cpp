// Rates of the CUDA device: copies (the ceiling of memory-bound ops), memory-bound ops, products
// compared with cuBLAS, attention, convolutions and training steps. Every result is checked against
// the CPU in f64 before it is timed.

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench/gpu/report.h"
#include "core/random.h"

using namespace mixtape;

// Exits with 2 without a device or for a wrong option, and with 1 if a figure is wrong.
int main(int argc, char** argv) {
  bench::Settings settings;
  CLI::App app("Measures a CUDA device: the median time of each case, its rate and its error.",
               "bench_gpu");
  const auto add = [&](const char* name, auto& value, const char* kind, const char* help) {
    return app.add_option(name, value, help)->type_name(kind)->capture_default_str();
  };
  add("--filter", settings.filter, "LIST", "only what has one of these in its name, by commas")
      ->delimiter(',');
  add("--repeats", settings.repeats, "N", "timed stretches of each case")
      ->check(CLI::Range(1, 100'000));
  add("--min-time", settings.min_time, "MS", "milliseconds of a stretch, at least")
      ->check(CLI::Range(0.001, 1e4));
  add("--limit", settings.limit, "S", "seconds after which no further case begins")
      ->check(CLI::Range(0.0, 1e6));
  add("--json", settings.json, "FILE", "write all figures there");
  app.add_flag("--smoke", settings.smoke, "tiny sizes and no figures: only that all runs");
  try {
    app.parse(argc, argv);
    bench::gpu.require();
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const std::exception& e) {
    const std::string said = e.what();
    fmt::print(stderr, "bench_gpu: {}\n", said.substr(0, said.find('\n')));
    return 2;
  }

  std::string command = "bench_gpu";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  try {
    const Seed seed(1);
    bench::Report report(settings);
    bench::measure_copies(report);
    bench::measure_products(report);
    bench::measure_attention(report);
    bench::measure_memory(report);
    bench::measure_convolutions(report);
    bench::measure_optimizer(report);
    bench::measure_steps(report);
    return report.finish(command) > 0;
  } catch (const std::exception& e) {
    fmt::print(stderr, "bench_gpu: {}\n", e.what());
    return 1;
  }
}
