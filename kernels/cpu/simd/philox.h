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
constexpr int long_lanes = vector_bytes / 8, int_lanes = vector_bytes / 4;

// The products of the lower halves of 64-bit lanes.
MIXTAPE_ALWAYS_INLINE Longs product(Longs a, uint32_t b) {
#ifdef __AVX512F__
  return reinterpret_cast<Longs>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<Longs>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#elif defined(__aarch64__)
  return Longs(vmull_n_u32(vmovn_u64(a), b));
#else
  return (a & 0xffffffffu) * uint64_t{b};
#endif
}

// Philox::bits of one block per 64-bit lane. The words are the lower halves of lanes; the higher
// ones, on which no product depends, hold anything.
struct SomeBlocks {
  Longs c[4] = {};

  template <int... i>
  MIXTAPE_ALWAYS_INLINE SomeBlocks(uint64_t first, std::integer_sequence<int, i...>) {
    c[0] = Longs{uint64_t{i}...} + first;
    c[1] = c[0] >> 32;
  }
  MIXTAPE_ALWAYS_INLINE void round(Longs key0, Longs key1) {
    const Longs a = product(c[0], 0xD2511F53u), b = product(c[2], 0xCD9E8D57u);
    c[0] = (b >> 32) ^ c[1] ^ key0;
    c[2] = (a >> 32) ^ c[3] ^ key1;
    c[1] = b;
    c[3] = a;
  }
};
template <int... i>
MIXTAPE_ALWAYS_INLINE Ints lower_halves(Longs a, Longs b, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(reinterpret_cast<Ints>(a), reinterpret_cast<Ints>(b), (2 * i)...);
}

// word[w][l]: word w of block first + l.
struct Words {
  alignas(64) uint32_t word[4][16];

  // (Two vectors of blocks at a time: while one waits for its product, the other is computed.)
  MIXTAPE_ALWAYS_INLINE Words(uint64_t seed, uint64_t first) {
    constexpr std::make_integer_sequence<int, long_lanes> lanes;
    for (uint64_t l = 0; l < 16; l += int_lanes) {
      SomeBlocks low(first + l, lanes), high(first + l + long_lanes, lanes);
      Longs key0 = Longs{} + static_cast<uint32_t>(seed), key1 = Longs{} + (seed >> 32);
      for (int round = 0; round < 10; ++round) {
        low.round(key0, key1);
        high.round(key0, key1);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
      }
      for (int w = 0; w < 4; ++w) {
        const Ints both =
            lower_halves(low.c[w], high.c[w], std::make_integer_sequence<int, int_lanes>());
        std::memcpy(&word[w][l], &both, sizeof both);
      }
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
