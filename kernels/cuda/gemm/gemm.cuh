#pragma once
// The common parts of matrix product kernels: arguments, the epilogue (kernels/common/epilogue.h)
// and the sum over parts of k. If k is large and tiles are few, k is split: parts go to a workspace
// and a second kernel adds them in order, so results do not depend on scheduling.

#include "kernels/common/activation.h"
#include "kernels/cuda/elementwise/elementwise_plan.h"
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

using gpu::Shared;

template <class T>
constexpr int k_step = 64 / int(sizeof(T));  // the depth along k of a step of both kernels

// The offsets of a batch's problems in a, b and c, whose strides it has in this order.
struct BatchOffsets : Walk<3> {
  struct Offsets {
    int64_t a, b, c;
  };
  __device__ __forceinline__ Offsets find(int64_t index) const {
    int64_t at[3];
    Walk<3>::find(index, at);
    return {at[0], at[1], at[2]};
  }
};

// Neighbours in a row of c.
template <class A, int w>
struct Vec {
  int64_t row, column;
  A v[w];
};
template <class A>
using Vec4 = Vec<A, 4>;
template <class B, int w>
constexpr bool packs = w * sizeof(B) <= 16;  // they fit in one access
template <class A, int w>
__device__ __forceinline__ bool is_inside(const Vec<A, w>& q, int64_t m, int64_t columns) {
  return q.row < m && q.column + w <= columns;
}

// A matrix or a vector that is added to sums before they are rounded; any float dtype.
struct Bias {
  const void* data = nullptr;
  DType dtype = f32;
  int64_t down = 0, right = 0;  // strides between rows and between columns
  bool fast = false;            // four neighbours are aligned for one access

  // Loads for all of q before it adds, so that loads are in flight together. The last of q has the
  // largest row and column. The matrix begins at `offset`.
  template <class A, int w, int n>
  __device__ __forceinline__ void add_to(Vec<A, w> (&q)[n], int64_t m, int64_t columns,
                                         int64_t offset = 0) const {
    const bool packed = fast && is_inside(q[n - 1], m, columns);
    const auto add = [&](auto* from) {
      using B = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
      gpu::Pack<B, w> loaded[n];
      const auto at = [&](int i) { return from + offset + q[i].row * down + q[i].column * right; };
      if (packs<B, w> && packed) {
#pragma unroll
        for (int i = 0; i < n; ++i) loaded[i] = gpu::load_as<gpu::Pack<B, w>>(at(i));
      } else {
#pragma unroll
        for (int i = 0; i < n; ++i)
#pragma unroll
          for (int e = 0; e < w; ++e)
            loaded[i].v[e] = q[i].row < m && q[i].column + e < columns ? at(i)[e * right] : B(0.0f);
      }
#pragma unroll
      for (int i = 0; i < n; ++i)
#pragma unroll
        for (int e = 0; e < w; ++e) q[i].v[e] += A(gpu::widen(loaded[i].v[e]));
    };
    switch (dtype) {
      case f64:
        return add(static_cast<const double*>(data));
      case f16:
        return add(static_cast<const Half*>(data));
      case bf16:
        return add(static_cast<const BFloat16*>(data));
      default:
        return add(static_cast<const float*>(data));
    }
  }
};

// One product or a batch of them. c is row-major, of T, or of the type of sums if `wide`, as parts
// are.
template <class T>
struct Gemm {
  const T* a;
  const T* b;
  gpu::math_t<T> alpha = 1;
  Bias bias, residual;
  Activation activation;
  void *before, *c;
  gpu::math_t<T>*row_sums, *column_sums;  // [m] or [n], of parts [split, m] or [split, n]
  bool wide;
  int64_t m, n, k;
  int64_t a_down, a_right, b_down, b_right;  // strides between rows and between columns
  int64_t ldc;
  int part_k;                   // of k for each block; a multiple of k_step
  int64_t split_stride;         // between the parts in c, if k is split
  bool fast_a, fast_b, fast_c;  // 16-byte accesses are aligned
  BatchOffsets batch;
  int64_t first;  // the block's z counts the batch from here
};

// Stores results in `to`, which has the form of c. The last of q has the largest row and column.
template <class T, class A, int w, int n>
__device__ __forceinline__ void store(const Gemm<T>& g, void* to, int64_t offset,
                                      const Vec<A, w> (&q)[n]) {
  const bool packed = g.fast_c && is_inside(q[n - 1], g.m, g.n);
  const auto store_as = [&](auto* c) {
    using O = std::remove_pointer_t<decltype(c)>;
    const auto at = [&](int i) { return c + offset + q[i].row * g.ldc + q[i].column; };
    if (packs<O, w> && packed) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        gpu::Pack<O, w> pack;
#pragma unroll
        for (int e = 0; e < w; ++e) pack.v[e] = gpu::round_to<O>(q[i].v[e]);
        gpu::store_global(at(i), pack);
      }
    } else {
#pragma unroll
      for (int i = 0; i < n; ++i)
#pragma unroll
        for (int e = 0; e < w; ++e)
          if (q[i].row < g.m && q[i].column + e < g.n) at(i)[e] = gpu::round_to<O>(q[i].v[e]);
    }
  };
  if (g.wide)
    store_as(static_cast<A*>(to));
  else
    store_as(static_cast<T*>(to));
}
// Applies the epilogue to sums of the matrix at `offset`, or only its factor unless `whole`.
// put(to) stores them in g.before and in g.c, in turn.
template <bool whole = true, class T, class A, int w, int n, class Put>
__device__ __forceinline__ void finish(const Gemm<T>& g, int64_t offset, Vec<A, w> (&q)[n],
                                       Put put) {
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int e = 0; e < w; ++e) q[i].v[e] *= g.alpha;
  if constexpr (whole) {
    if (g.bias.data) g.bias.add_to(q, g.m, g.n);
    if (g.residual.data) g.residual.add_to(q, g.m, g.n, offset);
    if (g.before) put(g.before);
    visit_activation(g.activation, [&]<class F>() {
#pragma unroll
      for (int i = 0; i < n; ++i)
#pragma unroll
        for (int e = 0; e < w; ++e) q[i].v[e] = F::f(q[i].v[e]);
    });
  }
  put(g.c);
}
// Applies the epilogue to sums and stores them.
template <bool whole = true, class T, class A, int w, int n>
__device__ __forceinline__ void finish(const Gemm<T>& g, int64_t offset, Vec<A, w> (&q)[n]) {
  finish<whole>(g, offset, q, [&](void* to) { store(g, to, offset, q); });
}

// The first row and column of this block's tile. Blocks go through bands of eight rows of tiles:
// those in flight then share few rows of a and few columns of b in the cache.
struct Origin {
  int64_t m, n;
};
template <class T>
__device__ __forceinline__ Origin tile_origin(const Gemm<T>& g, const Tile& t) {
  constexpr unsigned band = 8;
  const auto down = unsigned(ceil_div(g.m, t.m)), across = unsigned(ceil_div(g.n, t.n));
  const unsigned of_band = band * across, id = gpu::block().x;
  const unsigned first = id / of_band * band, inside = id % of_band;
  const unsigned height = down - first < band ? down - first : band;
  return {int64_t(first + inside % height) * t.m, int64_t(inside / height) * t.n};
}

// This block's part of k.
struct KPart {
  int64_t begin;
  int size;
};
template <class T>
__device__ __forceinline__ KPart k_part(const Gemm<T>& g) {
  const int64_t begin = int64_t(gpu::block().y) * g.part_k, left = g.k - begin;
  return {begin, left < g.part_k ? int(left) : g.part_k};
}

// Adds parts [split, batch, m, n] in order, four elements of a row per thread, and the parts
// [split, m] of row sums, or [split, n] of column sums. per_row and m divide by the fours of a row,
// and by rows.
template <class T, class A>
__global__ void gemm_add_parts(const A* parts, const A* sum_parts, int split, Gemm<T> g,
                               int64_t batches, Divisor per_row, Divisor m) {
  const int64_t across = ceil_div(g.n, 4), quads = batches * g.m * across;
  const int64_t all = gpu::all_threads();
  for (int64_t i = gpu::global_thread(); i < quads; i += all) {
    const int64_t row = per_row.quotient(i), index = m.quotient(row);
    Vec4<A> q[1] = {{row - index * g.m, (i - row * across) * 4, {}}};
    const A* const p = parts + (index * g.m + q[0].row) * g.n + q[0].column;
#pragma unroll 4
    for (int s = 0; s < split; ++s) {
      const A* const from = p + s * batches * g.m * g.n;
      A v[4];
      if (g.n % 4 == 0)
        load_vec(from, true, v);
      else
        for (int e = 0; e < 4; ++e) v[e] = q[0].column + e < g.n ? from[e] : A(0);
#pragma unroll
      for (int e = 0; e < 4; ++e) q[0].v[e] += v[e];
    }
    finish(g, g.batch.find(index).c, q);
  }
  A* const sums = g.row_sums ? g.row_sums : g.column_sums;
  const int64_t count = g.row_sums ? g.m : sums ? g.n : 0;
  for (int64_t i = gpu::global_thread(); i < count; i += all) {
    A total = 0;
    for (int s = 0; s < split; ++s) total += sum_parts[s * count + i];
    sums[i] = total;
  }
}

// True if all matrices of the operand's batch begin at multiples of 16 bytes, and so do their
// lines, `stride` apart. (The stride of a batch of one is arbitrary.)
template <class T>
bool aligned(const void* data, int64_t stride, const Layout& batch) {
  constexpr int64_t chunk = 16 / int64_t(sizeof(T));
  bool all = reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % chunk == 0;
  for (int d = 0; d < batch.rank(); ++d)
    all = all && (batch.shape[d] == 1 || batch.strides[d] % chunk == 0);
  return all;
}

// True if four neighbouring elements can be read at once.
inline bool has_fours(const View& v) {
  return reinterpret_cast<uintptr_t>(v.data) % (4 * size_of(v.dtype)) == 0;
}

// The bias of an epilogue, which may be absent.
inline Bias bias_of(const View& v) {
  if (!v) return {};
  Bias bias{v.data, v.dtype, v.layout.rank() == 2 ? v.strides()[0] : 0, v.strides()[-1]};
  bias.fast = bias.right == 1 && bias.down % 4 == 0 && has_fours(v);
  return bias;
}
// The residual of an epilogue, beside a g.c of the same strides.
template <class T>
Bias residual_of(const View& v, const Gemm<T>& g) {
  if (!v) return {};
  return {v.data, v.dtype, g.ldc, 1, sizeof(T) < 8 && g.fast_c && has_fours(v)};
}
// The same product without its epilogue, into parts of k: dense [split, batch, m, n] of scratch
// memory.
template <class T>
Gemm<T> into_parts(Launch& launch, Gemm<T> g, const GemmProblem& p, int split) {
  using A = gpu::math_t<T>;
  g.c = launch.scratch<A>(split * p.batch * p.m * p.n);
  g.wide = true;
  g.alpha = 1;
  g.bias = g.residual = {};
  g.activation = Activation::None;
  g.before = nullptr;
  if (g.row_sums) g.row_sums = launch.scratch<A>(split * p.m);
  if (g.column_sums) g.column_sums = launch.scratch<A>(split * p.n);
  g.ldc = p.n;
  g.split_stride = p.batch * p.m * p.n;
  g.fast_c = p.n % 4 == 0;
  for (int64_t d = g.batch.rank - 1, stride = p.m * p.n; d >= 0; --d) {
    g.batch.stride[2][d] = stride;
    stride *= g.batch.size[d];
  }
  return g;
}
// Launches a product by start(g) or, if k is cut into `count` parts or its kernel has no epilogue,
// the parts, and adds them.
template <class T, class Start>
void start_parts(Launch& launch, const Gemm<T>& g, const GemmProblem& p, int count, Start start,
                 bool has_epilogue = true) {
  using A = gpu::math_t<T>;
  const bool ends = g.bias.data || g.residual.data || g.before || g.activation != Activation::None;
  if (count == 1 && (has_epilogue || !ends)) return start(g);
  const Gemm<T> parts = into_parts(launch, g, p, count);
  start(parts);
  gpu::launch_over(launch, "gemm_add_parts", p.batch * p.m * ceil_div(p.n, 4), gemm_add_parts<T, A>,
                   static_cast<const A*>(parts.c),
                   parts.row_sums ? parts.row_sums : parts.column_sums, count, g, p.batch,
                   Divisor(ceil_div(p.n, 4)), Divisor(p.m));
}

}  // namespace mixtape::kernels::cuda
