// Rung 4: tensor cores. A warp computes 16 x 16 elements of c by wmma, with operands straight from
// global memory: one instruction multiplies 16 x 16 x 16, but waits for its loads.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu_wmma.cuh"

namespace mixtape::lab {

__global__ void rung_wmma(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  // Four warps side by side.
  const int64_t m0 = gpu::block().y * 16, n0 = (gpu::block().x * 4 + gpu::thread().x / 32) * 16;
  gpu::Matrix<gpu::Use::A, BFloat16, true> of_a;
  gpu::Matrix<gpu::Use::B, BFloat16, true> of_b;
  gpu::MatrixSum<BFloat16> sum = {};
  for (int k0 = 0; k0 < k; k0 += 16) {
    gpu::load_global_matrix(of_a, a + m0 * k + k0, k);
    gpu::load_global_matrix(of_b, b + int64_t(k0) * n + n0, n);
    gpu::multiply(sum, of_a, of_b);
  }
  gpu::store_global_matrix(c + m0 * n + n0, n, sum);
}

inline void run_wmma(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                     void* stream) {
  gpu::launch({"rung_wmma", {unsigned(n / 64), unsigned(m / 16), 1}, {128, 1, 1}}, stream,
              rung_wmma, a, b, c, n, k);
}

}  // namespace mixtape::lab
