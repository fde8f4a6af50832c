// Rung 11: Hopper. Four warps multiply together by wgmma, 64 x 256 x 16 an instruction, with
// operands straight from shared memory, where the copy engine (TMA) puts them: one thread asks for
// a box of a matrix, and a barrier counts the bytes that have come. There is one slot yet, so
// copies and products take turns.
#pragma once

#include "bench/lab/gemm/rung.h"
#include "kernels/cuda/gpu_hopper.cuh"

namespace mixtape::lab {

using gpu::Shared;

// A row-major matrix for the copy engine, in boxes of 64 columns and `rows` rows.
inline gpu::TensorMap map_of(const BFloat16* data, int64_t down, int64_t across, int rows) {
  gpu::BoxedTensor tensor;
  tensor.data = data;
  tensor.size[0] = across;
  tensor.size[1] = down;
  tensor.stride[1] = across;
  tensor.rows = rows;
  return gpu::make_tensor_map(tensor);
}
constexpr int box_columns = 64;
// The sums of 64 x 256 elements of c, as gpu::multiply_group() has them.
using GroupSums = float[128];

// sum (+)= 64 x 64 of a times 64 x 256 of b, in boxes of 64 columns: as lines along k, and as steps
// of k. `first`: there are no sums yet.
__device__ __forceinline__ void multiply_boxes(Shared<BFloat16> as, Shared<BFloat16> bs, bool first,
                                               GroupSums& sum) {
  gpu::group_fence();
#pragma unroll
  for (int k = 0; k < 64; k += 16)
    gpu::multiply_group<BFloat16, 256, false, true>(
        sum, gpu::make_operand(as + k, false, 0),
        gpu::make_operand(bs + k * box_columns, true, 64 * gpu::box_row_bytes), !first || k > 0);
  gpu::group_commit();
}
// Stores the sums of a group of warps; `to` is the first of its 64 x 256 elements.
__device__ __forceinline__ void store_group(float* to, int n, const GroupSums& sum) {
  const int t = int(gpu::thread().x) % 128;
  float* const mine = to + (t / 32 * 16 + t % 32 / 4) * int64_t(n) + t % 4 * 2;
#pragma unroll
  for (int i = 0; i < 128; i += 2)
    gpu::store_as(mine + i / 2 % 2 * 8 * int64_t(n) + i / 4 * 8,
                  gpu::Pack<float, 2>{{sum[i], sum[i + 1]}});
}

__global__ void __launch_bounds__(128)
    rung_wgmma(const __grid_constant__ gpu::TensorMap a, const __grid_constant__ gpu::TensorMap b,
               float* c, int n, int steps) {
  if constexpr (gpu::compiled_for_hopper) {
    constexpr int a_size = 64 * 64, b_size = 64 * 256;
    constexpr int bytes = (a_size + b_size) * int(sizeof(BFloat16));
    const Shared<BFloat16> as = gpu::shared_memory<BFloat16>(), bs = as + a_size;
    const Shared<gpu::Barrier> full = gpu::shared_memory<gpu::Barrier>(bytes);
    const int m0 = int(gpu::block().y) * 64, n0 = int(gpu::block().x) * 256;
    const bool asks = gpu::thread().x == 0;
    if (asks) {
      gpu::barrier_init(full, 1);
      gpu::fence_barrier_init();
    }
    gpu::sync_block();
    GroupSums sum;
    for (int step = 0; step < steps; ++step) {
      if (asks) {
        gpu::barrier_expect(full, bytes);
        gpu::load_box(as, a, full, {step * 64, m0});
        for (int i = 0; i < 4; ++i)
          gpu::load_box(bs + i * 64 * box_columns, b, full, {n0 + i * box_columns, step * 64});
      }
      gpu::barrier_wait(full, uint32_t(step % 2));
      multiply_boxes(as, bs, step == 0, sum);
      gpu::group_wait<0>();
      gpu::sync_block();  // all have finished with the slot
    }
    store_group(c + int64_t(m0) * n + n0, n, sum);
  }
}

inline void run_wgmma(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                      void* stream) {
  gpu::launch({"rung_wgmma",
               {unsigned(n / 256), unsigned(m / 64), 1},
               {128, 1, 1},
               (64 * 64 + 64 * 256) * sizeof(BFloat16) + sizeof(gpu::Barrier)},
              stream, rung_wgmma, map_of(a, m, k, 64), map_of(b, k, n, 64), c, n, k / 64);
}

}  // namespace mixtape::lab
