#pragma once
// Philox in vectors: sixteen blocks, one per lane, make 64 numbers at a time.

#include <cstring>

#include "core/philox.h"
#include "kernels/cpu/simd/vec.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
namespace philox {

using Longs __attribute__((vector_size(vector_bytes))) = uint64_t;
using Ints = detail::Words;
using HalfInts __attribute__((vector_size(vector_bytes / 2))) = uint32_t;
constexpr int long_lanes = vector_bytes / 8, int_lanes = vector_bytes / 4;

// Multiplies 32-bit numbers in 64-bit lanes.
MIXTAPE_ALWAYS_INLINE Longs product(Longs a, Longs b) {
#ifdef __AVX512F__
  return reinterpret_cast<Longs>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__aarch64__)
  return Longs(vmull_u32(vmovn_u64(a), vmovn_u64(b)));
#else
  return a * b;
#endif
}

// Philox::bits of one block per 64-bit lane.
MIXTAPE_ALWAYS_INLINE void some_blocks(uint64_t seed, uint64_t first, HalfInts (&words)[4]) {
  Longs block;
  for (int i = 0; i < long_lanes; ++i) block[i] = first + static_cast<uint64_t>(i);
  const Longs low = Longs{} + 0xffffffffu;
  Longs c0 = block & low, c1 = block >> 32, c2 = {}, c3 = {};
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const Longs a = product(c0, Longs{} + 0xD2511F53u), b = product(c2, Longs{} + 0xCD9E8D57u);
    c0 = (b >> 32) ^ c1 ^ uint64_t { key0 };
    c2 = (a >> 32) ^ c3 ^ uint64_t { key1 };
    c1 = b & low;
    c3 = a & low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const Longs c[] = {c0, c1, c2, c3};
  for (int w = 0; w < 4; ++w) words[w] = __builtin_convertvector(c[w], HalfInts);
}

// word[w][l]: word w of block first + l.
struct Words {
  alignas(64) uint32_t word[4][16];

  MIXTAPE_ALWAYS_INLINE Words(uint64_t seed, uint64_t first) {
    HalfInts part[4];
    for (uint64_t l = 0; l < 16; l += long_lanes) {
      some_blocks(seed, first + l, part);
      for (int w = 0; w < 4; ++w) std::memcpy(&word[w][l], &part[w], sizeof part[w]);
    }
  }
};

// Interleaves groups of `length` lanes from the lower or the higher halves of a and b.
template <int length, bool higher, int... i>
MIXTAPE_ALWAYS_INLINE Ints interleave_half(Ints a, Ints b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(a, b,
                                 (higher * int_lanes / 2 + i / (2 * length) * length + i % length +
                                  i / length % 2 * int_lanes)...);
}

// out[4 l + w] = in[w][l]: from words of blocks to the order of elements.
template <class T>
MIXTAPE_ALWAYS_INLINE void interleave(const T (&in)[4][16], T* out) {
  if constexpr (sizeof(T) == 4) {
    constexpr std::make_integer_sequence<int, int_lanes> lanes;
    for (int l = 0; l < 16; l += int_lanes, out += 4 * int_lanes) {
      Ints w[4];
      for (int i = 0; i < 4; ++i) std::memcpy(&w[i], &in[i][l], sizeof w[i]);
      const Ints ab[] = {interleave_half<1, false>(w[0], w[1], lanes),
                         interleave_half<1, true>(w[0], w[1], lanes)};
      const Ints cd[] = {interleave_half<1, false>(w[2], w[3], lanes),
                         interleave_half<1, true>(w[2], w[3], lanes)};
      for (int h = 0; h < 2; ++h) {
        const Ints both[] = {interleave_half<2, false>(ab[h], cd[h], lanes),
                             interleave_half<2, true>(ab[h], cd[h], lanes)};
        std::memcpy(out + 2 * int_lanes * h, both, sizeof both);
      }
    }
  } else {
    for (int l = 0; l < 16; ++l)
      for (int w = 0; w < 4; ++w) out[4 * l + w] = in[w][l];
  }
}

}  // namespace philox
}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
