#pragma once
// The functions of special.h for Vecs, and erfc. Those of float are computed in double, in halves.

#include "kernels/common/special.h"
#include "kernels/cpu/simd/simd_binary.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// f(x...) of doubles; of floats in halves, rounded once.
template <class F, std::same_as<Vec<double>>... X>
MIXTAPE_ALWAYS_INLINE Vec<double> in_double(F f, X... x) {
  return f(x...);
}
template <class F, std::same_as<Vec<float>>... X>
MIXTAPE_ALWAYS_INLINE Vec<float> in_double(F f, X... x) {
  const auto of_halves = [&](auto... from) {
    return __builtin_convertvector(
        f(Vec<double>(__builtin_convertvector(from, detail::Doubles))...).v, detail::HalfFloats);
  };
  return detail::joined(of_halves(detail::low(x)...), of_halves(detail::high(x)...));
}

// exp(-a^2) times a function that varies little, as in normal().
MIXTAPE_ALWAYS_INLINE Vec<float> erfc(Vec<float> x) {
  const Vec<float> tail = in_double(
      [](Vec<double> of) {
        const Vec<double> a = smaller(Vec<double>(10.25), of), b = a * 1.4142135623730951;
        return detail::exp2_series(a * a * -1.4426950408889634) *  // 1 / ln 2
               detail::polynomial((b - 4.0) / (b + 4.0), -1.305864588474972e-4,
                                  -3.3568054122332103e-4, 1.3155254650118117e-3,
                                  1.0051216481310465e-3, -1.6995831157890988e-2,
                                  6.173099364718204e-2, -0.14341348653644698, 0.24875840353737488,
                                  -0.34079548231282364, 0.18882128429704342);
      },
      abs(x));
  return select(x < 0.0f, 2.0f - tail, tail);
}

MIXTAPE_ALWAYS_INLINE Vec<double> hypot(Vec<double> x, Vec<double> y) {
  return special::hypot(x, y);
}
MIXTAPE_ALWAYS_INLINE Vec<float> hypot(Vec<float> x, Vec<float> y) {
  return in_double([](Vec<double> a, Vec<double> b) { return hypot(a, b); }, x, y);
}
MIXTAPE_ALWAYS_INLINE Vec<double> digamma(Vec<double> x) { return special::digamma(x); }
MIXTAPE_ALWAYS_INLINE Vec<double> trigamma(Vec<double> x) { return special::trigamma(x); }
MIXTAPE_ALWAYS_INLINE Vec<double> bessel_i0(Vec<double> x) { return special::bessel_i<0>(x); }
MIXTAPE_ALWAYS_INLINE Vec<double> bessel_i1(Vec<double> x) { return special::bessel_i<1>(x); }
MIXTAPE_ALWAYS_INLINE Vec<double> erfinv(Vec<double> x) { return special::erfinv(x); }
MIXTAPE_ALWAYS_INLINE Vec<double> lgamma(Vec<double> x) {
  return detail::each(x, [](double a) { return math::lgamma(a); });
}
MIXTAPE_ALWAYS_INLINE Vec<float> digamma(Vec<float> x) {
  return in_double([](Vec<double> a) { return digamma(a); }, x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> trigamma(Vec<float> x) {
  return in_double([](Vec<double> a) { return trigamma(a); }, x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> bessel_i0(Vec<float> x) {
  return in_double([](Vec<double> a) { return bessel_i0(a); }, x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> bessel_i1(Vec<float> x) {
  return in_double([](Vec<double> a) { return bessel_i1(a); }, x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> erfinv(Vec<float> x) {
  return in_double([](Vec<double> a) { return erfinv(a); }, x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> lgamma(Vec<float> x) {
  return in_double([](Vec<double> a) { return lgamma(a); }, x);
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
