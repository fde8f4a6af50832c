// Matrix products: brings operands of any strides into a form that a kernel takes, chooses a plan
// and launches it.

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/common/batch.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/gemm_exact.cuh"
#include "kernels/cuda/gemm/gemm_groups.h"
#include "kernels/cuda/gemm/gemm_tensor.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// A dense row-major copy of x in scratch memory.
template <class T>
View dense(Launch& launch, const View& x) {
  const View copy{launch.scratch<T>(x.size()), x.dtype, Layout(x.shape())};
  convert(launch, x, copy);
  return copy;
}

// True if the elements of each row, or of each column, are dense.
bool by_rows(const Layout& l) { return l.shape[-1] == 1 || l.strides[-1] == 1; }
bool by_columns(const Layout& l) { return l.shape[-2] == 1 || l.strides[-2] == 1; }

template <class T>
void start(Launch& launch, const Gemm<T>& g, const gpu::Index3& blocks, int tile, Tier tier) {
  const Tile& t = tiles[tile];
  const gpu::Index3 threads{unsigned(t.threads()), 1, 1};
  const bool a_rows = g.a_right == 1, b_rows = g.b_right == 1;
  if constexpr (std::is_same_v<T, double>) {
    gpu::launch({"gemm_exact", blocks, threads, exact_shared_bytes<T>(t)}, launch.stream,
                gemm_exact<T, 4>, g);
  } else {
    if (t.tensor) {
      TensorKernel<T> kernel{};
      if constexpr (sizeof(T) == 2) {
        if (tier == Tier::Wmma) kernel = tensor_kernel<T, Tier::Wmma>(tile, a_rows, b_rows);
      }
      if (!kernel.run) kernel = tensor_kernel<T, Tier::Mma>(tile, a_rows, b_rows);
      return gpu::launch({"gemm_tensor", blocks, threads, kernel.shared_bytes}, launch.stream,
                         kernel.run, g);
    }
    if constexpr (std::is_same_v<T, float>)
      gpu::launch({"gemm_exact", blocks, threads, exact_shared_bytes<T>(t)}, launch.stream,
                  tile == 3 ? gemm_exact<T, 3> : gemm_exact<T, 4>, g);
  }
}

// The operands in the layouts that the kernels take: a and b row- or column-major for tensor cores,
// c row-major.
template <class T>
struct Operands {
  using A = gpu::math_t<T>;
  View a, b, c;
  Layout al, bl, cl;  // of matrices, with batch dimensions merged where possible
  Layout ab, bb, cb;  // of the batch

  // Tensor cores need one dense dimension; exact arithmetic takes any strides.
  Operands(Launch& launch, In a_in, In b_in, Out c_out, bool tensor) : a(a_in), b(b_in), c(c_out) {
    if (!by_rows(c.layout)) {
      c.data = c.dtype == dtype_of<T>() ? static_cast<void*>(launch.scratch<T>(c.size()))
                                        : static_cast<void*>(launch.scratch<A>(c.size()));
      c.layout = Layout(c.shape());
    }
    al = a.layout;
    bl = b.layout;
    cl = c.layout;
    merge_batch(al, bl, cl);
    if (tensor) {  // after merging: a single row is dense, several may not be
      pack(launch, a, al);
      pack(launch, b, bl);
    }
    ab = leading(al);
    bb = leading(bl);
    cb = leading(cl);
    collapse(std::array{&ab, &bb, &cb});
  }
  static void pack(Launch& launch, View& v, Layout& merged) {
    v.layout = merged;
    if (!by_rows(merged) && !by_columns(merged)) v = dense<T>(launch, v);
    merged = v.layout;
  }
  GemmProblem problem() const {
    return {cl.shape[-2], cl.shape[-1], al.shape[-1], cb.shape.size()};
  }
};

// The arguments of the kernel that computes o.c.
template <class T>
Gemm<T> arguments(const Operands<T>& o, const Epilogue& epilogue) {
  using A = gpu::math_t<T>;
  const GemmProblem p = o.problem();
  Gemm<T> g{};
  g.a = o.a.template as<const T>();
  g.b = o.b.template as<const T>();
  g.c = o.c.data;
  g.wide = o.c.dtype != dtype_of<T>() || std::is_same_v<T, A>;
  g.alpha = A(epilogue.alpha);
  g.bias = bias_of(epilogue.bias);
  g.activation = epilogue.activation;
  g.before = epilogue.before.data;
  g.row_sums = epilogue.row_sums.as<A>();
  g.column_sums = epilogue.column_sums.as<A>();
  g.m = p.m;
  g.n = p.n;
  g.k = p.k;
  // (The stride of a dimension of size 1 is arbitrary; it becomes what the kernel expects.)
  const auto strides = [](const Layout& l, int64_t& down, int64_t& right) {
    const bool rows = by_rows(l);
    right = l.shape[-1] == 1 && rows ? 1 : l.strides[-1];
    down = l.shape[-2] == 1 && !rows ? 1 : l.strides[-2];
    return rows ? down : right;
  };
  const int64_t lda = strides(o.al, g.a_down, g.a_right), ldb = strides(o.bl, g.b_down, g.b_right);
  g.ldc = o.cl.strides[-2];
  g.fast_a = aligned<T>(g.a, lda, o.ab);
  g.fast_b = aligned<T>(g.b, ldb, o.bb);
  const auto fast = [&](const void* c) {
    return g.wide ? aligned<A>(c, g.ldc, o.cb) : aligned<T>(c, g.ldc, o.cb);
  };
  g.fast_c = fast(g.c) && fast(g.before);
  g.residual = residual_of(epilogue.residual, g);
  g.batch = {walk_of<3>({&o.ab, &o.bb, &o.cb})};
  return g;
}

// Launches the tile's kernel for all of the batch.
template <class T>
void start_batch(Launch& launch, Gemm<T> g, const GemmProblem& p, const GemmPlan& plan, int split) {
  constexpr int64_t most = 65535;  // blocks along z
  const Tile& t = tiles[plan.tile];
  for (g.first = 0; g.first < p.batch; g.first += most)
    start<T>(launch, g,
             {unsigned(ceil_div(p.m, t.m) * ceil_div(p.n, t.n)), unsigned(split),
              unsigned(std::min(most, p.batch - g.first))},
             plan.tile, plan.tier);
}

// choose(problem, groups) is the plan; groups: the kernel for groups of warps can compute it.
template <class T, class Choose>
void run(Launch& launch, const Operands<T>& o, const Epilogue& epilogue, Choose choose) {
  const GemmProblem p = o.problem();
  Gemm<T> g = arguments(o, epilogue);
  const bool groups = groups_can(launch, g, p);
  const GemmPlan plan = choose(p, groups);
  const bool by_groups = groups && plan.tier == Tier::Groups;
  const KParts k = cut_k(p.k, by_groups ? groups_k_step<T> : k_step<T>, plan.split);
  g.part_k = k.size;
  const auto start = [&](const Gemm<T>& of) {
    if constexpr (!std::is_same_v<T, double>)
      if (by_groups) return start_groups(launch, of, p, plan, k.count);
    start_batch(launch, of, p, plan, k.count);
  };
  const bool has_epilogue = plan.tier != Tier::Wmma || sizeof(T) != 2;
  start_parts(launch, g, p, k.count, start, has_epilogue);
}

template <class Choose>
void multiply(Launch& launch, In a, In b, const Epilogue& epilogue, Out c, bool tensor,
              Choose choose) {
  if (c.size() == 0) {
    if (epilogue.row_sums) reduce(launch, Reduce::Sum, a, column(epilogue.row_sums));
    if (epilogue.column_sums) reduce(launch, Reduce::Sum, b, row(epilogue.column_sums));
    return;
  }
  visit_float(a.dtype, c.dtype, [&]<class T, class C>() {
    const Operands<T> o(launch, a, b, c, tensor);
    run<T>(launch, o, epilogue, choose);
    if (o.c.data != c.data) convert(launch, o.c, c);
  });
}

}  // namespace

void gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c, const GemmPlan& plan) {
  multiply(launch, a, b, epilogue, c, tiles[plan.tile].tensor,
           [&](const GemmProblem&, bool) { return plan; });
}

std::optional<Tier> tier_named(const char* name) {
  if (!name || !*name) return std::nullopt;
  for (const auto& [known, tier] : {std::pair{"mma", Tier::Mma}, std::pair{"wmma", Tier::Wmma},
                                    std::pair{"groups", Tier::Groups}})
    if (std::strcmp(name, known) == 0) return tier;
  raise(std::string("MIXTAPE_GEMM must be mma, wmma or groups, got \"") + name + "\"");
}

void gemm(Launch& launch, In a, In b, const Epilogue& epilogue, Out c) {
  static const std::optional<Tier> asked = tier_named(std::getenv("MIXTAPE_GEMM"));
  const bool tensor = is_half(a.dtype) || (a.dtype == f32 && launch.tf32);
  multiply(launch, a, b, epilogue, c, tensor, [&](const GemmProblem& p, bool groups) {
    // In f64 there is one tile.
    GemmPlan best =
        plan(p, tensor, gpu::multiprocessors(launch.device.index), tensor && groups, asked);
    if (a.dtype == f64) best.tile = tile_count - 1;
    return best;
  });
}

}  // namespace mixtape::kernels::cuda
