// Rung 10: a swizzle instead of padding, and four slots. A chunk of 16 bytes moves within its line
// by an exclusive or with the number of the line: no bank conflicts, and no room for padding, so
// that a fourth slot costs less, and lines begin at multiples of 16 bytes, which copies need.
#pragma once

#include "bench/lab/gemm/09_hoisted.cuh"

namespace mixtape::lab {

// The place of chunk `chunk` of a line. Eight lines that ldmatrix reads at once fill all banks: of
// a, two lines of 64 bytes share 128 bytes; of b, a line of 256 bytes has more.
__device__ __forceinline__ int swizzled_a(int line, int chunk) {
  return line * 32 + (chunk ^ line / 2 % 4) * 8;
}
__device__ __forceinline__ int swizzled_b(int line, int chunk) {
  return line * 128 + (chunk ^ line % 8) * 8;
}

__global__ void __launch_bounds__(128)
    rung_swizzle(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  constexpr int tile = 128, depth = 32, stages = 4, a_size = tile * depth, slot_size = 2 * a_size;
  const Shared<BFloat16> ring = gpu::shared_memory<BFloat16>();
  const int64_t m0 = gpu::block().y * tile, n0 = gpu::block().x * tile;
  const int id = int(gpu::thread().x), warp = id / 32, lane = gpu::lane();
  const int wm = warp / 2 * 64, wn = warp % 2 * 64;
  // A thread copies chunks of lines that are 32 apart in a and 8 apart in b, where the swizzle is
  // the same.
  const int to_a = swizzled_a(id / 4, id % 4), to_b = a_size + swizzled_b(id / 16, id % 16);
  const BFloat16* from_a = a + (m0 + id / 4) * k + id % 4 * 8;
  const BFloat16* from_b = b + int64_t(id / 16) * n + n0 + id % 16 * 8;
  const int64_t down_a = int64_t(32) * k, down_b = int64_t(8) * n, next_b = int64_t(depth) * n;
  int to_load = k / depth;
  const auto load = [&](int slot) {
    if (to_load-- > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        gpu::copy_async(ring + (slot + to_a + i * 32 * 32), from_a + i * down_a);
        gpu::copy_async(ring + (slot + to_b + i * 8 * 128), from_b + i * down_b);
      }
      from_a += depth;
      from_b += next_b;
    }
    gpu::copy_commit();
  };
  // The lane's rows for ldmatrix. The exclusive or is different for each of its steps along a line:
  // two of k in a, four of n in b.
  int row_a[2], row_b[4];
#pragma unroll
  for (int s = 0; s < 2; ++s) row_a[s] = swizzled_a(wm + lane % 16, s * 2 + lane / 16);
#pragma unroll
  for (int j = 0; j < 4; ++j) row_b[j] = a_size + swizzled_b(lane % 16, wn / 8 + j * 2 + lane / 16);
  MmaSums sum = {};
  for (int s = 0; s < stages - 1; ++s) load(s * slot_size);
  for (int step = 0, steps = k / depth; step < steps; ++step) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();
    load((step + stages - 1) % stages * slot_size);
    const Shared<BFloat16> slot = ring + step % stages * slot_size;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      gpu::Fragment of_a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_a[i] = gpu::load_matrices<false>(slot + (row_a[s] + i * 16 * 32));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto of_b = load_neighbours(slot + (row_b[j] + s * 16 * 128));
#pragma unroll
        for (int i = 0; i < 4; ++i) gpu::multiply<BFloat16>(sum[i][j], of_a[i], of_b);
      }
    }
  }
  store_mma(c + (m0 + wm) * n + n0 + wn, n, sum);
}

inline void run_swizzle(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                        void* stream) {
  gpu::launch({"rung_swizzle",
               {unsigned(n / 128), unsigned(m / 128), 1},
               {128, 1, 1},
               4 * 2 * 128 * 32 * sizeof(BFloat16)},
              stream, rung_swizzle, a, b, c, n, k);
}

}  // namespace mixtape::lab
