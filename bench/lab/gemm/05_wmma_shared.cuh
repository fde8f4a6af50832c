// Rung 5: slices of a and b in shared memory again. Four warps compute 64 x 64 elements, 32 x 32
// each, so that a fragment is loaded once for two products.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "bench/lab/gemm/tile.cuh"

namespace mixtape::lab {

__global__ void __launch_bounds__(128)
    rung_wmma_shared(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  constexpr int tile = 64, depth = 32;
  const Shared<BFloat16> as = gpu::shared_memory<BFloat16>(), bs = as + tile * depth;
  const int64_t m0 = gpu::block().y * tile, n0 = gpu::block().x * tile;
  const int warp = int(gpu::thread().x) / 32, wm = warp / 2 * 32, wn = warp % 2 * 32;
  const auto copy = [](Shared<BFloat16> to, const BFloat16* from) {
    using Eight = gpu::Pack<BFloat16, 8>;
    gpu::store_as(to, gpu::load_as<Eight>(from));
  };
  WmmaSums<2, 2> sum = {};
  for (int k0 = 0; k0 < k; k0 += depth) {
    for_each_chunk<tile, depth, depth, 128>(as, a + m0 * k + k0, k, copy);
    for_each_chunk<depth, tile, tile, 128>(bs, b + int64_t(k0) * n + n0, n, copy);
    gpu::sync_block();
    multiply_by_wmma<depth, depth, tile>(as + wm * depth, bs + wn, sum);
    gpu::sync_block();
  }
  store_wmma(c + (m0 + wm) * n + n0 + wn, n, sum);
}

inline void run_wmma_shared(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                            void* stream) {
  gpu::launch({"rung_wmma_shared",
               {unsigned(n / 64), unsigned(m / 64), 1},
               {128, 1, 1},
               2 * 64 * 32 * sizeof(BFloat16)},
              stream, rung_wmma_shared, a, b, c, n, k);
}

}  // namespace mixtape::lab
