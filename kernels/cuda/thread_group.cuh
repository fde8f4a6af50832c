#pragma once
// A group of threads that compute one result together: 1, 2, 4, ... 32 neighbouring lanes of a
// warp, or all warps of a block. Their partial results are joined in a fixed order.

#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

struct ThreadGroup {
  static constexpr size_t shared_bytes = 2048;  // for a group of more than one warp

  int size, index;  // the number of threads, and this thread's among them

  __device__ explicit ThreadGroup(int size) : size(size), index(int(gpu::thread().x) % size) {}

  // f(...f(first, second)..., last) over the values of all threads, for all of them. V is a number
  // or a struct of numbers of at most 32 bytes, `identity` an f-neutral value. All threads of the
  // block must call it, whichever group they are in.
  template <class V, class F>
  __device__ V join(V v, F f, V identity) {
    const int lanes = size < gpu::warp_size ? size : gpu::warp_size;
    for (int mask = 1; mask < lanes; mask *= 2) v = f(v, gpu::shuffle_xor(v, mask));
    if (size > gpu::warp_size) {
      // Double-buffered: a thread can be at most one join ahead.
      const gpu::Shared<V> of_warps = gpu::shared_memory<V>(size_t(buffer_) * (shared_bytes / 2));
      buffer_ = 1 - buffer_;
      if (gpu::lane() == 0) of_warps[gpu::thread().x / gpu::warp_size] = v;
      gpu::sync_block();
      v = identity;
      if (gpu::lane() < size / gpu::warp_size) v = of_warps[gpu::lane()];
      for (int mask = 1; mask < gpu::warp_size; mask *= 2) v = f(v, gpu::shuffle_xor(v, mask));
    }
    return gpu::shuffle(v, gpu::lane() & ~(lanes - 1));  // f may round differently in each lane
  }

 private:
  int buffer_ = 0;
};

}  // namespace mixtape::kernels::cuda
