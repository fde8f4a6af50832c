#pragma once
// A team: threads that make one result together: 1, 2, 4, ... 32 neighbouring lanes of a warp, or
// all warps of a block. What each of them found is joined in a fixed order.

#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

struct ThreadGroup {
  static constexpr size_t shared_bytes = 2048;  // what a team of more than one warp needs

  int size, index;  // how many threads, and which of them this is

  __device__ explicit ThreadGroup(int size) : size(size), index(int(gpu::thread().x) % size) {}

  // f(...f(first, second)..., last) of the values of all members, for all of them. V is a number or
  // a struct of numbers of at most 32 bytes, `nothing` what changes no other. All threads of the
  // block must call it, whichever their team.
  template <class V, class F>
  __device__ V join(V v, F f, V nothing) {
    const int lanes = size < gpu::warp_size ? size : gpu::warp_size;
    for (int mask = 1; mask < lanes; mask *= 2) v = f(v, gpu::shuffle_xor(v, mask));
    if (size > gpu::warp_size) {
      // Two rooms in turn: nobody can be two joins ahead of another.
      const gpu::Shared<V> of_warps = gpu::shared_memory<V>(size_t(turn_) * (shared_bytes / 2));
      turn_ = 1 - turn_;
      if (gpu::lane() == 0) of_warps[gpu::thread().x / gpu::warp_size] = v;
      gpu::sync_block();
      v = nothing;
      if (gpu::lane() < size / gpu::warp_size) v = of_warps[gpu::lane()];
      for (int mask = 1; mask < gpu::warp_size; mask *= 2) v = f(v, gpu::shuffle_xor(v, mask));
    }
    return gpu::shuffle(v, gpu::lane() & ~(lanes - 1));  // f may round differently in each lane
  }

 private:
  int turn_ = 0;
};

}  // namespace mixtape::kernels::cuda
