// The parts that rungs from 5 on share: copies of slices to shared memory, and the multiplication
// of slices by wmma.
#pragma once

#include "kernels/cuda/gpu_wmma.cuh"

namespace mixtape::lab {

using gpu::Shared;

// Calls copy(to, from) for each 16 bytes of `lines` lines of `length` elements, which are `ld`
// apart in global memory and to_ld in shared memory.
template <int lines, int length, int to_ld, int threads, class Copy>
__device__ __forceinline__ void for_each_chunk(Shared<BFloat16> to, const BFloat16* from,
                                               int64_t ld, Copy copy) {
  constexpr int chunks = length / 8;
#pragma unroll
  for (int c = 0; c < lines * chunks / threads; ++c) {
    const int i = c * threads + int(gpu::thread().x), line = i / chunks, at = i % chunks * 8;
    copy(to + (line * to_ld + at), from + line * ld + at);
  }
}
template <int lines, int length, int to_ld, int threads>
__device__ __forceinline__ void copy_slice_async(Shared<BFloat16> to, const BFloat16* from,
                                                 int64_t ld) {
  for_each_chunk<lines, length, to_ld, threads>(
      to, from, ld, [](Shared<BFloat16> t, const BFloat16* f) { gpu::copy_async(t, f); });
}

// The sums of a warp: rows x columns fragments of 16 x 16.
template <int rows, int columns>
using WmmaSums = gpu::MatrixSum<BFloat16>[rows][columns];

// sum += a slice of a, whose lines are lda apart, times one of b, for `depth` steps of k.
template <int depth, int lda, int ldb, int rows, int columns>
__device__ __forceinline__ void multiply_by_wmma(Shared<BFloat16> as, Shared<BFloat16> bs,
                                                 WmmaSums<rows, columns>& sum) {
#pragma unroll
  for (int k = 0; k < depth; k += 16) {
    gpu::Matrix<gpu::Use::A, BFloat16, true> a[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) gpu::load_matrix(a[i], as + (i * 16 * lda + k), lda);
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      gpu::Matrix<gpu::Use::B, BFloat16, true> b;
      gpu::load_matrix(b, bs + (k * ldb + j * 16), ldb);
#pragma unroll
      for (int i = 0; i < rows; ++i) gpu::multiply(sum[i][j], a[i], b);
    }
  }
}
// Stores sums to the warp's tile of c, which begins at `to`.
template <int rows, int columns>
__device__ __forceinline__ void store_wmma(float* to, int n, const WmmaSums<rows, columns>& sum) {
#pragma unroll
  for (int i = 0; i < rows; ++i)
#pragma unroll
    for (int j = 0; j < columns; ++j)
      gpu::store_global_matrix(to + int64_t(i) * 16 * n + j * 16, n, sum[i][j]);
}

}  // namespace mixtape::lab
