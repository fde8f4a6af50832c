#pragma once
// f16 and bf16 as storage, for arithmetic in float: correctly rounded conversions (nearest even;
// subnormals, infinities and NaN kept) in integer code, the same bits on every compiler and device.

#include <bit>
#include <cstdint>

#include "core/cxx20.h"

#ifdef __CUDACC__
#define MIXTAPE_HD __host__ __device__
#else
#define MIXTAPE_HD
#endif

namespace mixtape {

struct Half {  // IEEE binary16: 1 sign, 5 exponent, 10 fraction bits
  uint16_t bits = 0;

  Half() = default;
  // The nearest, ties to even; infinity from 65520 on.
  MIXTAPE_HD constexpr explicit Half(float x) : bits(round(std::bit_cast<uint32_t>(x))) {}
  // Rounded once: going through float would round twice.
  [[gnu::always_inline]] MIXTAPE_HD constexpr explicit Half(double x) : bits(round(odd_float(x))) {}
  MIXTAPE_HD constexpr operator float() const;                                    // exact
  static constexpr Half from_bits(uint16_t b) { return std::bit_cast<Half>(b); }  // `b` encodes it

  // The float nearest to x toward zero, with its last bit set if anything was lost ("round to
  // odd"): rounding that to a narrower type gives the same bits as rounding x itself.
  [[gnu::always_inline]] MIXTAPE_HD static constexpr uint32_t odd_float(double x);

 private:
  [[gnu::always_inline]] MIXTAPE_HD static constexpr uint16_t round(uint32_t f);
};

struct BFloat16 {  // the upper half of a float: f32's range with 8 bits of precision
  uint16_t bits = 0;

  BFloat16() = default;
  // The nearest, ties to even; a double is rounded once.
  MIXTAPE_HD constexpr explicit BFloat16(float x) : bits(round(std::bit_cast<uint32_t>(x))) {}
  [[gnu::always_inline]] MIXTAPE_HD constexpr explicit BFloat16(double x)
      : bits(round(Half::odd_float(x))) {}
  // Exact.
  MIXTAPE_HD constexpr operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
  // The number that `b` encodes.
  static constexpr BFloat16 from_bits(uint16_t b) { return std::bit_cast<BFloat16>(b); }

 private:
  [[gnu::always_inline]] MIXTAPE_HD static constexpr uint16_t round(uint32_t f) {
    if ((f & 0x7fffffffu) > 0x7f800000u) return uint16_t((f >> 16) | 0x40u);  // quiet NaN
    return uint16_t((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
  }
};

constexpr Half::operator float() const {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu, fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float
    const float magnitude = float(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

constexpr uint16_t Half::round(uint32_t f) {
  const uint16_t sign = uint16_t((f >> 16) & 0x8000u);
  const uint32_t x = f & 0x7fffffffu;
  if (x > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((x >> 13) & 0x3ffu));  // quiet NaN
  if (x >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
  if (x < 0x38800000u) {                      // below 2^-14: subnormal, in units of 2^-24
    if (x < 0x33000000u) return sign;         // below 2^-25: rounds to zero
    const uint32_t shift = 126u - (x >> 23);  // 14..24
    const uint32_t m = (x & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1), q = m >> shift, rest = m & ((1u << shift) - 1u);
    return uint16_t(sign | (q + ((rest > half || (rest == half && (q & 1u))) ? 1u : 0u)));
  }
  const uint32_t rebiased = x - 0x38000000u;  // exponent bias 127 -> 15
  return uint16_t(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
}

constexpr uint32_t Half::odd_float(double x) {
  const float nearest = static_cast<float>(x);
  uint32_t f = std::bit_cast<uint32_t>(nearest);
  const double back = nearest;
  if (back == x || x != x) return f;
  const bool overshot = (back < 0 ? -back : back) > (x < 0 ? -x : x);
  if (overshot) f -= 1;  // step toward zero (from infinity to the largest float, too)
  return f | 1u;
}

}  // namespace mixtape
