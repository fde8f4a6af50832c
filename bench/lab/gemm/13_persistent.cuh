// Rung 13: as many blocks as multiprocessors, each with one tile after another. While consumers
// store a tile, through shared memory and by the copy engine, the producer already fills the ring
// for the next. Tiles go in bands of eight rows, whose operands stay in the second-level cache.
#pragma once

#include "bench/lab/gemm/12_specialised.cuh"

namespace mixtape::lab {

// Boxes of c are 32 columns wide and 64 rows high; each group has room for two.
constexpr int c_columns = 32, c_box = 64 * c_columns, c_boxes = 2;
constexpr size_t c_bytes = 2 * c_boxes * c_box * sizeof(float);

// Stores a group's 64 x 256 sums, two boxes at a time.
__device__ __forceinline__ void store_boxes(const gpu::TensorMap& c, int half, int m0, int n0,
                                            const GroupSums& sum) {
  const int t = int(gpu::thread().x) % 128;
  const Shared<float> room =
      gpu::shared_memory<float>(GroupTile::ring_bytes) + half * c_boxes * c_box;
#pragma unroll
  for (int part = 0; part < 256 / (c_boxes * c_columns); ++part) {
    if (t == 0) gpu::store_wait_read<0>();  // the boxes before have left their room
    gpu::sync_threads(1 + half, 128);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + t % 4 * 2;
      const int chunk = column % c_columns / 4 ^ row % 8;  // the swizzle of boxes
      gpu::store_as(room + (column / c_columns * c_box + row * c_columns + chunk * 4 + column % 4),
                    gpu::Pack<float, 2>{{sum[part * 32 + i], sum[part * 32 + i + 1]}});
    }
    gpu::fence_async();
    gpu::sync_threads(1 + half, 128);
    if (t == 0) {
      // (To the copy engine a column of f32 is two of 16 bits.)
      for (int i = 0; i < c_boxes; ++i)
        gpu::store_box(c, room + i * c_box, {2 * (n0 + (part * c_boxes + i) * c_columns), m0});
      gpu::store_commit();
    }
  }
}

struct TileOrigin {
  int m, n;
};
__device__ __forceinline__ TileOrigin origin_of(int tile, int tiles_down, int tiles_across) {
  const int band = 8 * tiles_across, first = tile / band * 8;
  const int height = tiles_down - first < 8 ? tiles_down - first : 8;
  return {(first + tile % band % height) * GroupTile::m, tile % band / height * GroupTile::n};
}

__global__ void __launch_bounds__(384, 1)
    rung_persistent(const __grid_constant__ gpu::TensorMap a,
                    const __grid_constant__ gpu::TensorMap b,
                    const __grid_constant__ gpu::TensorMap c, int tiles_down, int tiles_across,
                    int steps) {
  if constexpr (gpu::compiled_for_hopper) {
    const GroupRing ring(GroupTile::ring_bytes + c_bytes);
    const int group = int(gpu::thread().x) / 128, tiles = tiles_down * tiles_across;
    Ring at;  // goes on from tile to tile
    if (group == 0) {
      gpu::lower_registers<40>();
      if (gpu::thread().x != 0) return;
      for (int tile = int(gpu::block().x); tile < tiles; tile += int(gpu::grid_size().x)) {
        const TileOrigin o = origin_of(tile, tiles_down, tiles_across);
        produce(ring, at, a, b, o.m, o.n, steps);
      }
    } else {
      gpu::raise_registers<232>();
      GroupSums sum;
      for (int tile = int(gpu::block().x); tile < tiles; tile += int(gpu::grid_size().x)) {
        const TileOrigin o = origin_of(tile, tiles_down, tiles_across);
        consume(ring, at, group - 1, steps, sum);
        store_boxes(c, group - 1, o.m + (group - 1) * 64, o.n, sum);
      }
      if (gpu::thread().x % 128 == 0) gpu::store_wait<0>();
    }
  }
}

inline void run_persistent(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                           void* stream) {
  using T = GroupTile;
  const int tiles = m / T::m * (n / T::n), most = gpu::multiprocessors(0);
  gpu::launch({"rung_persistent",
               {unsigned(tiles < most ? tiles : most), 1, 1},
               {T::threads, 1, 1},
               T::ring_bytes + c_bytes + barrier_bytes},
              stream, rung_persistent, map_of(a, m, k, T::m), map_of(b, k, n, T::depth),
              map_of(reinterpret_cast<const BFloat16*>(c), m, int64_t(2) * n, 64), m / T::m,
              n / T::n, k / T::depth);
}

}  // namespace mixtape::lab
