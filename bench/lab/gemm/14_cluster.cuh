// Rung 14: clusters of two blocks with tiles one above the other, which need the same slices of b.
// Each block asks for half of a slice, and the copy engine writes it to the shared memory of both
// (multicast): the second-level cache has to deliver a third less.
#pragma once

#include "bench/lab/gemm/13_persistent.cuh"

namespace mixtape::lab {

constexpr int cluster_blocks = 2;

// Each block fills slots of both, so it gets a slot back from the consumers of both.
struct GiveBackToAll {
  __device__ __forceinline__ void operator()(Shared<gpu::Barrier> empty) const {
    const int t = int(gpu::thread().x) % 128;
    if (t < cluster_blocks) gpu::barrier_arrive(empty, t);
  }
};

// One thread asks for this block's boxes of a, and for its half of those of b, which both get.
__device__ __forceinline__ void produce_half(const GroupRing& r, Ring& at, const gpu::TensorMap& a,
                                             const gpu::TensorMap& b, int m0, int n0, int rank,
                                             int steps) {
  using T = GroupTile;
  constexpr unsigned everyone = (1u << cluster_blocks) - 1;
  for (int step = 0; step < steps; ++step, at.next()) {
    const Shared<BFloat16> as = r.slots + at.slot * T::slot, bs = as + T::a_size;
    const Shared<gpu::Barrier> full = r.full + at.slot;
    gpu::barrier_wait(r.empty + at.slot, at.empty_parity());
    gpu::barrier_expect(full, T::slot_bytes);  // those of the other block, too
    gpu::load_box(as, a, full, {step * T::depth, m0});
    for (int i = rank * 2; i < rank * 2 + 2; ++i)
      gpu::load_box(bs + i * T::depth * box_columns, b, full,
                    {n0 + i * box_columns, step * T::depth}, everyone);
  }
}

__global__ void __launch_bounds__(384, 1)
    rung_cluster(const __grid_constant__ gpu::TensorMap a, const __grid_constant__ gpu::TensorMap b,
                 const __grid_constant__ gpu::TensorMap c, int pairs_down, int tiles_across,
                 int steps) {
  if constexpr (gpu::compiled_for_hopper) {
    const GroupRing ring(GroupTile::ring_bytes + c_bytes, cluster_blocks);
    const int rank = gpu::cluster_rank(), group = int(gpu::thread().x) / 128;
    const int pairs = pairs_down * tiles_across;
    const int first = int(gpu::block().x) / cluster_blocks;
    const int clusters = int(gpu::grid_size().x) / cluster_blocks;
    const auto origin = [&](int pair) {
      TileOrigin o = origin_of(pair, pairs_down, tiles_across);
      o.m = o.m * cluster_blocks + rank * GroupTile::m;
      return o;
    };
    gpu::cluster_arrive();  // the barriers of all blocks are ready
    gpu::cluster_wait();
    Ring at;
    if (group == 0) {
      gpu::lower_registers<40>();
      for (int pair = first; pair < pairs && gpu::thread().x == 0; pair += clusters) {
        const TileOrigin o = origin(pair);
        produce_half(ring, at, a, b, o.m, o.n, rank, steps);
      }
    } else {
      gpu::raise_registers<232>();
      GroupSums sum;
      for (int pair = first; pair < pairs; pair += clusters) {
        const TileOrigin o = origin(pair);
        consume(ring, at, group - 1, steps, sum, GiveBackToAll{});
        store_boxes(c, group - 1, o.m + (group - 1) * 64, o.n, sum);
      }
      if (gpu::thread().x % 128 == 0) gpu::store_wait<0>();
    }
    gpu::cluster_arrive();  // no block ends while the other may send to it
    gpu::cluster_wait();
  }
}

inline void run_cluster(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                        void* stream) {
  using T = GroupTile;
  const int pairs = m / (T::m * cluster_blocks) * (n / T::n);
  const int most = gpu::multiprocessors(0) / cluster_blocks;
  const int clusters = most < 1 ? 1 : pairs < most ? pairs : most;
  gpu::launch({"rung_cluster",
               {unsigned(clusters * cluster_blocks), 1, 1},
               {T::threads, 1, 1},
               T::ring_bytes + c_bytes + barrier_bytes,
               cluster_blocks},
              stream, rung_cluster, map_of(a, m, k, T::m), map_of(b, k, n, T::depth),
              map_of(reinterpret_cast<const BFloat16*>(c), m, int64_t(2) * n, 64),
              m / (T::m * cluster_blocks), n / T::n, k / T::depth);
}

}  // namespace mixtape::lab
