// Rung 1: the same, but threads of a warp have neighbouring columns. They all read the same element
// of a, and 32 neighbours of b, in one access each.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::lab {

__global__ void rung_coalesced(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  const int64_t row = gpu::block().y, column = gpu::block().x * 128 + gpu::thread().x;
  float sum = 0;
  for (int i = 0; i < k; ++i)
    sum += gpu::widen(a[row * k + i]) * gpu::widen(b[int64_t(i) * n + column]);
  c[row * n + column] = sum;
}

inline void run_coalesced(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                          void* stream) {
  gpu::launch({"rung_coalesced", {unsigned(n / 128), unsigned(m), 1}, {128, 1, 1}}, stream,
              rung_coalesced, a, b, c, n, k);
}

}  // namespace mixtape::lab
