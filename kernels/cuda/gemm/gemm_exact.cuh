#pragma once
// Matrix products in exact arithmetic, without tensor cores: f32 or f64 operands of any strides.
// A block of 256 threads computes a tile of c, each thread m/16 x n/16 of it in groups of four.
// Slices of a and b go through registers to a double buffer in shared memory, with lines along k,
// so that a thread reads four neighbours at once.

#include "kernels/cuda/gemm/gemm.cuh"

namespace mixtape::kernels::cuda {

constexpr int exact_padding = 4;  // of lines in shared memory, in elements
template <class T>
constexpr size_t exact_shared_bytes(const Tile& t) {
  return 2 * size_t(k_step<T>) * size_t(t.m + t.n + 2 * exact_padding) * sizeof(T);
}

// Slices [step, size] of one operand. A thread holds its share of the next slice in registers:
// elements that are equally far from each other, in memory and in the slice.
template <class T, int size>
class ExactSlices {
  static constexpr int bk = k_step<T>, stride = size + exact_padding, loads = size * bk / 256;
  static constexpr int lines_apart = 256 / bk, k_apart = 256 / size;

 public:
  // Slices of a matrix, from line `first` of `end` and k0 on. along_k: neighbouring threads load
  // along k, else along lines: the dense dimension.
  __device__ __forceinline__ ExactSlices(const T* matrix, int64_t line_stride, int64_t k_stride,
                                         int64_t first, int64_t end, int64_t k0, bool along_k)
      : along_k_(along_k) {
    const int id = int(gpu::thread().x), line = along_k ? id / bk : id % size;
    k_ = along_k ? id % bk : id / size;
    from_ = matrix + (first + line) * line_stride + (k0 + k_) * k_stride;
    next_ = along_k ? lines_apart * line_stride : k_apart * k_stride;
    next_step_ = bk * k_stride;
    to_ = k_ * stride + line;
    next_to_ = along_k ? lines_apart : k_apart * stride;
    const int64_t left = end - first - line;
    lines_ = left < size ? int(left) : size;
  }
  // Loads the next slice, of which the first k_left elements of k exist; zeros beyond edges.
  __device__ __forceinline__ void load(int k_left) {
    const int of_k = k_left - k_;
    const int count = along_k_     ? of_k > 0 ? ceil_div(lines_, lines_apart) : 0
                      : lines_ > 0 ? ceil_div(of_k, k_apart)
                                   : 0;
    const T* p = from_;
#pragma unroll
    for (int i = 0; i < loads; ++i, p += next_) held_[i] = i < count ? *p : T(0);
    from_ += next_step_;
  }
  __device__ __forceinline__ void store(Shared<T> slice) const {
#pragma unroll
    for (int i = 0; i < loads; ++i) slice[to_ + i * next_to_] = held_[i];
  }

 private:
  T held_[loads];
  const T* from_;             // the first element of the next slice
  int64_t next_, next_step_;  // from an element, and a slice, to the next one
  int to_, next_to_;          // the place of the first element in a slice, and how far the next is
  int k_, lines_;             // k of the first element; lines from there to the edge
  bool along_k_;
};

// The steps of one kernel.
template <class T, int tile>
struct ExactTile {
  static constexpr Tile t = tiles[tile];
  static constexpr int bk = k_step<T>, la = t.m + exact_padding, lb = t.n + exact_padding;
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
  constexpr int bk = k_step<T>, la = Exact::la;
  const Shared<T> shared = gpu::shared_memory<T>();
  const int id = int(gpu::thread().x), down = id / 16 * 4, right = id % 16 * 4;
  const Origin origin = tile_origin(g, t);
  const int64_t m0 = origin.m, n0 = origin.n;
  const auto at = g.batch.find(g.first + int64_t(gpu::block().z));
  const int64_t part = int64_t(gpu::block().y);
  const KPart k = k_part(g);

  ExactSlices<T, t.m> a(g.a + at.a, g.a_down, g.a_right, m0, g.m, k.begin, g.a_right == 1);
  ExactSlices<T, t.n> b(g.b + at.b, g.b_right, g.b_down, n0, g.n, k.begin,
                        g.b_down == 1 && g.b_right != 1);
  typename Exact::Sums sum = {};
  // This thread's sum over k: of row `id` of a's slices, or of column `id` of b's.
  T total = 0;
  static_assert(t.m == t.n);
  const bool sums = id < t.m && (g.row_sums ? n0 == 0 : g.column_sums && m0 == 0);
  const auto load = [&](int k_left) {
    a.load(k_left);
    b.load(k_left);
  };
  const auto store = [&](int buffer) {
    a.store(shared + buffer);
    b.store(shared + (buffer + bk * la));
  };
  load(k.size);
  store(0);
  int buffer = 0;
  for (int left = k.size; left > 0; left -= bk) {
    gpu::sync_block();
    if (left > bk) load(left - bk);
    const Shared<T> as = shared + buffer;
    if (sums) {
      const Shared<T> line = as + (g.row_sums ? id : bk * la + id);
      for (int depth = 0; depth < bk; ++depth) total += line[depth * la];
    }
    Exact::multiply_slices(as + down, as + (bk * la + right), sum);
    buffer = Exact::buffer - buffer;
    if (left > bk) store(buffer);
  }
  if (sums && g.row_sums && m0 + id < g.m) g.row_sums[part * g.m + m0 + id] = total;
  if (sums && g.column_sums && n0 + id < g.n) g.column_sums[part * g.n + n0 + id] = total;
  Exact::store_tile(g, at.c + part * g.split_stride, m0 + down, n0 + right, sum);
}

}  // namespace mixtape::kernels::cuda
