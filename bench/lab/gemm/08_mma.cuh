// Rung 8: ldmatrix and mma.sync, the instructions beneath wmma. PTX says which lane has which
// element, so that a kernel can work on its sums in registers: here it stores them in pairs.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "bench/lab/gemm/tile.cuh"

namespace mixtape::lab {

// A block of four warps computes a tile of 128 x 128, each warp 64 x 64 of it.
struct MmaTile {
  static constexpr int tile = 128, depth = 32, threads = 128, padding = 8;
  static constexpr int lda = depth + padding, ldb = tile + padding;
  static constexpr int a_size = tile * lda, slot = a_size + depth * ldb;
};
using MmaSums = float[4][4][2][4];  // of fragments of 16 x 16, as gpu::multiply() has them

__device__ __forceinline__ void store_mma(float* to, int n, const MmaSums& sum) {
  using Two = gpu::Pack<float, 2>;
  float* const mine = to + gpu::lane() / 4 * int64_t(n) + gpu::lane() % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        gpu::store_as(mine + (i * 16 + e % 2 * 8) * int64_t(n) + j * 16 + e / 2 * 8,
                      Two{{sum[i][j][e / 2][e % 2 * 2], sum[i][j][e / 2][e % 2 * 2 + 1]}});
}

__global__ void __launch_bounds__(128)
    rung_mma(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  using T = MmaTile;
  constexpr int stages = 3;
  const Shared<BFloat16> ring = gpu::shared_memory<BFloat16>();
  const int64_t m0 = gpu::block().y * T::tile, n0 = gpu::block().x * T::tile;
  const int warp = int(gpu::thread().x) / 32, wm = warp / 2 * 64, wn = warp % 2 * 64;
  const int lane = gpu::lane(), steps = k / T::depth;
  const auto load = [&](int step) {
    if (step < steps) {
      const Shared<BFloat16> to = ring + step % stages * T::slot;
      const int64_t k0 = int64_t(step) * T::depth;
      copy_slice_async<T::tile, T::depth, T::lda, T::threads>(to, a + m0 * k + k0, k);
      copy_slice_async<T::depth, T::tile, T::ldb, T::threads>(to + T::a_size, b + k0 * n + n0, n);
    }
    gpu::copy_commit();
  };
  MmaSums sum = {};
  for (int s = 0; s < stages - 1; ++s) load(s);
  for (int step = 0; step < steps; ++step) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();
    load(step + stages - 1);
    const Shared<BFloat16> as = ring + step % stages * T::slot, bs = as + T::a_size;
#pragma unroll
    for (int k1 = 0; k1 < T::depth; k1 += 16) {
      gpu::Fragment of_a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_a[i] = gpu::load_matrices<false>(
            as + ((wm + i * 16 + lane % 16) * T::lda + k1 + lane / 16 * 8));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto of_b = gpu::load_matrices<true>(
            bs + ((k1 + lane % 8 + lane / 16 * 8) * T::ldb + wn + j * 16 + lane / 8 % 2 * 8));
#pragma unroll
        for (int i = 0; i < 4; ++i) gpu::multiply<BFloat16>(sum[i][j], of_a[i], of_b);
      }
    }
  }
  store_mma(c + (m0 + wm) * n + n0 + wn, n, sum);
}

inline void run_mma(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                    void* stream) {
  gpu::launch({"rung_mma",
               {unsigned(n / 128), unsigned(m / 128), 1},
               {128, 1, 1},
               3 * MmaTile::slot * sizeof(BFloat16)},
              stream, rung_mma, a, b, c, n, k);
}

}  // namespace mixtape::lab
