// Rung 2: a block of 32 x 32 threads computes 32 x 32 elements. It brings squares of a and b to
// shared memory, where each element is read 32 times instead of from global memory.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::lab {

__global__ void rung_shared_tile(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  const gpu::Shared<float> as = gpu::shared_memory<float>(), bs = as + 32 * 32;
  const int x = int(gpu::thread().x), y = int(gpu::thread().y);
  const int64_t row = gpu::block().y * 32 + y, column = gpu::block().x * 32 + x;
  float sum = 0;
  for (int k0 = 0; k0 < k; k0 += 32) {
    as[y * 32 + x] = gpu::widen(a[row * k + k0 + x]);
    bs[y * 32 + x] = gpu::widen(b[int64_t(k0 + y) * n + column]);
    gpu::sync_block();
    for (int i = 0; i < 32; ++i) sum += as[y * 32 + i] * bs[i * 32 + x];
    gpu::sync_block();
  }
  c[row * n + column] = sum;
}

inline void run_shared_tile(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                            void* stream) {
  gpu::launch({"rung_shared_tile",
               {unsigned(n / 32), unsigned(m / 32), 1},
               {32, 32, 1},
               2 * 32 * 32 * sizeof(float)},
              stream, rung_shared_tile, a, b, c, n, k);
}

}  // namespace mixtape::lab
