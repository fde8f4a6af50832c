// Starts gemm_groups.cuh: describes matrices to the copy engine. (A file of its own: other
// architectures than 9.0 get empty kernels.)

#include "kernels/cuda/gemm/gemm_groups.h"

#include "core/runtime.h"
#include "kernels/cuda/gemm/gemm_groups.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

// The copy engine counts in 32 bits, with a sign.
constexpr int64_t most = int64_t{1} << 30;

// True if the copy engine can read `lines` of `length` elements, `stride` apart.
bool can_box(int64_t length, int64_t lines, int64_t stride) {
  return length < most && lines < most && (lines == 1 || stride >= length);
}

// A matrix of the batch of g, whose lines are dense. The copy engine gets sizes of 1 where strides
// are 0.
template <class T>
gpu::BoxedTensor boxed(const Gemm<T>& g, const void* data, int64_t length, int64_t lines,
                       int64_t stride, const int64_t (&batch)[max_rank], int rows) {
  constexpr int64_t chunk = 16 / int64_t(sizeof(T));
  gpu::BoxedTensor boxed;
  boxed.data = data;
  boxed.element = sizeof(T) == 4 ? gpu::BoxElement::Tf32 : gpu::BoxElement::Bits16;
  boxed.rows = rows;
  boxed.size[0] = length;
  boxed.size[1] = lines;
  boxed.stride[1] = lines == 1 ? round_up(length, chunk) : stride;
  for (int d = 0; d < 2; ++d) {
    const int dim = g.batch.rank - 1 - d;
    const bool shared = dim < 0 || g.batch.size[dim] == 1 || batch[dim] == 0;
    boxed.size[2 + d] = shared ? 1 : g.batch.size[dim];
    boxed.stride[2 + d] = shared ? boxed.stride[1] : batch[dim];
  }
  return boxed;
}

template <class T, bool a_by_rows, bool b_by_rows>
void start_layout(const gpu::Grid& grid, void* stream, int tile, const GroupsGemm<T>& p) {
  gpu::launch(grid, stream,
              grid.cluster > 1 ? gemm_groups<T, a_by_rows, b_by_rows, 256, 2>
              : tile == 0      ? gemm_groups<T, a_by_rows, b_by_rows, 256, 1>
                               : gemm_groups<T, a_by_rows, b_by_rows, 128, 1>,
              p);
}

}  // namespace

template <class T>
bool groups_can(const Launch& launch, const Gemm<T>& g, const GemmProblem& p) {
  if (!gpu::has_groups(launch.device.index)) return false;
  const bool a_rows = g.a_right == 1, b_rows = g.b_right == 1;
  if (sizeof(T) == 4 && (!a_rows || b_rows || g.row_sums || g.column_sums)) return false;
  const bool positive = [&] {
    for (int d = 0; d < g.batch.rank; ++d)
      if (g.batch.stride[0][d] < 0 || g.batch.stride[1][d] < 0) return false;
    return true;
  }();
  return positive && p.k > 0 && g.fast_a && g.fast_b && g.batch.rank <= 2 && p.batch < most &&
         (a_rows ? can_box(p.k, p.m, g.a_down) : can_box(p.m, p.k, g.a_right)) &&
         (b_rows ? can_box(p.n, p.k, g.b_down) : can_box(p.k, p.n, g.b_right)) &&
         ceil_div(p.m, 128) * ceil_div(p.n, 128) * p.batch < most / 1024;
}

template <class T>
void start_groups(Launch& launch, const Gemm<T>& g, const GemmProblem& p, const GemmPlan& plan,
                  int parts) {
  const bool a_rows = g.a_right == 1, b_rows = g.b_right == 1;
  const Tile& t = tiles[plan.tile];
  GroupsGemm<T> all{};
  all.g = g;
  const gpu::BoxedTensor a = a_rows ? boxed(g, g.a, p.k, p.m, g.a_down, g.batch.stride[0],
                                            detail::groups_m)
                                    : boxed(g, g.a, p.m, p.k, g.a_right, g.batch.stride[0],
                                            detail::box_rows),
                         b = b_rows ? boxed(g, g.b, p.n, p.k, g.b_down, g.batch.stride[1],
                                            detail::box_rows)
                                    : boxed(g, g.b, p.k, p.n, g.b_right, g.batch.stride[1],
                                            t.n / plan.cluster);
  all.a = gpu::make_tensor_map(a);
  all.b = gpu::make_tensor_map(b);
  all.a_batch = {0, 0, a.size[2] > 1, a.size[3] > 1};
  all.b_batch = {0, 0, b.size[2] > 1, b.size[3] > 1};
  all.staged = sizeof(T) == 2 && !g.wide && g.fast_c;
  if (all.staged) {
    const auto result = [&](void* to) {
      return gpu::make_tensor_map(
          boxed(g, to, p.n, p.m, g.ldc, g.batch.stride[2], detail::box_rows));
    };
    all.c = result(g.c);
    all.before = g.before ? result(g.before) : all.c;
  }
  all.down = int(ceil_div(p.m, int64_t(t.m) * plan.cluster));
  all.across = int(ceil_div(p.n, t.n));
  all.parts = parts;
  all.all = all.down * all.across * parts * int(p.batch);
  all.inner = g.batch.rank > 0 ? int(g.batch.size[g.batch.rank - 1]) : 1;
  const int places = gpu::multiprocessors(launch.device.index) / plan.cluster;
  const unsigned cluster = unsigned(plan.cluster);
  const gpu::Grid grid{"gemm_groups",
                       {unsigned(std::clamp(places, 1, all.all)) * cluster, 1, 1},
                       {unsigned(detail::groups_threads), 1, 1},
                       groups_shared_bytes,
                       cluster};
  if constexpr (sizeof(T) == 4)
    start_layout<T, true, false>(grid, launch.stream, plan.tile, all);
  else
    (a_rows   ? b_rows ? start_layout<T, true, true> : start_layout<T, true, false>
       : b_rows ? start_layout<T, false, true>
              : start_layout<T, false, false>)(grid, launch.stream, plan.tile, all);
}

template bool groups_can(const Launch&, const Gemm<Half>&, const GemmProblem&);
template bool groups_can(const Launch&, const Gemm<BFloat16>&, const GemmProblem&);
template bool groups_can(const Launch&, const Gemm<float>&, const GemmProblem&);
template void start_groups(Launch&, const Gemm<Half>&, const GemmProblem&, const GemmPlan&, int);
template void start_groups(Launch&, const Gemm<BFloat16>&, const GemmProblem&, const GemmPlan&,
                           int);
template void start_groups(Launch&, const Gemm<float>&, const GemmProblem&, const GemmPlan&, int);

}  // namespace mixtape::kernels::cuda
