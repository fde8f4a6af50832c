#pragma once
// Counts of numbers by exponent, a vector at a time. A number becomes a word with one bit, which
// says how far its exponent is from the largest; words are added for each bit by itself, in planes
// of binary digits (Klarqvist, Mula and Lemire 2019: positional population counts).

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "kernels/cpu/loops/chunks.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
namespace detail {

#ifdef __AVX512F__
MIXTAPE_ALWAYS_INLINE Words larger(Words a, Words b) {
  return Words(_mm512_maskz_max_epu32(all_lanes, __m512i(a), __m512i(b)));
}
// 2^k, and 0 from k = 32 on.
MIXTAPE_ALWAYS_INLINE Words power_of_two(Words k) {
  return Words(_mm512_maskz_sllv_epi32(all_lanes, __m512i(Words{} + 1), __m512i(k)));
}
// Both digits of a + b + c, for each bit.
MIXTAPE_ALWAYS_INLINE Words low_digit(Words a, Words b, Words c) {
  return Words(_mm512_ternarylogic_epi32(__m512i(a), __m512i(b), __m512i(c), 0x96));
}
MIXTAPE_ALWAYS_INLINE Words high_digit(Words a, Words b, Words c) {
  return Words(_mm512_ternarylogic_epi32(__m512i(a), __m512i(b), __m512i(c), 0xe8));
}
#else
MIXTAPE_ALWAYS_INLINE Words larger(Words a, Words b) {
#ifdef __AVX2__
  return Words(_mm256_max_epu32(__m256i(a), __m256i(b)));
#else
  return a > b ? a : b;
#endif
}
MIXTAPE_ALWAYS_INLINE Words power_of_two(Words k) {
#ifdef __AVX2__
  return Words(_mm256_sllv_epi32(__m256i(Words{} + 1), __m256i(k)));
#else
  return (Words{} + 1) << (k & 31) & Words(k < 32);
#endif
}
MIXTAPE_ALWAYS_INLINE Words low_digit(Words a, Words b, Words c) { return a ^ b ^ c; }
MIXTAPE_ALWAYS_INLINE Words high_digit(Words a, Words b, Words c) {
  return (a & b) | ((a ^ b) & c);
}
#endif

// Adds 2^level words, next() each, to the lowest planes; the result has the weight 2^level.
template <int level, class Next>
MIXTAPE_ALWAYS_INLINE Words carry(Words* planes, const Next& next) {
  if constexpr (level == 0) {
    return next();
  } else {
    const Words a = carry<level - 1>(planes, next), b = carry<level - 1>(planes, next),
                c = std::exchange(planes[level - 1], low_digit(a, b, planes[level - 1]));
    return high_digit(a, b, c);
  }
}
// Adds to each lane those of the others.
template <int distance>
MIXTAPE_ALWAYS_INLINE void add_lanes(Words* planes, int& digits) {
  constexpr std::make_integer_sequence<int, Vec<float>::width> lanes;
  Words c = {};
  for (int k = 0; k < digits; ++k) {
    const Vec<float> x(reinterpret_cast<Vec<float>::Vector>(planes[k]));
    const Words a = planes[k], b = reinterpret_cast<Words>(swapped<distance>(x, lanes).v);
    planes[k] = low_digit(a, b, c);
    c = high_digit(a, b, c);
  }
  planes[digits++] = c;
  if constexpr (distance > 1) add_lanes<distance / 2>(planes, digits);
}

}  // namespace detail

// The elements of a chunk, by the exponent fields that they have in f32.
template <class S>
class Exponents {
 public:
  Exponents(const S* g, int64_t n)
      : g_(g), left_(n), blocks_(ceil_div(n, block)), digits_(std::bit_width(blocks_ << tree)) {
    std::copy(g + int64_t(blocks_ - 1) * block, g + n, last_);
  }

  // Adds their numbers to `total`: 32 exponents at a time, at first those up to a few powers of two
  // above the first block, then those below, then those above. Zeros are what is left.
  void add_to(int32_t* total) {
    const int guess = std::min(search(0, 1).largest + 4, 255);
    const int largest = count(guess, 0, total);
    if (left_ > 0) count(largest, guess, total);
    if (left_ > 0) add(total[0], left_);
  }

 private:
  using Words = detail::Words;
  static constexpr int64_t width = Vec<float>::width;
  static constexpr int tree = 4;  // levels
  static constexpr int64_t block = width << tree;
  static constexpr int most_digits = std::bit_width(uint64_t(Chunks::length / width)),
                       most_planes = most_digits + std::bit_width(uint64_t(width));

  // The last one is filled up with zeros.
  const S* at(uint64_t i) const { return i + 1 < blocks_ ? g_ + int64_t(i) * block : last_; }
  // An exponent field, and below it the rest of |x|.
  MIXTAPE_ALWAYS_INLINE static Words magnitudes(const S* p) {
    const auto bits = reinterpret_cast<Words>(load<S, float>(p).v);
    return bits + bits;
  }
  static void add(int32_t& total, int64_t n) {
    std::atomic_ref(total).fetch_add(int32_t(n), std::memory_order_relaxed);
  }

  struct Found {
    int below, largest;  // the largest exponent up to `limit`, and that of all
  };
  Found search(int limit, uint64_t blocks) const {
    const uint32_t beyond = uint32_t(255 - limit) << 24;  // larger ones wrap
    Words below = {}, all = {};
    for (uint64_t i = 0; i < blocks; ++i)
      for (const S *p = at(i), *const end = p + block; p < end; p += width) {
        const Words x = magnitudes(p);
        below = detail::larger(below, x + beyond);
        all = detail::larger(all, x);
      }
    uint32_t most = beyond, largest = 0;
    for (int i = 0; i < width; ++i) {
      most = std::max(most, below[i]);
      largest = std::max(largest, all[i]);
    }
    return {int((most - beyond) >> 24), int(largest >> 24)};
  }

  // Counts exponents from `top` down to `end` + 1. Returns the largest of all, if some are left.
  int count(int top, int end, int32_t* total) {
    int largest = 0;
    while (top > end) {
      count_window(top, end, total);
      if (left_ == 0) break;
      const Found found = search(std::max(top - 32, 0), blocks_);
      top = found.below;
      largest = found.largest;
    }
    return largest;
  }
  void count_window(int top, int end, int32_t* total) {
    Words sums[most_digits] = {};
    const uint32_t first = uint32_t(top) << 24 | 0xffffff;
    for (uint64_t i = 0; i < blocks_; ++i) {
      const S* p = at(i);
      Words c = detail::carry<tree>(sums, [&] {
        return detail::power_of_two((first - magnitudes(std::exchange(p, p + width))) >> 24);
      });
#pragma GCC unroll 16
      for (int k = tree; k < most_digits; ++k) c &= std::exchange(sums[k], sums[k] ^ c);
    }
    Words planes[most_planes];  // apart from the sums, which stay in registers
    std::copy(sums, sums + most_digits, planes);
    int digits = digits_;
    detail::add_lanes<width / 2>(planes, digits);
    uint32_t counts[32] = {};
    for (int k = 0; k < digits; ++k)
      for (int bit = 0; bit < 32; ++bit) counts[bit] += (planes[k][0] >> bit & 1) << k;
    for (int e = top; e > std::max(top - 32, end); --e)
      if (const uint32_t n = counts[top - e]; n > 0) {
        add(total[e], n);
        left_ -= n;
      }
  }

  const S* const g_;
  int64_t left_;  // elements without a count
  const uint64_t blocks_;
  const int digits_;  // of a count in a lane
  S last_[block] = {};
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
