#pragma once
// Mathematical functions of Vec<double>: exp, log, tanh and their kin, by range reduction and a
// polynomial, within 2 ulp. (Out of line: a loop that calls one is as short as one that calls the
// library, which takes the lanes one by one.)

#include "kernels/cpu/simd/vec.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
namespace detail {

// ln 2 in two parts, the first of 32 bits.
inline constexpr double ln2 = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
// Adding it leaves the rounded integer in the low bits.
inline constexpr double whole_magic = 0x1.8p52;
MIXTAPE_ALWAYS_INLINE Vec<double> magic_lanes() { return whole_magic; }

// 2^n for a whole n that whole_magic was added to, if it is a normal number.
MIXTAPE_ALWAYS_INLINE Vec<double> power_of_two(Vec<double> shifted) {
  return from_bits<double>((bits(shifted) << 52) + (int64_t{1023} << 52));
}

// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 rest.
struct WideExponent {
  Vec<double> n, r, rest;

  MIXTAPE_ALWAYS_INLINE explicit WideExponent(Vec<double> x)
      : n(fma(x, Vec<double>(1.4426950408889634), magic_lanes()) - whole_magic),
        r(fma(n, Vec<double>(-ln2_low), fma(n, Vec<double>(-ln2), x))),
        rest(polynomial(r, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                        1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24,
                        1.0 / 6, 0.5)) {}
  MIXTAPE_ALWAYS_INLINE Vec<double> value() const {  // in two steps, as ldexp()
    const Vec<double> half = fma(n, Vec<double>(0.5), magic_lanes());
    const Vec<double> other = (n - (half - whole_magic)) + whole_magic;
    const Vec<double> power = select(n > -1076.0, power_of_two(half), Vec<double>(0.0));
    return fma(r, fma(r, rest, 1.0), 1.0) * power * power_of_two(other);
  }
  MIXTAPE_ALWAYS_INLINE Vec<double> minus_one() const {  // while 2^n is finite
    const Vec<double> power = power_of_two(n + whole_magic);
    return fma(power, fma(r * r, rest, r), power - 1.0);
  }
};

// log(x) + lost for x > 0 that is not subnormal. x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2),
// and log(1 + f) = f - s (f - series), s = f / (2 + f).
MIXTAPE_ALWAYS_INLINE Vec<double> log_of_normal(Vec<double> x, Vec<double> extra_n,
                                                Vec<double> lost) {
  using Unsigned = Vector<int64_t>::wrapping;
  constexpr int64_t base = 0x3fe6a09e667f3bcd;  // bits of sqrt(1/2)
  const Bits<double> offset = bits(x) - base;
  const auto whole = reinterpret_cast<Unsigned>(offset + (int64_t{1024} << 52)) >> 52;
  const Vec<double> n =
      from_bits<double>(reinterpret_cast<Bits<double>>(whole) + bits(magic_lanes())) -
      (whole_magic + 1024) + extra_n;
  const Vec<double> f = from_bits<double>((offset & 0xfffffffffffff) + base) - 1.0;
  const Vec<double> s = f / (f + 2.0), z = s * s, half = f * f * 0.5;
  const Vec<double> series =
      z * polynomial(z, 1.479819860511658591e-01, 1.531383769920937332e-01,
                     1.818357216161805012e-01, 2.222219843214978396e-01, 2.857142874366239149e-01,
                     3.999999999940941908e-01, 6.666666666666735130e-01);
  const Vec<double> tail = fma(s, half + series, fma(n, Vec<double>(ln2_low), lost));
  return fma(n, Vec<double>(ln2), f - (half - tail));
}
// y where 0 < x < inf, else the logarithm of what x is.
MIXTAPE_ALWAYS_INLINE Vec<double> log_or_edge(Vec<double> x, Vec<double> y) {
  const Vec<double> infinity = __builtin_inf();
  const Vec<double> edge = select(x == 0.0, -infinity, select(x < 0.0, __builtin_nan(""), x));
  return select((x > 0.0) & (x < infinity), y, edge);
}

}  // namespace detail

[[gnu::noinline]] inline Vec<double> exp(Vec<double> x) {
  return detail::WideExponent(clamp(x, -746.0, 710.0)).value();
}
[[gnu::noinline]] inline Vec<double> expm1(Vec<double> x) {
  const Vec<double> clamped = clamp(x, -50.0, 710.0);
  const detail::WideExponent e(clamped);
  // 2^1024 would overflow: beyond 2^54 the 1 makes no difference.
  return select(x == 0.0, x, select(clamped > 50.0, e.value(), e.minus_one()));
}
[[gnu::noinline]] inline Vec<double> log(Vec<double> x) {
  const Mask<double> small = x < 0x1p-1022;
  return detail::log_or_edge(x, detail::log_of_normal(select(small, x * 0x1p54, x),
                                                      select(small, Vec<double>(-54.0), 0.0), 0.0));
}
[[gnu::noinline]] inline Vec<double> log1p(Vec<double> x) {
  const Vec<double> u = x + 1.0;
  // Corrects log(u) by the rounding error of u, relative to u.
  const Vec<double> lost = select(u > x, x - (u - 1.0), 1.0 - (u - x));
  return select(x == 0.0, x, detail::log_or_edge(u, detail::log_of_normal(u, 0.0, lost / u)));
}
[[gnu::noinline]] inline Vec<double> tanh(Vec<double> x) {
  const Vec<double> t = detail::WideExponent(2.0 * smaller(Vec<double>(22.0), abs(x))).minus_one();
  return copysign(t / (t + 2.0), x);
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
