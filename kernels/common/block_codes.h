#pragma once
// 8-bit optimizer states: a code for each element and an f32 scale for each block of 256. The
// largest |x| of a block gets the largest code, so that an outlier costs precision in its block
// only.

#include <array>

#include "core/float8.h"
#include "kernels/common/scalar.h"
#include "kernels/common/update.h"

namespace mixtape::kernels {

// The dynamic code of Dettmers et al. 2022 (8-bit optimizers via block-wise quantization), as
// bitsandbytes' create_dynamic_map(): 0, 1, and the centres of steps in seven decades from 1e-7 to
// 1, each with twice as many steps as the one below. States that are never negative have twice as
// many steps.
template <bool nonnegative>
struct DynamicCode {
  static constexpr float largest = 1;

  // The nearest code as a number. |x| <= 1, except for rounding. V is float or a vector of it.
  template <class V>
  MIXTAPE_HD static V nearest(V x) {
    const V a = abs(x);
    V slope(0.0f), offset(0.0f), last(0.0f), base(0.0f);
    for (int i = 0; i < 8; ++i) {
      const Decade d = decade(i);
      const auto reached = a >= V(d.from);
      slope = select(reached, V(d.slope), slope);
      offset = select(reached, V(d.offset), offset);
      last = select(reached, V(d.last), last);
      base = select(reached, V(float(d.base)), base);
    }
    V step = fma(a, slope, -offset);
    step = select(step > V(0.0f), step, V(0.0f));
    const V m = base + trunc(select(step < last, step, last));
    if constexpr (nonnegative) return m;
    return V(127.0f) + select(x < V(0.0f), -select(m < V(127.0f), m, V(127.0f)), m);
  }
  MIXTAPE_HD static uint8_t encode(float x) { return uint8_t(nearest(x)); }
  MIXTAPE_HD static float decode(uint8_t code) {
    const int signed_m = nonnegative ? code : int(code) - 127,
              m = signed_m < 0 ? -signed_m : signed_m;
    float low = 0, width = 0;
    int base = 0;
    for (int i = 0; i < 8; ++i) {
      const Decade d = decade(i);
      low = m >= d.base ? d.low : low;
      width = m >= d.base ? d.width : width;
      base = m >= d.base ? d.base : base;
    }
    const float centre = fma(float(2 * (m - base) + 1), width, low);
    return signed_m < 0 ? -centre : centre;
  }

 private:
  // Values low + (2 j + 1) width with codes base + j; `from` is midway to the value below them.
  struct Decade {
    float from, slope, offset, last, low, width;
    int base;
  };
  MIXTAPE_HD static constexpr Decade decade(int i) {
    constexpr double least[] = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1};
    const int steps = (nonnegative ? 2 : 1) << i;
    const double low = least[i], width = i < 7 ? 4.5 * low / steps : 0;
    const double below = i > 0 ? low - 9 * least[i - 1] / steps : 0;
    return {float((below + low + width) / 2),
            i < 7 ? float(0.5 / width) : 0,
            i < 7 ? float(steps / 9.0) : 0,
            i < 7 ? float(steps - 1) : 0,
            float(low),
            float(width),
            steps - nonnegative};
  }
};

// e4m3, as in torchao's 8-bit optimizers.
struct E4M3Code {
  static constexpr float largest = 448;
  MIXTAPE_HD static uint8_t encode(float x) {  // beyond the largest, that
    return F8E4M3(x > largest ? largest : x < -largest ? -largest : x).bits;
  }
  MIXTAPE_HD static constexpr float decode(uint8_t code) {
    return float(std::bit_cast<F8E4M3>(code));
  }
};

// A bit for each state of an optimizer that is never negative.
template <class O>
inline constexpr uint32_t nonnegative_states = [] {
  uint32_t bits = 0;
  for (size_t k = 0; k < std::size(O::states); ++k) bits |= uint32_t(O::states[k].nonnegative) << k;
  return bits;
}();

// Calls f.operator()<Code, nonnegative>().
template <class F>
MIXTAPE_HD void visit_code(StateCode code, bool nonnegative, F f) {
  if (code == StateCode::E4M3)
    nonnegative ? f.template operator()<E4M3Code, true>()
                : f.template operator()<E4M3Code, false>();
  else
    nonnegative ? f.template operator()<DynamicCode<true>, true>()
                : f.template operator()<DynamicCode<false>, false>();
}

// |x| as an integer, which orders numbers, infinity and then NaN, so that the largest of a block
// does not depend on the order of its elements.
MIXTAPE_HD inline uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

// The code of a block whose largest magnitude is `most`. An infinity becomes 2^126, a NaN makes the
// block NaN. A square other than 0 never gets code 0: only the divisor of m / (sqrt(v) + eps) would
// vanish.
template <class Code, bool nonnegative>
struct BlockCode {
  float scale, inverse;

  MIXTAPE_HD explicit BlockCode(uint32_t most) {
    const float largest = most == 0x7f800000u ? 0x1p126f : std::bit_cast<float>(most);
    const bool vanishes = largest < 0x1p-100f;
    scale = vanishes ? 0 : largest * (1 / Code::largest) + (largest - largest);
    inverse = vanishes ? 0 : Code::largest / largest;
  }
  MIXTAPE_HD uint8_t encode(float x) const { return lifted(Code::encode(x * inverse), x); }
  MIXTAPE_HD static uint8_t lifted(uint8_t code, float x) {
    return nonnegative && code == 0 && x > 0 ? 1 : code;
  }
};

}  // namespace mixtape::kernels
