// Rung 9: addresses before the loop. Each thread copies and reads the same places of every slice,
// so it computes them once and then only adds. The two registers that mma.sync takes of b must be
// neighbours: ldmatrix loads its four matrices in an order that makes them so, or each product
// would need moves.
#pragma once

#include "bench/lab/gemm/08_mma.cuh"

namespace mixtape::lab {

// The 16-byte chunks that a thread copies of each slice: `count` of them, `apart` lines apart.
template <int lines, int length, int to_ld, int threads>
struct ThreadChunks {
  static constexpr int chunks = length / 8, apart = threads / chunks, count = lines / apart;
  const BFloat16* from;
  int64_t down, next;  // from chunk to chunk, and to those of the next step
  int to;

  __device__ __forceinline__ ThreadChunks(const BFloat16* data, int64_t ld, int64_t step) {
    const int id = int(gpu::thread().x), line = id / chunks, at = id % chunks * 8;
    from = data + line * ld + at;
    down = apart * ld;
    next = step;
    to = line * to_ld + at;
  }
  __device__ __forceinline__ void copy(Shared<BFloat16> slice) {
    const BFloat16* p = from;
#pragma unroll
    for (int i = 0; i < count; ++i, p += down) gpu::copy_async(slice + (to + i * apart * to_ld), p);
    from += next;
  }
};

// Part i of b for columns 8 h to 8 h + 7 comes from matrix 2 h + i.
__device__ __forceinline__ gpu::Fragment load_neighbours(Shared<BFloat16> row) {
  gpu::Fragment f = gpu::load_matrices<true>(row);
  const uint32_t one = f.part[1];
  f.part[1] = f.part[2];
  f.part[2] = one;
  return f;
}

__global__ void __launch_bounds__(128)
    rung_hoisted(const BFloat16* a, const BFloat16* b, float* c, int n, int k) {
  using T = MmaTile;
  constexpr int stages = 3;
  const Shared<BFloat16> ring = gpu::shared_memory<BFloat16>();
  const int64_t m0 = gpu::block().y * T::tile, n0 = gpu::block().x * T::tile;
  const int warp = int(gpu::thread().x) / 32, wm = warp / 2 * 64, wn = warp % 2 * 64;
  const int lane = gpu::lane();
  ThreadChunks<T::tile, T::depth, T::lda, T::threads> chunks_a(a + m0 * k, k, T::depth);
  ThreadChunks<T::depth, T::tile, T::ldb, T::threads> chunks_b(b + n0, n, int64_t(T::depth) * n);
  int to_load = k / T::depth;
  const auto load = [&](int slot) {
    if (to_load-- > 0) {
      chunks_a.copy(ring + slot);
      chunks_b.copy(ring + (slot + T::a_size));
    }
    gpu::copy_commit();
  };
  // The lane's rows for ldmatrix, in a slot.
  const int row_a = (wm + lane % 16) * T::lda + lane / 16 * 8,
            row_b = T::a_size + (lane % 16) * T::ldb + wn + lane / 16 * 8;
  MmaSums sum = {};
  for (int s = 0; s < stages - 1; ++s) load(s * T::slot);
  int slot = 0, slot_to_load = (stages - 1) * T::slot;
  const auto next = [](int& s) { s = s == (stages - 1) * T::slot ? 0 : s + T::slot; };
  for (int left = k / T::depth; left > 0; --left) {
    gpu::copy_wait<stages - 2>();
    gpu::sync_block();
    load(slot_to_load);
    next(slot_to_load);
    const Shared<BFloat16> as = ring + (slot + row_a), bs = ring + (slot + row_b);
    next(slot);
#pragma unroll
    for (int k1 = 0; k1 < T::depth; k1 += 16) {
      gpu::Fragment of_a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) of_a[i] = gpu::load_matrices<false>(as + (i * 16 * T::lda + k1));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const auto of_b = load_neighbours(bs + (k1 * T::ldb + j * 16));
#pragma unroll
        for (int i = 0; i < 4; ++i) gpu::multiply<BFloat16>(sum[i][j], of_a[i], of_b);
      }
    }
  }
  store_mma(c + (m0 + wm) * n + n0 + wn, n, sum);
}

inline void run_hoisted(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                        void* stream) {
  gpu::launch({"rung_hoisted",
               {unsigned(n / 128), unsigned(m / 128), 1},
               {128, 1, 1},
               3 * MmaTile::slot * sizeof(BFloat16)},
              stream, rung_hoisted, a, b, c, n, k);
}

}  // namespace mixtape::lab
