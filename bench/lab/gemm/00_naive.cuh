// Rung 0: a thread computes an element of c. Threads of a warp have neighbouring rows, so that each
// of their loads of a and each store is of 32 different lines of the cache.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::lab {

__global__ void rung_naive(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  const int64_t row = gpu::block().x * 128 + gpu::thread().x, column = gpu::block().y;
  float sum = 0;
  for (int i = 0; i < k; ++i)
    sum += gpu::widen(a[row * k + i]) * gpu::widen(b[int64_t(i) * n + column]);
  c[row * n + column] = sum;
}

inline void run_naive(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                      void* stream) {
  gpu::launch({"rung_naive", {unsigned(m / 128), unsigned(n), 1}, {128, 1, 1}}, stream, rung_naive,
              a, b, c, n, k);
}

}  // namespace mixtape::lab
