#pragma once
// Mathematical functions of two Vecs. For float: atan2 by a polynomial; pow and fmod in double, so
// that pow is accurate to half an ulp and fmod exact. Special lanes (infinities and NaN) are
// computed one by one, and so is all of double.

#include "kernels/cpu/simd/simd.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// The angle of the point (x, y).
MIXTAPE_ALWAYS_INLINE Vec<float> atan2(Vec<float> y, Vec<float> x) {
  const Vec<float> ax = abs(x), ay = abs(y), infinity = __builtin_inff();
  const Mask<float> steep = ay > ax, left{detail::bits(x) < 0};  // -0 is on the left
  const Vec<float> small = select(steep, ax, ay), large = select(steep, ay, ax);
  const Vec<float> ratio =
      select(large == 0.0f, 0.0f, select(small == infinity, 1.0f, small / large));
  const Vec<float> p = detail::small_atan(ratio);
  const Vec<float> first = select(steep, (0.5f * detail::pi - p) + 0.5f * detail::pi_low, p);
  const Vec<float> angle = select(left, (detail::pi - first) + detail::pi_low, first);
  return select((x != x) | (y != y), x + y, copysign(angle, y));
}

namespace detail {

// f(a, b) in double, in two halves, for `regular` lanes; exact(a, b) for the others.
template <class F, class G>
MIXTAPE_ALWAYS_INLINE Vec<float> in_double(Vec<float> a, Vec<float> b, Mask<float> regular, F f,
                                           G exact) {
  const Vec<float> x = select(regular, a, Vec<float>(1.0f)),
                   y = select(regular, b, Vec<float>(1.0f));
  const auto of_half = [&](HalfFloats from_x, HalfFloats from_y) {
    const Vec<double> z = f(Vec<double>(__builtin_convertvector(from_x, Doubles)),
                            Vec<double>(__builtin_convertvector(from_y, Doubles)));
    return __builtin_convertvector(z.v, HalfFloats);
  };
  const Vec<float> c = joined(of_half(low(x), low(y)), of_half(high(x), high(y)));
  if (any(!regular)) [[unlikely]]
    return where(!regular, exact, c, a, b);
  return c;
}

// log2(x) for x > 0: x = 2^n m with sqrt(1/2) <= m < sqrt(2), and log(m) = 2 atanh(s) by its series
// in s = (m - 1) / (m + 1).
MIXTAPE_ALWAYS_INLINE Vec<double> log2_series(Vec<double> x) {
  const Bits<double> base = Bits<double>{} + 0x3fe6a09e667f3bcd;  // sqrt(1/2)
  const Bits<double> offset = bits(x) - base;
  const Vec<double> n = from_bits<double>((offset >> 52) + bits(magic_lanes())) - whole_magic;
  const Vec<double> m = from_bits<double>((offset & 0xfffffffffffff) + base);
  const Vec<double> s = (m - 1.0) / (m + 1.0);
  const Vec<double> series =
      polynomial(s * s, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0);
  return fma(s * 2.8853900817779268, series, n);  // 2 / ln 2
}
// 2^t for |t| <= 300, by the series of e^(r ln 2) with |r| <= 1/2.
MIXTAPE_ALWAYS_INLINE Vec<double> exp2_series(Vec<double> t) {
  const Vec<double> shifted = t + whole_magic,
                    z = (t - (shifted - whole_magic)) * 0.6931471805599453;
  const Bits<double> n = bits(shifted) - bits(magic_lanes());
  return from_bits<double>((n + 1023) << 52) * polynomial(z, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                                                          1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6,
                                                          0.5, 1.0, 1.0);
}

}  // namespace detail

// |x|^y, with the sign and the NaN that a negative x implies.
MIXTAPE_ALWAYS_INLINE Vec<float> pow(Vec<float> x, Vec<float> y) {
  const Vec<float> infinity = __builtin_inff(), ax = abs(x);
  const Vec<float> positive = detail::in_double(
      ax, y, (ax < infinity) & (abs(y) < infinity),
      [](Vec<double> a, Vec<double> b) {
        const Vec<double> t = b * select(a == 0.0, -1e300, detail::log2_series(a));
        return detail::exp2_series(select(t > 300.0, 300.0, select(t < -300.0, -300.0, t)));
      },
      [](float a, float b) { return std::pow(a, b); });
  const Mask<float> whole = trunc(y) == y, odd = whole & (trunc(y * 0.5f) * 2.0f != y);
  const Mask<float> none = (x < 0.0f) & (ax < infinity) & !whole, minus{detail::bits(x) < 0};
  return select(none, __builtin_nanf(""), select(minus & odd, -positive, positive));
}
// The remainder of x / y toward zero. Below a quotient of 2^28, double computes it exactly.
MIXTAPE_ALWAYS_INLINE Vec<float> fmod(Vec<float> x, Vec<float> y) {
  const Mask<float> regular = (abs(x) < 0x1p28f * abs(y)) & (abs(y) < __builtin_inff());
  const Vec<float> r = detail::in_double(
      x, y, regular, [](Vec<double> a, Vec<double> b) { return a - trunc(a / b) * b; },
      [](float a, float b) { return std::fmod(a, b); });
  return copysign(r, x);
}

MIXTAPE_ALWAYS_INLINE Vec<double> atan2(Vec<double> y, Vec<double> x) {
  return detail::each(y, x, [](double a, double b) { return std::atan2(a, b); });
}
MIXTAPE_ALWAYS_INLINE Vec<double> pow(Vec<double> x, Vec<double> y) {
  return detail::each(x, y, [](double a, double b) { return std::pow(a, b); });
}
MIXTAPE_ALWAYS_INLINE Vec<double> fmod(Vec<double> x, Vec<double> y) {
  return detail::each(x, y, [](double a, double b) { return std::fmod(a, b); });
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
