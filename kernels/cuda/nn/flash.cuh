#pragma once
// Attention without scores in memory (Dao et al. 2022), for f16 and bf16 on tensor cores. A warp
// holds 16 or 32 positions of one side as fragments and meets the other side tile by tile, which
// blocks copy to two slots of shared memory in turn. This file has what forward and backward share:
// the copies, the fragments, and the bits that say which scores count.

#include <bit>

#include "core/philox.h"
#include "kernels/common/attention.h"
#include "kernels/cuda/elementwise/elementwise_plan.h"
#include "kernels/cuda/gpu.cuh"

namespace mixtape::kernels::cuda {

using gpu::Shared;

// Vectors of features, `step` elements apart. Walks say where those of a head begin.
template <class T>
struct Positions {
  T* data = nullptr;
  int64_t step = 0;
};

// An AttentionRule for one call.
struct FlashRule {
  const void* mask;  // optional: bool, which scores count; or if it `adds`, f32: what is added to
  bool adds;         // them, with dense rows that begin at multiples of 8 bytes
  int64_t mask_down, mask_right;  // strides between queries and between keys
  bool causal;
  int queries, keys;
  float scale;  // times log2(e), since exp(x) = exp2(x log2(e))
  Draw draw;
  uint32_t threshold;  // of dropout; 0: none
  float kept;          // the factor of probabilities that were not dropped

  // The mask of a head, which begins at that element, or null.
  __device__ __forceinline__ const void* mask_of(int64_t head) const {
    return mask ? static_cast<const char*>(mask) + head * (adds ? int(sizeof(float)) : 1) : nullptr;
  }
};

namespace detail {

// A score times the scale, rounded by itself: fused with a difference after it, which nvcc would
// do, it is not the score that the row's maximum and sum are of.
__device__ inline float scaled(float score, float scale) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(score, scale);
#else
  return score * scale;
#endif
}

constexpr int flash_threads = 128, flash_warps = flash_threads / 32;

// The distance between positions in shared memory: without bank conflicts, as d / 8 is even.
template <int d>
constexpr int flash_stride = d + 8;

// Bit i is set if `query` sees key `key` + i, for i < 16. The mask is the head's, if there is one.
__device__ inline uint32_t visible_bits(const FlashRule& rule, const void* mask, int query,
                                        int key) {
  const int end = rule.causal && query < rule.keys ? query + 1 : rule.keys, count = end - key;
  if (query >= rule.queries || count <= 0) return 0;
  uint32_t bits = count >= 16 ? 0xffffu : (1u << count) - 1;
  if (!mask || rule.adds) return bits;
  const bool* const p =
      static_cast<const bool*>(mask) + query * rule.mask_down + key * rule.mask_right;
  if (count >= 16 && rule.mask_right == 1 && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
    const auto bytes = gpu::load_as<gpu::Pack<uint32_t, 4>>(p);
    bits = 0;  // the products gather the lowest bits of four bytes
#pragma unroll
    for (int i = 0; i < 4; ++i) bits |= (bytes.v[i] * 0x01020408u >> 24) << (4 * i);
    return bits;
  }
#pragma unroll 1
  for (int i = 0; i < 16; ++i)
    if ((bits >> i & 1) != 0 && !p[i * rule.mask_right]) bits &= ~(1u << i);
  return bits;
}

constexpr float log2_e = 1.4426950408889634f;
// A mask's numbers for `count` neighbours, as exponents of 2; 0 if those do not exist.
template <int count>
__device__ __forceinline__ gpu::Pack<float, count> bias_at(const float* p, bool exists) {
  gpu::Pack<float, count> b = {};
  if (!exists) return b;
  b = gpu::load_as<gpu::Pack<float, count>>(p);
#pragma unroll
  for (float& x : b.v) x *= log2_e;
  return b;
}

// Bit i is set if dropout keeps element `element` + i of the probabilities, for i < 16.
__device__ inline uint32_t kept_bits(const FlashRule& rule, const Draw& draw, int64_t element) {
  const int skipped = int(element & 3);
  uint32_t bits = 0;
#pragma unroll 1
  for (int block = 0; block * 4 < 16 + skipped; ++block) {
    const Philox::Block words = Philox::bits(draw, uint64_t(element / 4 + block));
    uint32_t four = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) four |= uint32_t((words[size_t(k)] >> 8) >= rule.threshold) << k;
    bits |= block == 0 ? four >> skipped : four << (4 * block - skipped);
  }
  return bits;
}

// A bit for each score that a lane has of a warp's scores [16 rows, 16], of which one side is
// queries, the other keys. Lane l brings the bits of 16 keys of a query: the one of row l or, if
// rows are keys, of column l % 16, with the keys of rows l / 16 * 16 and on.
template <bool rows_are_keys, int rows>
struct ScoreBits {
  uint32_t words[rows][rows_are_keys ? 4 : 2];

  __device__ __forceinline__ explicit ScoreBits(uint32_t mine) {
    const int down = gpu::lane() / 4, right = gpu::lane() % 4 * 2;
#pragma unroll
    for (int r = 0; r < rows; ++r)
#pragma unroll
      for (int i = 0; i < (rows_are_keys ? 4 : 2); ++i)
        words[r][i] = rows_are_keys ? gpu::shuffle(mine, r * 16 + i / 2 * 8 + right + i % 2) >> down
                                    : gpu::shuffle(mine, r * 16 + i * 8 + down) >> right;
  }
  // The bit of element [half][e] of the sums of row group r.
  __device__ __forceinline__ bool at(int r, int half, int e) const {
    return ((rows_are_keys ? words[r][half * 2 + e % 2] >> (e / 2 * 8)
                           : words[r][e / 2] >> (half * 8 + e % 2)) &
            1) != 0;
  }
};

// Starts the copy of positions [first, first + count) of x to a tile, and of zeros from `end` on.
template <class T, int d, int count>
__device__ __forceinline__ void load_positions(Shared<T> tile, const Positions<const T>& x,
                                               int first, int end) {
  constexpr int lanes = int(std::bit_ceil(unsigned(d / 8))), at_once = flash_threads / lanes;
  static_assert(count % at_once == 0);
  // (Unsigned, to be widened without a register.)
  const unsigned id = gpu::thread().x, line = id / lanes, feature = id % lanes * 8;
  if (feature >= d) return;
  const T* from = x.data + int64_t(unsigned(first) + line) * x.step + feature;
#pragma unroll
  for (int i = 0; i < count; i += at_once) {
    gpu::copy_async<T>(tile + ((line + i) * flash_stride<d> + feature), from,
                       first + int(line) + i < end ? 16 : 0);
    from += at_once * x.step;
  }
}

// Where a lane's row of ldmatrix begins in a tile [positions, d]: for the first operand of a
// product, and for the second one if its sums run over positions; for the second one if they run
// over features.
template <int d>
__device__ __forceinline__ int place_by_rows() {
  return gpu::lane() % 16 * flash_stride<d> + gpu::lane() / 16 * 8;
}
template <int d>
__device__ __forceinline__ int place_by_columns() {
  return (gpu::lane() % 8 + gpu::lane() / 16 * 8) * flash_stride<d> + gpu::lane() / 8 % 2 * 8;
}
// A second operand, whose words along k come as neighbours, which is how a product takes them.
template <bool over_positions, class T>
__device__ __forceinline__ gpu::Fragment second_operand(Shared<T> row) {
  gpu::Fragment f = gpu::load_matrices<over_positions>(row);
  std::swap(f.part[1], f.part[2]);
  return f;
}
// Sums of a product, rounded, as the first operand of the next.
template <class T>
__device__ __forceinline__ gpu::Fragment as_operand(const float (&sum)[2][4]) {
  gpu::Fragment f;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    f.part[i] = gpu::round_pair<T>(sum[i / 2][i % 2 * 2], sum[i / 2][i % 2 * 2 + 1]);
  return f;
}

}  // namespace detail

}  // namespace mixtape::kernels::cuda
