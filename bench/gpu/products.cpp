// Products: square ones, all layouts, the planner's tiles, and the products of a GPT-2 124M step.

#include <fmt/format.h>

#include <cmath>

#include "autograd/ops.h"
#include "bench/gpu/cublas.h"
#include "bench/gpu/report.h"
#include "core/runtime.h"
#include "core/tf32.h"
#include "kernels/cuda/gemm/gemm.h"

namespace mixtape::bench {
namespace {

struct Arithmetic {
  const char* name;
  DType dtype;
  bool tf32;
  double tolerance;
};
constexpr Arithmetic arithmetics[] = {{"f16", f16, false, 1e-2},
                                      {"bf16", bf16, false, 1e-2},
                                      {"tf32", f32, true, 1e-3},
                                      {"f32", f32, false, 1e-5}};

struct Problem {
  int64_t m, n, k;
  const char* layout = "nn";  // of a and b: n row-major, t column-major
};

Tensor matrix(int64_t rows, int64_t columns, DType dtype, char layout) {
  return layout == 'n' ? randn({rows, columns}, dtype) : randn({columns, rows}, dtype).t();
}

// The error of some rows against the CPU.
double error_of(const Tensor& a, const Tensor& b, const Tensor& c) {
  const int64_t rows = 16, step = (a.size(0) + rows - 1) / rows;
  const auto wide = [](const Tensor& x) { return x.to(Device::cpu()).to(f64); };
  return distance(slice(c, 0, 0, c.size(0), step),
                  matmul(wide(slice(a, 0, 0, a.size(0), step)), wide(b)));
}

// The peer, created for the first product.
const Cublas& peer_for(Report& report) {
  static const Cublas peer;
  report.set_peer(peer.about());
  return peer;
}

// Uses the given plan, or the planner's.
void measure(Report& report, const std::string& name, const Arithmetic& how, Problem p,
             std::optional<kernels::cuda::GemmPlan> plan = {}) {
  report.take(name, [&](Figure& f) {
    const Cublas& peer = peer_for(report);
    const NoGrad off;
    const DefaultDevice here(gpu);
    if (report.settings.smoke)
      for (int64_t* const size : {&p.m, &p.n, &p.k}) *size = std::min<int64_t>(*size, 72);
    f.kind = Figure::Kind::Operations;
    f.work = 2.0 * double(p.m) * double(p.n) * double(p.k);
    f.tolerance = how.tolerance;

    const double bytes = double(size_of(how.dtype)) * double(p.m * p.k + p.k * p.n + p.m * p.n);
    const int64_t sets = std::min<int64_t>(report.sets(bytes), 16);
    std::vector<Tensor> a, b, c;
    for (int64_t i = 0; i < sets; ++i) {
      a.push_back(matrix(p.m, p.k, how.dtype, p.layout[0]));
      b.push_back(matrix(p.k, p.n, how.dtype, p.layout[1]));
      c.push_back(full({p.m, p.n}, NAN, how.dtype));
    }
    const Tf32 rounds(how.tf32);
    const auto ours = [&](int64_t i) {
      const size_t s = size_t(i % sets);
      kernels::Launch launch(gpu);
      if (plan)
        kernels::cuda::gemm(launch, a[s], b[s], {}, c[s], *plan);
      else
        kernels::gemm(launch, a[s], b[s], kernels::Epilogue{}, c[s]);
    };
    ours(0);
    f.error = error_of(a[0], b[0], c[0]);
    std::vector<Call> calls{ours};
    if (peer) {
      // Checks all elements, not just some rows.
      const Tensor mine = clone(c[0]);
      peer.multiply(a[0], b[0], c[0], how.tf32);
      const double apart = norm(sub(mine.to(f32), c[0].to(f32))).item() / norm(c[0].to(f32)).item();
      if (!(apart <= 2 * how.tolerance))
        f.wrong.push_back(fmt::format("{:.2g} away from cuBLAS", apart));
      calls.push_back([&](int64_t i) {
        const size_t s = size_t(i % sets);
        peer.multiply(a[s], b[s], c[s], how.tf32);
      });
    }
    const std::vector<Timing> times = report.time(calls);
    f.ours = times[0];
    if (peer) f.peer = times[1];
  });
}

}  // namespace

void measure_products(Report& report) {
  for (const Arithmetic& how : arithmetics) {
    const auto name = [&](std::string_view rest) {
      return fmt::format("gemm/{}/{}", how.name, rest);
    };
    for (const int64_t n : {1024, 2048, 4096, 8192})
      measure(report, name(fmt::format("{}", n)), how, {n, n, n});
    for (const char* layout : {"nt", "tn", "tt"})
      measure(report, name(fmt::format("4096/{}", layout)), how, {4096, 4096, 4096, layout});
    for (int tile = 0; tile < kernels::cuda::tile_count; ++tile)
      if (kernels::cuda::tiles[tile].tensor == (how.dtype != f32 || how.tf32))
        measure(report, name(fmt::format("4096/tile{}", tile)), how, {4096, 4096, 4096},
                kernels::cuda::GemmPlan{tile, 1});
    // Each tier, by the largest tile.
    using kernels::cuda::Tier;
    if (is_half(how.dtype))
      for (const auto& [tier, value] : {std::pair{"mma", Tier::Mma}, std::pair{"wmma", Tier::Wmma}})
        measure(report, name(fmt::format("4096/{}", tier)), how, {4096, 4096, 4096},
                kernels::cuda::GemmPlan{0, 1, value});
    const bool hopper = runtime::cuda().properties(gpu.index).major == 9;
    for (int tile = 0; hopper && tile < kernels::cuda::groups_tiles && how.dtype != f32; ++tile)
      measure(report, name(fmt::format("4096/groups/tile{}", tile)), how, {4096, 4096, 4096},
              kernels::cuda::GemmPlan{tile, 1, Tier::Groups});
    // Eight sequences of 1,024 tokens; weights are [out, in].
    const int64_t tokens = 8 * 1024;
    struct Layer {
      const char* name;
      int64_t in, out;
    };
    for (const auto& [layer, in, out] :
         {Layer{"qkv", 768, 2304}, Layer{"proj", 768, 768}, Layer{"up", 768, 3072},
          Layer{"down", 3072, 768}, Layer{"head", 768, 50257}}) {
      const auto pass = [&, layer = layer](const char* of) {
        return name(fmt::format("gpt2/{}/{}", layer, of));
      };
      measure(report, pass("y"), how, {tokens, out, in, "nt"});
      measure(report, pass("dx"), how, {tokens, in, out, "nn"});
      measure(report, pass("dw"), how, {out, in, tokens, "tn"});
    }
  }
}

}  // namespace mixtape::bench
