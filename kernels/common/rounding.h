#pragma once
// The roundings of 16-bit parameters that have no masters.

#include <bit>

#include "core/half.h"
#include "core/philox.h"
#include "kernels/common/update.h"

namespace mixtape::kernels {

// One of the two neighbours of x in S, each with a probability by its nearness; x itself if S holds
// it; beyond the largest number, where one neighbour would be infinity, the nearest. `random` are
// 32 uniform bits: |x|, in units of the last place, plus these as a fraction is rounded down.
// (Without branches, so that compilers vectorise it.)
template <class S>
MIXTAPE_HD S round_stochastic(float x, uint32_t random) {
  constexpr bool is_f16 = std::is_same_v<S, Half>;
  constexpr uint32_t infinity = is_f16 ? 0x7c00u : 0x7f80u, nan = is_f16 ? 0x7e00u : 0x7fc0u;
  const uint32_t f = std::bit_cast<uint32_t>(x), a = f & 0x7fffffffu;
  uint32_t q;
  if constexpr (is_f16) {
    const uint32_t normal = (a - 0x38000000u + (random >> 19)) >> 13;  // exponent bias 127 -> 15
    const bool is_subnormal = a < 0x38800000u;                         // below 2^-14
    const float units = is_subnormal ? std::bit_cast<float>(a) * 0x1p24f : 0;
    const int whole = int(units);
    const bool up = Philox::uniform(random) < units - float(whole);
    q = is_subnormal ? uint32_t(whole) + up : normal;
  } else {
    q = (a + (random >> 16)) >> 16;
  }
  constexpr uint32_t end = is_f16 ? 0x477ff000u : 0x7f7f8000u;  // from here infinity is nearest
  q = q < infinity ? q : infinity - 1;
  q = a < end ? q : infinity;
  q = a > 0x7f800000u ? nan : q;
  return std::bit_cast<S>(uint16_t((f >> 16 & 0x8000u) | q));
}

// The random bits of state k, out of those for all states of an element. (bf16 takes the upper
// half.)
MIXTAPE_HD inline uint32_t bits_of_state(uint32_t random, int k) {
  return k % 2 ? random << 16 : random;
}

// x as a sum of two numbers of type S. Both x and the sum round to the first.
template <class S>
struct Compensated {
  S value, rest;

  MIXTAPE_HD explicit Compensated(float x) : value(x), rest(0.0f) {
    const float lost = x - float(value);
    rest = S(lost - lost == 0 ? lost : 0.0f);  // 0 beside infinity or NaN
    rest.bits = nearer(rest.bits, S(sum()).bits != value.bits);
  }
  // The bits of a rest or, if it leads to another number, of the next number toward 0. (It may, if
  // almost half a unit was rounded to half a unit.)
  MIXTAPE_HD static constexpr uint16_t nearer(uint16_t bits, bool leads_on) {
    return uint16_t(bits - (leads_on && (bits & 0x7fff) != 0));
  }
  MIXTAPE_HD Compensated(S v, S r) : value(v), rest(r) {}
  MIXTAPE_HD float sum() const { return float(value) + float(rest); }
};

}  // namespace mixtape::kernels
