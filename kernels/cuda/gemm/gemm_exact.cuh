#pragma once
// Matrix products in exact arithmetic, without tensor cores: f32 or f64 operands of any strides.
// A block of 256 threads computes a tile of c, each thread m/16 x n/16 of it in groups of four.
// Slices of a and b go through registers to a double buffer in shared memory, with lines along k,
// so that a thread reads four neighbours at once.

#include "kernels/cuda/gemm/gemm.cuh"

namespace mixtape::kernels::cuda {

template <class T>
constexpr int exact_step = 64 / int(sizeof(T));  // the depth along k of a step
constexpr int exact_padding = 4;                 // of lines in shared memory, in elements
template <class T>
constexpr size_t exact_shared_bytes(const Tile& t) {
  return 2 * size_t(exact_step<T>) * size_t(t.m + t.n + 2 * exact_padding) * sizeof(T);
}

// Slices [step, size] of one operand. A thread holds its share of the next slice in registers.
template <class T, int size>
struct ExactSlices {
  static constexpr int bk = exact_step<T>, stride = size + exact_padding, loads = size * bk / 256;
  const T* from;
  int64_t first, end, k_end;  // of lines, and of k
  int64_t line_stride, k_stride;
  bool along_k;  // neighbouring threads load along k, else along lines: the dense dimension
  T next[loads];

  // The position in a slice of element i of this thread.
  struct At {
    int line, k;
  };
  __device__ __forceinline__ At at(int i) const {
    const int e = i * 256 + int(gpu::thread().x);
    return {along_k ? e / bk : e % size, along_k ? e % bk : e / size};
  }
  __device__ __forceinline__ void load(int64_t step) {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const auto [l, k] = at(i);
      const int64_t line = first + l, depth = step * bk + k;
      next[i] = line < end && depth < k_end ? from[line * line_stride + depth * k_stride] : T(0);
    }
  }
  __device__ __forceinline__ void store(Shared<T> to) const {
#pragma unroll
    for (int i = 0; i < loads; ++i) {
      const auto [l, k] = at(i);
      to[k * stride + l] = next[i];
    }
  }
};

// The steps of one kernel.
template <class T, int tile>
struct ExactTile {
  static constexpr Tile t = tiles[tile];
  static constexpr int bk = exact_step<T>, la = t.m + exact_padding, lb = t.n + exact_padding;
  static constexpr int buffer = bk * (la + lb);              // both slices
  static constexpr int rows = t.m / 64, columns = t.n / 64;  // groups of four per thread
  using Sums = T[rows][4][columns][4];

  // sum += a slice of a times one of b, for this thread's elements; as and bs begin there.
  static __device__ __forceinline__ void multiply_slices(Shared<T> as, Shared<T> bs, Sums& sum) {
#pragma unroll
    for (int k = 0; k < bk; ++k) {
      T x[rows][4], y[columns][4];
#pragma unroll
      for (int i = 0; i < rows; ++i) load_vec(as + (k * la + i * 64), true, x[i]);
#pragma unroll
      for (int j = 0; j < columns; ++j) load_vec(bs + (k * lb + j * 64), true, y[j]);
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int p = 0; p < 4; ++p)
#pragma unroll
          for (int j = 0; j < columns; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) sum[i][p][j][q] += x[i][p] * y[j][q];
    }
  }

  // Stores the thread's elements of c, the first of which is (m0, n0).
  static __device__ __forceinline__ void store_tile(const Gemm<T>& g, int64_t offset, int64_t m0,
                                                    int64_t n0, const Sums& sum) {
#pragma unroll 1  // one copy of the code below for all rows
    for (int line = 0; line < rows * 4; ++line) {
      Vec4<T> q[columns];
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int p = 0; p < 4; ++p)
          if (i * 4 + p == line) {  // (registers cannot be indexed)
#pragma unroll
            for (int j = 0; j < columns; ++j) {
              q[j].row = m0 + i * 64 + p;
              q[j].column = n0 + j * 64;
#pragma unroll
              for (int e = 0; e < 4; ++e) q[j].v[e] = sum[i][p][j][e];
            }
          }
      finish(g, offset, q);
    }
  }
};

// Grid as gemm_tensor's.
template <class T, int tile>
__global__ void __launch_bounds__(256) gemm_exact(Gemm<T> g) {
  using Exact = ExactTile<T, tile>;
  constexpr Tile t = tiles[tile];
  constexpr int bk = exact_step<T>, la = Exact::la;
  const Shared<T> shared = gpu::shared_memory<T>();
  const int id = int(gpu::thread().x), down = id / 16 * 4, right = id % 16 * 4;
  const int64_t across = ceil_div(g.n, t.n);
  const int64_t m0 = gpu::block().x / across * t.m, n0 = gpu::block().x % across * t.n;
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const int64_t part = int64_t(gpu::block().y);
  const KSteps range = k_steps(g, bk);

  ExactSlices<T, t.m> a{g.a + at.a, m0, g.m, g.k, g.a_down, g.a_right, g.a_right == 1, {}};
  ExactSlices<T, t.n> b{
      g.b + at.b, n0, g.n, g.k, g.b_right, g.b_down, g.b_down == 1 && g.b_right != 1, {}};
  typename Exact::Sums sum = {};
  T row_sum = 0;
  const bool sums_rows = g.row_sums && n0 == 0 && id < t.m;
  const auto load = [&](int64_t step) {
    a.load(step);
    b.load(step);
  };
  const auto store = [&](int which) {
    const Shared<T> as = shared + which * Exact::buffer;
    a.store(as);
    b.store(as + bk * la);
  };
  if (range.begin < range.end) {
    load(range.begin);
    store(0);
  }
  for (int64_t step = range.begin; step < range.end; ++step) {
    gpu::sync_block();
    const int which = int((step - range.begin) & 1);
    if (step + 1 < range.end) load(step + 1);
    const Shared<T> as = shared + which * Exact::buffer;
    if (sums_rows)
      for (int k = 0; k < bk; ++k) row_sum += as[k * la + id];
    Exact::multiply_slices(as + down, as + (bk * la + right), sum);
    if (step + 1 < range.end) store(1 - which);
  }
  if (sums_rows && m0 + id < g.m) g.row_sums[part * g.m + m0 + id] = row_sum;
  Exact::store_tile(g, at.c + part * g.split_stride, m0 + down, n0 + right, sum);
}

}  // namespace mixtape::kernels::cuda
