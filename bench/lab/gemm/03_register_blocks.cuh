// Rung 3: 256 threads compute 128 x 128 elements, 8 x 8 each. Sixteen numbers from shared memory
// are then enough for 64 multiplications, where rung 2 loads two for one.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::lab {

__global__ void __launch_bounds__(256)
    rung_register_blocks(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  constexpr int tile = 128, depth = 16;
  using Eight = gpu::Pack<BFloat16, 8>;
  using Four = gpu::Pack<float, 4>;
  // Both slices are lines along the tile, one for each step of k.
  const gpu::Shared<float> as = gpu::shared_memory<float>(), bs = as + depth * tile;
  const int id = int(gpu::thread().x), down = id / 16 * 4, right = id % 16 * 4;
  const int64_t m0 = gpu::block().y * tile, n0 = gpu::block().x * tile;
  float sum[8][8] = {};
  for (int k0 = 0; k0 < k; k0 += depth) {
    // A thread brings eight neighbours of a row of a, and of a row of b.
    const int row = id / 2, at = id % 2 * 8, line = id / 16, column = id % 16 * 8;
    const auto of_a = gpu::load_as<Eight>(a + (m0 + row) * k + k0 + at);
    const auto of_b = gpu::load_as<Eight>(b + int64_t(k0 + line) * n + n0 + column);
    gpu::sync_block();  // all have finished with the slices before
    for (int i = 0; i < 8; ++i) {
      as[(at + i) * tile + row] = gpu::widen(of_a.v[i]);
      bs[line * tile + column + i] = gpu::widen(of_b.v[i]);
    }
    gpu::sync_block();
#pragma unroll
    for (int i = 0; i < depth; ++i) {
      // Two groups of four neighbours, 64 apart, which a thread loads in one access each.
      float x[8], y[8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto four_a = gpu::load_as<Four>(as + (i * tile + h * 64 + down)),
                   four_b = gpu::load_as<Four>(bs + (i * tile + h * 64 + right));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          x[h * 4 + e] = four_a.v[e];
          y[h * 4 + e] = four_b.v[e];
        }
      }
#pragma unroll
      for (int r = 0; r < 8; ++r)
#pragma unroll
        for (int s = 0; s < 8; ++s) sum[r][s] += x[r] * y[s];
    }
  }
#pragma unroll
  for (int r = 0; r < 8; ++r)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      gpu::store_as(c + (m0 + r / 4 * 64 + down + r % 4) * n + n0 + h * 64 + right,
                    Four{{sum[r][h * 4], sum[r][h * 4 + 1], sum[r][h * 4 + 2], sum[r][h * 4 + 3]}});
}

inline void run_register_blocks(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                                void* stream) {
  gpu::launch({"rung_register_blocks",
               {unsigned(n / 128), unsigned(m / 128), 1},
               {256, 1, 1},
               2 * 16 * 128 * sizeof(float)},
              stream, rung_register_blocks, a, b, c, n, k);
}

}  // namespace mixtape::lab
