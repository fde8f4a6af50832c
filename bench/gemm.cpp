// Matrix products beside Eigen alone and, where their libraries are found when this runs, OpenBLAS
// and oneDNN: shapes that training meets, in f32, bf16 and f16. All take turns within one round and
// the median of all rounds counts, so that what else the machine does hits all alike. Per cent are
// of the multiply-adds that this core does per second, measured in the same rounds.
//
//     MIXTAPE_NUM_THREADS=1 bench_gemm [--rounds N] [--filter TEXT]

#include <dlfcn.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "kernels/cpu/engine.h"
#include "kernels/cpu/parallel.h"
#include "kernels/kernels.h"
#include "mixtape.h"

namespace mixtape {
namespace {

using kernels::cpu::Isa;
using kernels::cpu::IsaLimit;
using kernels::cpu::Tile;

// One thread's seconds are those that it ran: others may be at work on the machine.
double now() {
  timespec t;
  clock_gettime(kernels::cpu::num_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}
double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + int64_t(v.size()) / 2, v.end());
  return v[v.size() / 2];
}

// c = a @ b; a is stored [k, m] if `a_t`, b [n, k] if `b_t`.
struct Case {
  std::string name;
  int64_t batch, m, n, k;
  bool a_t, b_t;

  double flops() const { return 2.0 * double(batch) * double(m) * double(n) * double(k); }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&](std::string name, int64_t m, int64_t n, int64_t k, int64_t batch = 1,
                       const char* only = "NN NT TN") {
    for (const char* l : {"NN", "NT", "TN"})
      if (std::strstr(only, l))
        all.push_back({fmt::format("{} {}", name, l), batch, m, n, k, l[0] == 'T', l[1] == 'T'});
  };
  for (const int64_t n : {128, 256, 512, 1024}) add("square", n, n, n);
  // y = x wT, dx = dy w, dw = dyT x
  const auto linear = [&](const char* name, int64_t rows, int64_t in, int64_t out) {
    add(name, rows, out, in, 1, "NT");
    add(name, rows, in, out, 1, "NN");
    add(name, out, in, rows, 1, "TN");
  };
  linear("mlp", 128, 784, 512);
  linear("demo-fc", 64, 1600, 128);
  linear("logits", 128, 512, 10);
  linear("gpt-qkv", 768, 128, 384);
  linear("gpt-mlp", 768, 128, 512);
  linear("gpt2-qkv", 256, 768, 2304);
  linear("gpt2-mlp", 256, 768, 3072);
  add("attention", 64, 64, 32, 48, "NT");  // q kT
  add("attention", 64, 32, 64, 48, "NN");  // p v
  add("attention", 64, 32, 64, 48, "TN");  // pT do
  // Convolutions of ResNet-50 as [channels, taps] by [taps, pixels]
  add("resnet-1x1", 256, 3136, 64, 1, "NN");
  add("resnet-3x3", 128, 784, 1152, 1, "NN");
  add("resnet-deep", 512, 49, 4608, 1, "NN");
  return all;
}

// What multiplies: `run` does it once.
struct Runner {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds;
};

// What an engine's largest tile does with operands in the first-level cache.
struct Peak {
  const kernels::cpu::Engine<float>* engine = nullptr;
  std::vector<float> memory = std::vector<float>(1 << 14);

  double flops_per_second() {
    if (!engine) return 0;
    constexpr int64_t depth = 256, times = 40;
    std::fill(memory.begin(), memory.end(), 0.0f);
    float* const data =
        reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    // The same operands at every step: all that is measured are the multiply-adds.
    Tile<float> t{depth, data,    data + 64,  int64_t(engine->unit_bytes),
                  0,     0,       data + 128, engine->lanes * 2,
                  false, nullptr, 0};
    const double start = now();
    for (int64_t i = 0; i < times; ++i) engine->tile(engine->rows, engine->vectors, t);
    const double macs = double(times * depth * engine->rows * engine->vectors * engine->lanes);
    return 2 * macs * engine->unit / (now() - start);
  }
};

void* symbol(const std::vector<const char*>& libraries, const char* name) {
  for (const char* library : libraries)
    if (void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL))
      if (void* const found = dlsym(handle, name)) return found;
  return nullptr;
}

using Cblas = void (*)(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a,
                       int lda, const float* b, int ldb, float beta, float* c, int ldc);
using Dnnl = int (*)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                     int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);
using DnnlBf16 = int (*)(char ta, char tb, int64_t m, int64_t n, int64_t k, float alpha,
                         const uint16_t* a, int64_t lda, const uint16_t* b, int64_t ldb, float beta,
                         float* c, int64_t ldc);

void time_once(Runner& r, double about) {
  const int64_t times = std::max<int64_t>(1, int64_t(0.002 / std::max(about, 1e-7)));
  const double start = now();
  for (int64_t i = 0; i < times; ++i) r.run();
  r.seconds.push_back((now() - start) / double(times));
}

struct Sums {
  std::vector<double> logs;
  void add(double x) { logs.push_back(std::log(x)); }
  double mean() const {
    double s = 0;
    for (const double l : logs) s += l;
    return logs.empty() ? 0 : std::exp(s / double(logs.size()));
  }
};

int run(int rounds, const std::string& filter) {
  const std::vector<const char*> openblas = {"libopenblas.so.0"},
                                 dnnl = {"libdnnl.so.2", "libdnnl.so.3"};
  const auto blas_gemm = reinterpret_cast<Cblas>(symbol(openblas, "cblas_sgemm"));
  const auto dnnl_gemm = reinterpret_cast<Dnnl>(symbol(dnnl, "dnnl_sgemm"));
  const auto dnnl_bf16 = reinterpret_cast<DnnlBf16>(symbol(dnnl, "dnnl_gemm_bf16bf16f32"));
  const int threads = kernels::cpu::num_threads();
  if (auto* const set =
          reinterpret_cast<void (*)(int)>(symbol(openblas, "openblas_set_num_threads")))
    set(threads);
  if (auto* const set =
          reinterpret_cast<void (*)(int)>(symbol({"libgomp.so.1"}, "omp_set_num_threads")))
    set(threads);

  Peak peak{kernels::cpu::find_engine<float>(kernels::cpu::current_isa(), f32)};
  fmt::print(
      "{:<16} {:>4} {:>5} {:>5} {:>5} | {:>6} {:>5} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} | {:>6} "
      "{:>6}\n",
      "GF/s", "b", "m", "n", "k", "f32", "peak%", "/Eigen", "/oBLAS", "/oneDNN", "bf16", "/f32",
      "/oneDNN", "f16", "/f32");
  Sums of_peak, to_eigen, to_blas, to_dnnl, bf16_gain, bf16_dnnl, f16_gain, attention, more_threads,
      more_threads_bf16;
  for (const Case& c : cases()) {
    if (c.name.find(filter) == std::string::npos) continue;
    const auto make = [&](DType t, int64_t rows, int64_t columns, bool turned, uint64_t seed) {
      const Seed s(seed);
      const Tensor x =
          cast(turned ? randn({c.batch, columns, rows}) : randn({c.batch, rows, columns}), t);
      return turned ? x.t() : x;
    };
    struct Operands {
      Tensor a, b, out;
    };
    std::vector<Operands> data;
    for (const DType t : {f32, bf16, f16})
      data.push_back({make(t, c.m, c.k, c.a_t, 1), make(t, c.k, c.n, c.b_t, 2),
                      Tensor({c.batch, c.m, c.n}, t)});
    const Tensor wide({c.batch, c.m, c.n}, f32);
    std::vector<Runner> runners;
    const auto ours = [&](const char* name, const Operands& o) {
      runners.push_back({name,
                         [&] {
                           kernels::Launch l(Device::cpu());
                           kernels::gemm(l, o.a, o.b, kernels::Epilogue{}, o.out);
                         },
                         {}});
    };
    ours("f32", data[0]);
    ours("bf16", data[1]);
    ours("f16", data[2]);
    // What a second thread gains. (The peers' threads spin after their work, and would disturb.)
    const auto alone = [&](const char* name, const Operands& o) {
      if (threads == 1) return;
      runners.push_back({name,
                         [&] {
                           const kernels::cpu::ThreadLimit one(1);
                           kernels::Launch l(Device::cpu());
                           kernels::gemm(l, o.a, o.b, kernels::Epilogue{}, o.out);
                         },
                         {}});
    };
    alone("f32 alone", data[0]);
    alone("bf16 alone", data[1]);
    runners.push_back({"Eigen",
                       [&] {
                         const IsaLimit portable(Isa::Portable);
                         kernels::Launch l(Device::cpu());
                         kernels::gemm(l, data[0].a, data[0].b, kernels::Epilogue{}, wide);
                       },
                       {}});
    const int64_t lda = c.a_t ? c.m : c.k, ldb = c.b_t ? c.k : c.n;
    const auto each = [&](const auto& f) {
      for (int64_t i = 0; i < c.batch; ++i) f(i * c.m * c.k, i * c.k * c.n, i * c.m * c.n);
    };
    if (blas_gemm && threads == 1)
      runners.push_back({"OpenBLAS",
                         [&] {
                           each([&](int64_t x, int64_t y, int64_t z) {
                             blas_gemm(101, c.a_t ? 112 : 111, c.b_t ? 112 : 111, int(c.m),
                                       int(c.n), int(c.k), 1,
                                       static_cast<const float*>(data[0].a.raw()) + x, int(lda),
                                       static_cast<const float*>(data[0].b.raw()) + y, int(ldb), 0,
                                       static_cast<float*>(wide.raw()) + z, int(c.n));
                           });
                         },
                         {}});
    if (dnnl_gemm && threads == 1)
      runners.push_back({"oneDNN",
                         [&] {
                           each([&](int64_t x, int64_t y, int64_t z) {
                             dnnl_gemm(c.a_t ? 'T' : 'N', c.b_t ? 'T' : 'N', c.m, c.n, c.k, 1,
                                       static_cast<const float*>(data[0].a.raw()) + x, lda,
                                       static_cast<const float*>(data[0].b.raw()) + y, ldb, 0,
                                       static_cast<float*>(wide.raw()) + z, c.n);
                           });
                         },
                         {}});
    if (dnnl_bf16 && threads == 1)
      runners.push_back({"oneDNN bf16",
                         [&] {  // to f32
                           each([&](int64_t x, int64_t y, int64_t z) {
                             dnnl_bf16(c.a_t ? 'T' : 'N', c.b_t ? 'T' : 'N', c.m, c.n, c.k, 1,
                                       static_cast<const uint16_t*>(data[1].a.raw()) + x, lda,
                                       static_cast<const uint16_t*>(data[1].b.raw()) + y, ldb, 0,
                                       static_cast<float*>(wide.raw()) + z, c.n);
                           });
                         },
                         {}});

    std::vector<double> peaks;
    for (Runner& r : runners) {
      r.run();
      const double start = now();
      r.run();
      r.seconds = {now() - start};
    }
    for (int i = 0; i < rounds; ++i) {
      peaks.push_back(peak.flops_per_second() * threads);
      for (Runner& r : runners) time_once(r, r.seconds[0]);
    }
    const auto speed = [&](const std::string& name) {
      for (const Runner& r : runners)
        if (r.name == name)
          return c.flops() / median({r.seconds.begin() + 1, r.seconds.end()}) / 1e9;
      return 0.0;
    };
    const auto ratio = [&](const char* x, const char* y, Sums& all) {
      if (speed(y) == 0) return 0.0;
      all.add(speed(x) / speed(y));
      return speed(x) / speed(y);
    };
    const double part = speed("f32") / (median(peaks) / 1e9);
    of_peak.add(part);
    ratio("f32", "f32 alone", more_threads);
    ratio("bf16", "bf16 alone", more_threads_bf16);
    if (c.name.starts_with("attention") && speed("oneDNN") > 0)
      attention.add(speed("f32") / speed("oneDNN"));
    fmt::print(
        "{:<16} {:>4} {:>5} {:>5} {:>5} | {:>6.0f} {:>5.0f} {:>6.2f} {:>6.2f} {:>6.2f} | "
        "{:>6.0f} {:>6.2f} {:>6.2f} | {:>6.0f} {:>6.2f}\n",
        c.name, c.batch, c.m, c.n, c.k, speed("f32"), 100 * part, ratio("f32", "Eigen", to_eigen),
        ratio("f32", "OpenBLAS", to_blas), ratio("f32", "oneDNN", to_dnnl), speed("bf16"),
        ratio("bf16", "f32", bf16_gain), ratio("bf16", "oneDNN bf16", bf16_dnnl), speed("f16"),
        ratio("f16", "f32", f16_gain));
    std::fflush(stdout);
  }
  fmt::print("\ngeometric means with {} threads\nf32: {:.1f}% of the peak", threads,
             100 * of_peak.mean());
  const auto times = [](const char* what, const Sums& s) {
    if (!s.logs.empty()) fmt::print(", {:.2f} of {}", s.mean(), what);
  };
  times("Eigen", to_eigen);
  times("OpenBLAS", to_blas);
  times("oneDNN", to_dnnl);
  times("oneDNN in attention", attention);
  times("one thread", more_threads);
  fmt::print("\nbf16: {:.2f} of f32", bf16_gain.mean());
  times("oneDNN", bf16_dnnl);
  times("one thread", more_threads_bf16);
  fmt::print("\nf16: {:.2f} of f32\n", f16_gain.mean());
  return 0;
}

}  // namespace
}  // namespace mixtape

int main(int argc, char** argv) {
  int rounds = 7;
  std::string filter;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--rounds") == 0) rounds = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--filter") == 0) filter = argv[i + 1];
  }
  return mixtape::run(rounds, filter);
}
