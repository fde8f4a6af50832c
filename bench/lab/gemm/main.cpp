// Climbs the ladder of matrix products: checks each rung against f64, then measures it. On an
// emulated device it counts bank conflicts and the bytes of boxes instead.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "autograd/ops.h"
#include "bench/lab/gemm/rung.h"
#include "core/check.h"
#include "core/random.h"
#include "core/runtime.h"
#include "core/stream.h"
#include "kernels/common/launch.h"
#ifdef MIXTAPE_EMULATED
#include "emulator/simt/hopper.h"
#endif

using namespace mixtape;

namespace {

#ifdef MIXTAPE_EMULATED
constexpr bool emulated = true;
constexpr Device gpu = Device::cuda(1);  // of capability 9.0
#else
constexpr bool emulated = false;
constexpr Device gpu = Device::cuda();
#endif

struct Settings {
  std::vector<int> size;   // m, n, k
  std::vector<int> rungs;  // empty: all
  int repeats = 20;
  double peak = 0;  // TFLOP/s; 0: known for the device, or none
};

// The dense peak of bf16 with f32 sums, as NVIDIA states it for the fastest of a capability.
double known_peak() {
  const runtime::Properties& p = runtime::cuda().properties(gpu.index);
  return p.major == 9 ? 989 : p.major == 8 && p.minor == 0 ? 312 : 0;
}

struct Matrices {
  Tensor a, b, c;
  int m, n, k;

  explicit Matrices(const std::vector<int>& size) : m(size[0]), n(size[1]), k(size[2]) {
    const DefaultDevice here(gpu);
    a = randn({m, k}, bf16);
    b = randn({k, n}, bf16);
    c = full({m, n}, NAN, f32);
  }
  void run(const lab::Rung& rung) const {
    const kernels::Launch launch(gpu);
    const internal::View &of_a = a, &of_b = b, &of_c = c;
    rung.run(of_a.as<const BFloat16>(), of_b.as<const BFloat16>(), of_c.as<float>(), m, n, k,
             launch.stream);
  }
  // The largest error of some rows against f64, over the largest element.
  double error() const {
    const int64_t step = (m + 31) / 32;  // (at least every 32nd row: some of each tile)
    const auto wide = [](const Tensor& x) { return x.to(Device::cpu()).to(f64); };
    const Tensor want = matmul(wide(slice(a, 0, 0, m, step)), wide(b)),
                 got = wide(slice(c, 0, 0, m, step));
    return max(abs(sub(got, want))).item() / max(abs(want)).item();
  }
};

#ifdef MIXTAPE_EMULATED
// Runs the rung once. Cells of the table: the passes that bank conflicts add to reads of shared
// memory, and what the copy engine reads of a and b.
std::string measure(const lab::Rung& rung, const Matrices& x, const Settings&) {
  const simt::BankConflicts counted;
  const int64_t before = simt::bytes_of_boxes();
  x.run(rung);
  synchronize(gpu);
  const int64_t bytes = simt::bytes_of_boxes() - before;
  return fmt::format("{} | {}", counted.count(simt::Access::Read),
                     bytes > 0 ? fmt::format("{}", bytes / 1024) : "");
}
constexpr const char* measured = "bank conflicts | KiB of boxes";
#else
// Milliseconds of a product, the median of `repeats`.
double milliseconds(const lab::Rung& rung, const Matrices& x, int repeats) {
  std::vector<double> all;
  for (int i = -2; i < repeats; ++i) {  // (two to warm up)
    const runtime::Event first(gpu);
    x.run(rung);
    const runtime::Event last(gpu);
    if (i >= 0) all.push_back(first.milliseconds_until(last));
  }
  std::ranges::nth_element(all, all.begin() + std::ptrdiff_t(all.size() / 2));
  return all[all.size() / 2];
}

// TFLOP/s and their part of the peak.
std::string measure(const lab::Rung& rung, const Matrices& x, const Settings& settings) {
  const double rate = 2e-9 * x.m * x.n * x.k / milliseconds(rung, x, settings.repeats);
  return fmt::format("{:.1f} | {}", rate,
                     settings.peak > 0 ? fmt::format("{:.1f}", 100 * rate / settings.peak) : "");
}
constexpr const char* measured = "TFLOP/s | % of peak";
#endif

// The cells of a rung's line behind its idea; nothing if the product is wrong.
std::optional<std::string> climb(const lab::Rung& rung, const Settings& settings) {
  const Matrices x(settings.size);
  const std::string empty = " | |";
  if (x.m % rung.tile.m != 0 || x.n % rung.tile.n != 0 || x.k % rung.tile.k != 0)
    return fmt::format("needs multiples of {} x {} x {} |{}", rung.tile.m, rung.tile.n, rung.tile.k,
                       empty);
  if (rung.hopper && runtime::cuda().properties(gpu.index).major != 9)
    return "needs compute capability 9.0 |" + empty;
  x.run(rung);
  const double error = x.error();
  if (!(error < 1e-4)) return std::nullopt;
  return fmt::format("{:.1e} | {} |", error, measure(rung, x, settings));
}

void climb_all(Settings& settings, bool& right) {
  const runtime::Properties& p = runtime::cuda().properties(gpu.index);
  if (settings.size.empty())
    settings.size = emulated ? std::vector{256, 256, 128} : std::vector{4096, 4096, 4096};
  if (settings.peak == 0) settings.peak = known_peak();
  fmt::print("{}, {} x {} x {}, bf16 to f32", emulated ? "the emulated device" : p.name,
             settings.size[0], settings.size[1], settings.size[2]);
  if (settings.peak > 0 && !emulated) fmt::print(", peak {:.0f} TFLOP/s", settings.peak);
  fmt::print("\n\n| rung | idea | error | {} |\n|--:|---|--:|{}\n", measured, "--:|--:|");
  const std::span<const lab::Rung> all = lab::rungs();
  for (int i = 0; i < int(all.size()); ++i) {
    if (!settings.rungs.empty() && std::ranges::count(settings.rungs, i) == 0) continue;
    const std::optional<std::string> cells = climb(all[size_t(i)], settings);
    right = right && cells;
    fmt::print("| {} | {} | {}\n", i, all[size_t(i)].idea, cells.value_or("WRONG |"));
    std::fflush(stdout);
  }
}

}  // namespace

// Exits with 2 without a device or for a wrong option, and with 1 if a product is wrong.
int main(int argc, char** argv) {
  Settings settings;
  const int last = int(lab::rungs().size()) - 1;
  CLI::App app("Measures the rungs of the ladder of matrix products (docs/tensor-cores.md).",
               "lab_gemm");
  app.add_option("--size", settings.size, "m, n and k: 4096 each; on the emulator 256,256,128")
      ->type_name("M,N,K")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--rungs", settings.rungs, "only these, by commas")
      ->type_name("LIST")
      ->delimiter(',')
      ->check(CLI::Range(0, last));
  app.add_option("--repeats", settings.repeats, "timed products of each rung")
      ->type_name("N")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--peak", settings.peak, "the device's TFLOP/s for bf16, if it is not known")
      ->type_name("T")
      ->check(CLI::Range(1.0, 1e6));
  try {
    app.parse(argc, argv);
    gpu.require();
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const std::exception& e) {
    const std::string said = e.what();
    fmt::print(stderr, "lab_gemm: {}\n", said.substr(0, said.find('\n')));
    return 2;
  }
  try {
    const Seed seed(1);
    const NoGrad off;
    bool right = true;
    climb_all(settings, right);
    return right ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "lab_gemm: {}\n", e.what());
    return 1;
  }
}
