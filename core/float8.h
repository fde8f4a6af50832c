#pragma once
// OCP's 8-bit floats as storage: correctly rounded conversions in integer code, like those of
// half.h, with the same bits on every compiler and device, which are also those of ml_dtypes.

#include "core/half.h"

namespace mixtape {

// 1 sign, `exponent` exponent and 7 - `exponent` fraction bits. Without infinities (e4m3fn) the
// largest code is NaN, and the one below it a number.
template <int exponent, bool infinities>
struct Float8 {
  uint8_t bits = 0;

  Float8() = default;
  // The nearest, ties to even. A number that is too large becomes infinity, or NaN without one.
  MIXTAPE_HD constexpr explicit Float8(float x) : bits(round(std::bit_cast<uint32_t>(x))) {}
  MIXTAPE_HD constexpr explicit Float8(double x) : bits(round(Half::odd_float(x))) {}
  MIXTAPE_HD constexpr operator float() const {  // exact
    const uint32_t sign = uint32_t(bits & 0x80) << 24, magnitude = bits & 0x7fu;
    if (magnitude >= (infinities ? infinity : 0x7fu))
      return std::bit_cast<float>(sign | 0x7f800000u | (magnitude - infinity) << dropped);
    const float subnormal = float(magnitude) * unit;
    return std::bit_cast<float>(sign |
                                (magnitude >> fraction ? (magnitude << dropped) + rebias
                                                       : std::bit_cast<uint32_t>(subnormal)));
  }

 private:
  static constexpr int fraction = 7 - exponent, dropped = 23 - fraction;
  static constexpr int bias = (1 << (exponent - 1)) - 1;
  static constexpr uint32_t rebias = uint32_t(127 - bias) << 23;
  static constexpr uint32_t infinity = 0x80u - (1u << fraction);           // all exponent bits
  static constexpr float unit = 1.0f / float(1 << (bias - 1 + fraction));  // of subnormals

  MIXTAPE_HD static constexpr uint8_t round(uint32_t f) {
    const uint32_t sign = f >> 24 & 0x80u, x = f & 0x7fffffffu;
    const uint32_t r = x - rebias;
    uint32_t q = (r + ((1u << (dropped - 1)) - 1u) + (r >> dropped & 1u)) >> dropped;
    if (x < rebias + 0x800000u) {  // subnormal: rounded by adding a number of this unit
      const float magic = unit * 0x1p23f;
      q = std::bit_cast<uint32_t>(std::bit_cast<float>(x) + magic) - std::bit_cast<uint32_t>(magic);
    }
    const uint32_t most = infinities ? infinity : 0x7fu;
    if (q > most) q = most;
    if (infinities && x > 0x7f800000u) q = infinity | 1u << (fraction - 1);  // quiet NaN
    return uint8_t(sign | q);
  }
};

// A power of two from 2^-127 to 2^127: the scale of a block. Rounds to the nearest, in the middle
// and below 2^-126 up; what is not positive becomes NaN.
struct F8E8M0 {
  uint8_t bits = 0;

  F8E8M0() = default;
  // Rounded once, as above.
  MIXTAPE_HD constexpr explicit F8E8M0(float x) : bits(round(std::bit_cast<uint32_t>(x))) {}
  MIXTAPE_HD constexpr explicit F8E8M0(double x) : bits(round(Half::odd_float(x))) {}
  MIXTAPE_HD constexpr operator float() const {  // exact
    const uint32_t f = bits == 0xff ? 0x7fc00000u : bits == 0 ? 0x400000u : uint32_t(bits) << 23;
    return std::bit_cast<float>(f);
  }

 private:
  MIXTAPE_HD static constexpr uint8_t round(uint32_t f) {
    const bool positive = f > 0 && f <= 0x7f800000u;
    const uint32_t q = f < 0x800000u ? f > 0x400000u : (f + 0x400000u) >> 23;
    return uint8_t(positive ? q : 0xffu);
  }
};

using F8E4M3 = Float8<4, false>;  // e4m3fn: up to 448, beyond 464 NaN
using F8E5M2 = Float8<5, true>;   // the upper half of an f16

}  // namespace mixtape
