#pragma once
// Matrix products on tensor cores: c = a @ b + bias, f16, bf16 or TF32 operands, f32 sums.
//
// A block computes one tile of c. It copies slices of a and b through shared memory in a ring of
// `stages` (cp.async), and each warp multiplies 64 x 64 or 32 x 32 of the tile in 16 x 16
// fragments. Rows in shared memory are padded by 16 bytes, which keeps fragment loads free of bank
// conflicts. Edges are filled with zeros. Operands are row- or column-major; rows that do not begin
// at multiples of 16 bytes are copied element by element. Large k and few tiles: k is split, parts
// go to an f32 workspace and are added in order by a second kernel, so results do not depend on
// scheduling.

#include "kernels/cuda/gemm_plan.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

using gpu::Shared;

// Where one problem of a batch begins: batch index i counts through `size`, last dimension fastest.
struct BatchOffsets {
  int rank = 0;
  int64_t size[6] = {}, a[6] = {}, b[6] = {}, c[6] = {};
};

template <class T, class Out>
struct Gemm {
  const T* a;
  const T* b;
  const float* bias;  // [n], or null
  Out* c;             // by rows
  int64_t m, n, k;
  int64_t lda, ldb, ldc;  // between rows, or columns of a column-major operand
  int split;
  int64_t split_stride;  // between the parts in c, if split > 1
  bool fast_a, fast_b;   // 16-byte copies are aligned
  BatchOffsets batch;
};

namespace detail {

constexpr int stages = 3;
// What one step advances k by, and how many of it one fragment takes.
template <class T>
constexpr int k_step = 64 / int(sizeof(T));
template <class T>
constexpr int k_fragment = sizeof(T) == 4 ? 8 : 16;
template <class T>
constexpr int padding = 16 / int(sizeof(T));

// An operand's slice in shared memory: `lines` dense runs of `length`.
template <class T>
constexpr int slice_elements(int lines, int length) {
  return lines * (length + padding<T>);
}

// Copies lines [line, line + lines) x elements [at, at + length) of a matrix whose lines are ld
// apart.
template <class T, int lines, int length, int threads>
__device__ __forceinline__ void copy_slice(Shared<T> to, const T* from, int64_t ld, int64_t line,
                                           int64_t at, int64_t line_end, int64_t end, bool fast) {
  constexpr int chunk = 16 / int(sizeof(T)), chunks = length / chunk;
  for (int i = int(gpu::thread().x); i < lines * chunks; i += threads) {
    const int l = i / chunks, e = i % chunks * chunk;
    const int64_t left = line + l < line_end ? end - at - e : 0;
    const int valid = left <= 0 ? 0 : left >= chunk ? chunk : int(left);
    const Shared<T> target = to + (l * (length + padding<T>)+e);
    const T* const source = valid > 0 ? from + (line + l) * ld + at + e : from;
    if (fast) {
      gpu::copy_async<T>(target, source, valid * int(sizeof(T)));
    } else {
      for (int j = 0; j < chunk; ++j) target[j] = j < valid ? source[j] : T(0.0f);
    }
  }
}

template <class T>
struct FragmentType {
  using type = T;
};
#ifdef __CUDACC__
template <>
struct FragmentType<Half> {
  using type = __half;
};
template <>
struct FragmentType<BFloat16> {
  using type = __nv_bfloat16;
};
#endif
template <>
struct FragmentType<float> {
  using type = nvcuda::wmma::precision::tf32;
};

template <class F>
__device__ __forceinline__ void round_to_tf32(F& f) {
  for (int i = 0; i < F::num_elements; ++i) f.x[i] = nvcuda::wmma::__float_to_tf32(f.x[i]);
}

}  // namespace detail

// Dynamic shared memory of a block: the ring, or the staging tiles of the epilogue, which come
// after it.
template <class T>
constexpr size_t gemm_shared_bytes(const Tile& t, bool a_by_rows, bool b_by_rows) {
  using namespace detail;
  const int a = a_by_rows ? slice_elements<T>(t.m, k_step<T>) : slice_elements<T>(k_step<T>, t.m);
  const int b = b_by_rows ? slice_elements<T>(k_step<T>, t.n) : slice_elements<T>(t.n, k_step<T>);
  const size_t ring = size_t(stages) * size_t(a + b) * sizeof(T);
  const size_t staging = size_t(t.threads() / 32) * 16 * 20 * sizeof(float);
  return ring > staging ? ring : staging;
}

// Grid: x tiles of c (grouped so that neighbours share operands in the cache), y parts of k, z
// batch.
template <class T, class Out, bool a_by_rows, bool b_by_rows, int tile>
__global__ void __launch_bounds__(tiles[tile].threads()) gemm_tensor(Gemm<T, Out> g) {
  using namespace nvcuda::wmma;
  using namespace detail;
  using E = typename FragmentType<T>::type;
  constexpr Tile t = tiles[tile];
  constexpr int threads = t.threads(), bk = k_step<T>, kf = k_fragment<T>;
  constexpr int a_lines = a_by_rows ? t.m : bk, a_length = a_by_rows ? bk : t.m;
  constexpr int b_lines = b_by_rows ? bk : t.n, b_length = b_by_rows ? t.n : bk;
  constexpr int a_size = slice_elements<T>(a_lines, a_length),
                b_size = slice_elements<T>(b_lines, b_length);
  constexpr int lda = a_length + padding<T>, ldb = b_length + padding<T>;
  const Shared<T> ring = gpu::shared_memory<T>();

  // Tiles in bands of eight rows: the tiles in flight then use few rows of a and few columns of b.
  const int64_t down = ceil_div(g.m, t.m), across = ceil_div(g.n, t.n),
                id = int64_t(gpu::block().x);
  constexpr int64_t band = 8;
  const int64_t first = id / (band * across) * band;
  const int64_t height = down - first < band ? down - first : band;
  const int64_t m0 = (first + id % (band * across) % height) * t.m,
                n0 = id % (band * across) / height * t.n;

  int64_t in_a = 0, in_b = 0, in_c = 0, index = int64_t(gpu::block().z);
  for (int d = g.batch.rank - 1; d >= 0; --d) {
    const int64_t i = index % g.batch.size[d];
    index /= g.batch.size[d];
    in_a += i * g.batch.a[d];
    in_b += i * g.batch.b[d];
    in_c += i * g.batch.c[d];
  }
  const T *const a = g.a + in_a, *const b = g.b + in_b;

  // This block's part of k, in whole steps.
  const int64_t steps_in_all = ceil_div(g.k, bk), part = int64_t(gpu::block().y);
  const int64_t begin = steps_in_all * part / g.split, end = steps_in_all * (part + 1) / g.split;
  const int64_t steps = end - begin;

  const auto fetch = [&](int64_t step) {
    if (step < steps) {
      const int64_t k0 = (begin + step) * bk;
      const Shared<T> to_a = ring + step % stages * (a_size + b_size), to_b = to_a + a_size;
      if constexpr (a_by_rows)
        copy_slice<T, a_lines, a_length, threads>(to_a, a, g.lda, m0, k0, g.m, g.k, g.fast_a);
      else
        copy_slice<T, a_lines, a_length, threads>(to_a, a, g.lda, k0, m0, g.k, g.m, g.fast_a);
      if constexpr (b_by_rows)
        copy_slice<T, b_lines, b_length, threads>(to_b, b, g.ldb, k0, n0, g.k, g.n, g.fast_b);
      else
        copy_slice<T, b_lines, b_length, threads>(to_b, b, g.ldb, n0, k0, g.n, g.k, g.fast_b);
    }
    gpu::copy_commit();
  };

  constexpr int warps_across = t.n / t.warp_n, rows = t.warp_m / 16, columns = t.warp_n / 16;
  const int warp = int(gpu::thread().x) / 32;
  const int wm = warp / warps_across * t.warp_m, wn = warp % warps_across * t.warp_n;
  fragment<accumulator, 16, 16, kf, float> sum[rows][columns];
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int j = 0; j < columns; ++j) fill_fragment(sum[i][j], 0.0f);

  for (int s = 0; s < stages - 1; ++s) fetch(s);
  for (int64_t step = 0; step < steps; ++step) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();  // all have finished with the slot that is fetched next
    fetch(step + stages - 1);
    const Shared<T> as = ring + step % stages * (a_size + b_size), bs = as + a_size;
#pragma unroll
    for (int k = 0; k < bk; k += kf) {
      fragment<matrix_a, 16, 16, kf, E, std::conditional_t<a_by_rows, row_major, col_major>>
          fa[rows];
      fragment<matrix_b, 16, 16, kf, E, std::conditional_t<b_by_rows, row_major, col_major>>
          fb[columns];
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        load_matrix_sync(fa[i],
                         gpu::fragment_pointer(
                             as + (a_by_rows ? (wm + i * 16) * lda + k : k * lda + wm + i * 16)),
                         lda);
        if constexpr (std::is_same_v<T, float>) round_to_tf32(fa[i]);
      }
#pragma unroll
      for (int j = 0; j < columns; ++j) {
        load_matrix_sync(fb[j],
                         gpu::fragment_pointer(
                             bs + (b_by_rows ? k * ldb + wn + j * 16 : (wn + j * 16) * ldb + k)),
                         ldb);
        if constexpr (std::is_same_v<T, float>) round_to_tf32(fb[j]);
      }
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < columns; ++j) mma_sync(sum[i][j], fa[i], fb[j], sum[i][j]);
    }
  }
  gpu::copy_wait<0>();
  gpu::sync_block();

  // Fragments have no documented order, so each goes through a small tile of shared memory; a lane
  // writes 8 of a row.
  constexpr int ld = 20;
  const Shared<float> stage = gpu::shared_memory<float>(size_t(warp) * 16 * ld * sizeof(float));
  Out* const c = g.c + in_c + part * g.split_stride;
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      store_matrix_sync(stage, sum[i][j], ld, mem_row_major);
      const int r = gpu::lane() / 2, at = gpu::lane() % 2 * 8;
      const int64_t row = m0 + wm + i * 16 + r, column = n0 + wn + j * 16 + at;
      for (int e = 0; e < 8; ++e) {
        float v = stage[r * ld + at + e];
        if (g.bias && g.split == 1 && column + e < g.n) v += g.bias[column + e];
        if (row < g.m && column + e < g.n) c[row * g.ldc + column + e] = Out(v);
      }
      gpu::sync_warp();
    }
}

// c = sum over parts, in order, + bias. One thread per element.
template <class Out>
__global__ void gemm_add_parts(const float* parts, int split, int64_t stride, const float* bias,
                               int64_t n, int64_t count, Out* c) {
  const int64_t i = int64_t(gpu::block().x) * gpu::block_size().x + gpu::thread().x;
  if (i >= count) return;
  float sum = parts[i];
  for (int s = 1; s < split; ++s) sum += parts[s * stride + i];
  c[i] = Out(bias ? sum + bias[i % n] : sum);
}

}  // namespace mixtape::kernels::cuda
