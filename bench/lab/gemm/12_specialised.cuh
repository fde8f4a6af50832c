// Rung 12: warps that only copy and warps that only multiply. A producer keeps a ring of four slots
// full; two groups of four warps multiply 64 x 256 each. No warp waits at a barrier of the block:
// each slot has a barrier for "full" and one for "empty". Registers go where they are needed.
#pragma once

#include "bench/lab/gemm/11_wgmma.cuh"
#include "kernels/cuda/gemm/ring.h"

namespace mixtape::lab {

struct GroupTile {
  static constexpr int m = 128, n = 256, depth = 64, stages = 4, threads = 384;
  static constexpr int a_size = m * depth, slot = a_size + n * depth;
  static constexpr int slot_bytes = slot * int(sizeof(BFloat16));
  static constexpr int ring_bytes = stages * slot_bytes;
};
using Ring = kernels::cuda::Ring<GroupTile::stages>;

struct GroupRing {
  Shared<BFloat16> slots;
  Shared<gpu::Barrier> full, empty;  // one each for every slot

  // All threads of the block call it. readers: blocks that read what fills a slot here.
  __device__ __forceinline__ explicit GroupRing(size_t barriers_at, int readers = 1) {
    slots = gpu::shared_memory<BFloat16>();
    full = gpu::shared_memory<gpu::Barrier>(barriers_at);
    empty = full + GroupTile::stages;
    if (gpu::thread().x == 0) {
      for (int s = 0; s < GroupTile::stages; ++s) {
        gpu::barrier_init(full + s, 1);             // the producer
        gpu::barrier_init(empty + s, 2 * readers);  // two groups of consumers
      }
      gpu::fence_barrier_init();
    }
    gpu::sync_block();
  }
};
constexpr size_t barrier_bytes = 2 * GroupTile::stages * sizeof(gpu::Barrier);

// One thread asks for all boxes of a tile of c.
__device__ __forceinline__ void produce(const GroupRing& r, Ring& at, const gpu::TensorMap& a,
                                        const gpu::TensorMap& b, int m0, int n0, int steps) {
  using T = GroupTile;
  for (int step = 0; step < steps; ++step, at.next()) {
    const Shared<BFloat16> as = r.slots + at.slot * T::slot, bs = as + T::a_size;
    const Shared<gpu::Barrier> full = r.full + at.slot;
    gpu::barrier_wait(r.empty + at.slot, at.empty_parity());
    gpu::barrier_expect(full, T::slot_bytes);
    gpu::load_box(as, a, full, {step * T::depth, m0});
    for (int i = 0; i < 4; ++i)
      gpu::load_box(bs + i * T::depth * box_columns, b, full,
                    {n0 + i * box_columns, step * T::depth});
  }
}
struct GiveBack {
  __device__ __forceinline__ void operator()(Shared<gpu::Barrier> empty) const {
    if (gpu::thread().x % 128 == 0) gpu::barrier_arrive(empty);
  }
};
// A group of consumers multiplies its half of a tile. It gives a slot back when the products of the
// next one have begun, so that the tensor cores never run dry.
template <class Give = GiveBack>
__device__ __forceinline__ void consume(const GroupRing& r, Ring& at, int half, int steps,
                                        GroupSums& sum, Give give_back = {}) {
  using T = GroupTile;
  int last = -1;
  for (int step = 0; step < steps; ++step, at.next()) {
    const Shared<BFloat16> as = r.slots + at.slot * T::slot;
    gpu::barrier_wait(r.full + at.slot, at.full_parity());
    multiply_boxes(as + half * 64 * T::depth, as + T::a_size, step == 0, sum);
    gpu::group_wait<1>();
    if (last >= 0) give_back(r.empty + last);
    last = at.slot;
  }
  gpu::group_wait<0>();
  if (last >= 0) give_back(r.empty + last);
}

__global__ void __launch_bounds__(384, 1)
    rung_specialised(const __grid_constant__ gpu::TensorMap a,
                     const __grid_constant__ gpu::TensorMap b, float* c, int n, int steps) {
  if constexpr (gpu::compiled_for_hopper) {
    const GroupRing ring(GroupTile::ring_bytes);
    const int m0 = int(gpu::block().y) * GroupTile::m, n0 = int(gpu::block().x) * GroupTile::n;
    const int group = int(gpu::thread().x) / 128;
    Ring at;
    if (group == 0) {
      gpu::lower_registers<40>();
      if (gpu::thread().x == 0) produce(ring, at, a, b, m0, n0, steps);
    } else {
      gpu::raise_registers<232>();
      GroupSums sum;
      consume(ring, at, group - 1, steps, sum);
      store_group(c + (m0 + (group - 1) * int64_t(64)) * n + n0, n, sum);
    }
  }
}

inline void run_specialised(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                            void* stream) {
  using T = GroupTile;
  gpu::launch({"rung_specialised",
               {unsigned(n / T::n), unsigned(m / T::m), 1},
               {T::threads, 1, 1},
               T::ring_bytes + barrier_bytes},
              stream, rung_specialised, map_of(a, m, k, T::m), map_of(b, k, n, T::depth), c, n,
              k / T::depth);
}

}  // namespace mixtape::lab
