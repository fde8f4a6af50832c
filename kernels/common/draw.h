#pragma once
// Random numbers in a range from random bits, the same on all devices.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/philox.h"
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {

// Dropout keeps an element if the upper 24 bits of its word are at least this number: u >= p in
// integers, since u is a multiple of 2^-24.
inline uint32_t dropout_threshold(double p) { return uint32_t(std::ceil(p * 0x1p24)); }

// An integer in [low, high): the upper half of the product of random bits and the range. With one
// word of bits, some integers are more likely than others by up to range / 2^32, so ranges from
// 2^16 on use a second word.
struct RandomInteger {
  uint64_t low, range;

  MIXTAPE_HD RandomInteger(int64_t from, int64_t to)
      : low(static_cast<uint64_t>(from)), range(static_cast<uint64_t>(to) - low) {}
  MIXTAPE_HD bool is_wide() const { return range >> 16 != 0; }
  // The Philox blocks for n first words; second words follow them.
  static uint64_t blocks(int64_t n) { return (static_cast<uint64_t>(n) + 3) / 4; }

  MIXTAPE_HD int64_t operator()(uint32_t word, uint32_t second) const {
    const uint64_t half = 0xffffffffu, r1 = range >> 32, r0 = range & half;
    const uint64_t middle = word * r0 + (second * r0 >> 32), other = second * r1 + (middle & half);
    return static_cast<int64_t>(low + word * r1 + (middle >> 32) + (other >> 32));
  }
};

// The largest T below x, which is finite.
template <class T>
MIXTAPE_ALWAYS_INLINE T largest_below(double x) {
  const T t(x);  // rounded
  if (static_cast<double>(t) < x) return t;
  if constexpr (sizeof(T) > 2) {
    return std::nextafter(t, -std::numeric_limits<T>::infinity());
  } else {
    const int b = t.bits, below = (b & 0x7fff) == 0 ? 0x8001 : b & 0x8000 ? b + 1 : b - 1;
    return T::from_bits(static_cast<uint16_t>(below));
  }
}

// A number in [low, high) that will be rounded to T. It is kept between the smallest and the
// largest T in that range, since rounding could leave it. If low equals high or no T is in between,
// it is the nearest T that is not above.
template <class T>
struct RandomReal {
  double low, width, smallest, largest;

  MIXTAPE_ALWAYS_INLINE RandomReal(double from, double to)
      : low(from), width(to - from), smallest(T(from)) {
    largest = from < to ? static_cast<double>(largest_below<T>(to)) : smallest;
    if (smallest < from) smallest = -static_cast<double>(largest_below<T>(-from));
    smallest = std::min(smallest, largest);
  }
  MIXTAPE_HD double operator()(uint32_t bits) const {
    using std::fma;
    // Rounded once, however the compiler contracts.
    const double x = fma(width, static_cast<double>(Philox::uniform_of<T>(bits)), low);
    const double above = x < smallest ? smallest : x;
    return above > largest ? largest : above;
  }
};

}  // namespace mixtape::kernels
