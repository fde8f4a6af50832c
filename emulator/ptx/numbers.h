#pragma once
// Numbers of 16 bits, and rounding in a direction.

#include <bit>
#include <cmath>
#include <cstdint>

namespace mixtape::ptx {

struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

inline float widen(F16 x) { return float(std::bit_cast<_Float16>(x.bits)); }
inline float widen(BF16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

enum class Round { None, Near, Zero, Down, Up };
// Rounds `exact` in a direction: `near`, the closest number, or the next one in that direction.
template <class D, class S>
D directed(D near, S exact, Round r) {
  using Q = __float128;
  const Q is = near, should = exact;
  if (is == should || r <= Round::Near || near != near) return near;
  const bool up = r == Round::Up || (r == Round::Zero && should < 0);
  if (up == (is > should)) return near;
  return std::nextafter(near, up ? D(INFINITY) : D(-INFINITY));
}

}  // namespace mixtape::ptx
