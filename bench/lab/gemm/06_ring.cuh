// Rung 6: a ring of three slots that cp.async fills. While one is multiplied, copies of the next
// two are under way, so that warps wait neither for memory nor, after storing a slice, for each
// other: one barrier for each step is enough.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "bench/lab/gemm/tile.cuh"

namespace mixtape::lab {

// A block computes a tile of tile x tile, each of its four warps a quarter. Lines in shared memory
// are `padding` elements longer than they need to be.
template <int tile, int padding>
struct WmmaRing {
  static constexpr int depth = 32, stages = 3, threads = 128, warp_tile = tile / 2;
  static constexpr int lda = depth + padding, ldb = tile + padding, a_size = tile * lda,
                       slot = a_size + depth * ldb;
  static constexpr size_t bytes = stages * slot * sizeof(BFloat16);
};

template <int tile, int padding>
__global__ void __launch_bounds__(128)
    rung_wmma_ring(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  using R = WmmaRing<tile, padding>;
  const Shared<BFloat16> ring = gpu::shared_memory<BFloat16>();
  const int64_t m0 = gpu::block().y * tile, n0 = gpu::block().x * tile;
  const int warp = int(gpu::thread().x) / 32, wm = warp / 2 * R::warp_tile,
            wn = warp % 2 * R::warp_tile;
  const int steps = k / R::depth;
  const auto load = [&](int step) {
    if (step < steps) {
      const Shared<BFloat16> to = ring + step % R::stages * R::slot;
      const int64_t k0 = int64_t(step) * R::depth;
      copy_slice_async<tile, R::depth, R::lda, R::threads>(to, a + m0 * k + k0, k);
      copy_slice_async<R::depth, tile, R::ldb, R::threads>(to + R::a_size, b + k0 * n + n0, n);
    }
    gpu::copy_commit();  // also nothing, so that the number of groups is that of steps
  };
  WmmaSums<R::warp_tile / 16, R::warp_tile / 16> sum = {};
  for (int s = 0; s < R::stages - 1; ++s) load(s);
  for (int step = 0; step < steps; ++step) {
    gpu::copy_wait<R::stages - 2>();
    gpu::sync_block();  // all have the step's slices, and have finished with the slot loaded next
    load(step + R::stages - 1);
    const Shared<BFloat16> as = ring + step % R::stages * R::slot;
    multiply_by_wmma<R::depth, R::lda, R::ldb>(as + wm * R::lda, as + R::a_size + wn, sum);
  }
  store_wmma(c + (m0 + wm) * n + n0 + wn, n, sum);
}

template <int tile, int padding>
void run_wmma_ring(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                   void* stream) {
  gpu::launch({"rung_wmma_ring",
               {unsigned(n / tile), unsigned(m / tile), 1},
               {128, 1, 1},
               WmmaRing<tile, padding>::bytes},
              stream, rung_wmma_ring<tile, padding>, a, b, c, n, k);
}

}  // namespace mixtape::lab
