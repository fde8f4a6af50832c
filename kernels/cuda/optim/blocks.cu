// States of 8 bits to and from f32, a warp for each block.

#include "kernels/cuda/optim/blocks.cuh"

namespace mixtape::kernels::cuda {
namespace {

// The first element of this warp's block.
__device__ int64_t block_of_warp() {
  return code_block *
         (block_warps * int64_t(gpu::block().x) + int64_t(gpu::thread().x) / gpu::warp_size);
}

template <class Code, bool nonnegative>
__global__ void encode_states(const float* x, void* codes, float* scale, int64_t n, bool aligned) {
  const int64_t first = block_of_warp();
  if (first >= n) return;
  const LaneOfBlock lane(first, n, aligned);
  float v[8];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Words<float> bits = fetch<float>(x, f32, lane.part[h]);
#pragma unroll
    for (int e = 0; e < 4; ++e) v[4 * h + e] = element(bits, f32, e);
  }
  encode_block<Code, nonnegative>(v, lane, codes, scale + first / code_block);
}

template <class Code>
__global__ void decode_states(const void* codes, const float* scale, float* x, int64_t n,
                              bool aligned) {
  const int64_t first = block_of_warp();
  if (first >= n) return;
  const LaneOfBlock lane(first, n, aligned);
  float v[8];
  decode_block<Code>(codes, scale[first / code_block], lane, v);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float part[4] = {v[4 * h], v[4 * h + 1], v[4 * h + 2], v[4 * h + 3]};
    store(x, f32, lane.part[h], packed(part, f32));
  }
}

template <class... P, class... A>
void launch_blocks(Launch& launch, const char* name, void (*kernel)(P...), int64_t n, A... args) {
  if (n == 0) return;
  gpu::launch({name,
               {unsigned(ceil_div(n, block_warps * code_block)), 1, 1},
               {unsigned(chunk_threads), 1, 1}},
              launch.stream, kernel, args...);
}

}  // namespace

void encode_blocks(Launch& launch, StateCode code, bool is_nonnegative, In x, Out codes,
                   Out scale) {
  visit_code(code, is_nonnegative, [&]<class Code, bool nonnegative>() {
    launch_blocks(launch, "encode_states", encode_states<Code, nonnegative>, x.size(),
                  static_cast<const float*>(x.data), codes.data, scale.as<float>(), x.size(),
                  is_aligned(x) && is_aligned(codes));
  });
}

void decode_blocks(Launch& launch, StateCode code, bool is_nonnegative, In codes, In scale, Out x) {
  visit_code(code, is_nonnegative, [&]<class Code, bool>() {
    launch_blocks(launch, "decode_states", decode_states<Code>, x.size(),
                  static_cast<const void*>(codes.data), scale.as<const float>(), x.as<float>(),
                  x.size(), is_aligned(x) && is_aligned(codes));
  });
}

}  // namespace mixtape::kernels::cuda
