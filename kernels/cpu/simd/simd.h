#pragma once
// Mathematical functions of Vec. For float: range reduction and a polynomial (minimax, fitted for
// these intervals), within 4 ulp, and correct for infinities, NaN, subnormals and large arguments.
// For double: those of simd_double.h, and the standard library, lane by lane.

#include "kernels/common/scalar.h"
#include "kernels/cpu/simd/memory.h"
#include "kernels/cpu/simd/simd_double.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

namespace detail {

// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 rest.
struct Exponent {
  Vec<float> n, r, rest;

  MIXTAPE_ALWAYS_INLINE explicit Exponent(Vec<float> x)
      : n(fma(x, Vec<float>(1.44269504f), Vec<float>(magic)) - magic) {
    const Vec<float> high = fma(n, Vec<float>(-0x1.62e4p-1f), x);  // ln 2 in two parts, the
    set(fma(n, Vec<float>(-0x1.7f7d1cp-20f), high));               // first of 15 bits
  }
  // The exponent of 2^(x y + rest); the product is not rounded.
  MIXTAPE_ALWAYS_INLINE static Exponent of_two(Vec<float> x, Vec<float> y = 1.0f,
                                               Vec<float> rest = -0.0f) {
    Exponent e;
    e.n = fma(x, y, Vec<float>(magic)) - magic;
    e.set((fma(x, y, -e.n) + rest) * 0.693147181f);
    return e;
  }
  MIXTAPE_ALWAYS_INLINE Vec<float> value() const {
    return ldexp(fma(r, fma(r, rest, 1.0f), 1.0f), n);
  }
  MIXTAPE_ALWAYS_INLINE Vec<float> minus_one() const {  // while 2^n is finite
    const Vec<float> power = ldexp(1.0f, n);
    return fma(power, fma(r * r, rest, r), power - 1.0f);
  }

 private:
  static constexpr float magic = 0x1.8p23f;  // adding it rounds to whole numbers

  Exponent() = default;
  MIXTAPE_ALWAYS_INLINE void set(Vec<float> x) {
    r = x;
    rest = polynomial(r, 1.38145374e-3f, 8.36874650e-3f, 4.16683909e-2f, 1.66665204e-1f,
                      4.99999934e-1f);
  }
};

// x = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), for x > 0 and not subnormal;
// log(1 + f) = f - f^2 / 2 + cube.
struct Logarithm {
  Vec<float> n, f, f2, cube;

  MIXTAPE_ALWAYS_INLINE explicit Logarithm(Vec<float> x, Vec<float> extra_n = 0.0f) {
    const Words offset = reinterpret_cast<Words>(x.v) - 0x3f3504f3u;  // bits of sqrt(1/2)
    const Bits<float> whole = reinterpret_cast<Bits<float>>(offset) >> 23;
    const Vec<float> mantissa =
        reinterpret_cast<Vec<float>::Vector>((offset & 0x7fffffu) + 0x3f3504f3u);
    n = Vec<float>(__builtin_convertvector(whole, Vec<float>::Vector)) + extra_n;
    f = mantissa - 1.0f;
    f2 = f * f;
    cube = f2 * f *
           polynomial(f, 6.9716115e-2f, -1.1479734e-1f, 1.1685420e-1f, -1.2425687e-1f,
                      1.4249058e-1f, -1.6667802e-1f, 2.0000716e-1f, -2.4999997e-1f, 3.3333331e-1f);
  }
  MIXTAPE_ALWAYS_INLINE Vec<float> natural() const {
    const Vec<float> tail = cube + fma(n, Vec<float>(0x1.7f7d1cp-20f), f2 * -0.5f);
    return fma(n, Vec<float>(0x1.62e4p-1f), f + tail);
  }
  // n u + c log(1 + f), each constant in two parts, so that whole powers of the base give whole
  // numbers.
  MIXTAPE_ALWAYS_INLINE Vec<float> in_base(float u, float u_low, float c, float c_low) const {
    const Vec<float> tail = fma(f2, Vec<float>(-0.5f), cube);
    const Vec<float> y = f + tail, y_low = tail - (y - f);
    const Vec<float> z = y * c,
                     z_low = fma(y, Vec<float>(c), -z) + fma(y, Vec<float>(c_low), y_low * c);
    const Vec<float> whole = n * u, sum = whole + z;
    return sum + ((z - (sum - whole)) + fma(n, Vec<float>(u_low), z_low));
  }
};

// finish(Logarithm of x), with the special cases of every logarithm.
template <class F>
MIXTAPE_ALWAYS_INLINE Vec<float> log_with(Vec<float> x, F finish) {
  const Mask<float> small = x < 0x1p-126f;
  const Vec<float> y =
      finish(Logarithm(select(small, x * 0x1p23f, x), select(small, Vec<float>(-23.0f), 0.0f)));
  const Vec<float> infinity = __builtin_inff();
  const Vec<float> edge = select(x == 0.0f, -infinity, select(x < 0.0f, __builtin_nanf(""), x));
  return select((x > 0.0f) & (x < infinity), y, edge);
}

}  // namespace detail

MIXTAPE_ALWAYS_INLINE Vec<float> exp(Vec<float> x) {
  return detail::Exponent(clamp(x, -105.0f, 89.0f)).value();
}
MIXTAPE_ALWAYS_INLINE Vec<float> exp2(Vec<float> x) {
  return detail::Exponent::of_two(clamp(x, -152.0f, 129.0f)).value();
}

MIXTAPE_ALWAYS_INLINE Vec<float> expm1(Vec<float> x) {
  const Vec<float> clamped = clamp(x, -30.0f, 89.0f);
  const detail::Exponent e(clamped);
  // 2^128 would overflow: beyond 2^25 the 1 makes no difference.
  return select(x == 0.0f, x, select(clamped > 25.0f, e.value(), e.minus_one()));
}

// (e^a - e^-a) / 2 from t = e^a - 1, so that nothing cancels near zero.
MIXTAPE_ALWAYS_INLINE Vec<float> sinh(Vec<float> x) {
  const Vec<float> a = abs(x);
  detail::Exponent e(smaller(Vec<float>(91.0f), a));
  const Vec<float> t = e.minus_one();
  e.n = e.n - 1.0f;  // e^a may overflow although half of it does not
  return copysign(select(a > 9.0f, e.value(), 0.5f * (t + t / (t + 1.0f))), x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> cosh(Vec<float> x) {
  const Vec<float> a = abs(x);
  detail::Exponent e(smaller(Vec<float>(91.0f), a));
  e.n = e.n - 1.0f;
  const Vec<float> half = e.value();
  return half + 0.25f / half;
}

MIXTAPE_ALWAYS_INLINE Vec<float> log(Vec<float> x) {
  return detail::log_with(x, [](const detail::Logarithm& l) { return l.natural(); });
}
MIXTAPE_ALWAYS_INLINE Vec<float> log2(Vec<float> x) {
  return detail::log_with(
      x, [](const detail::Logarithm& l) { return l.in_base(1, 0, 0x1.715476p0f, 0x1.4ae0cp-26f); });
}
MIXTAPE_ALWAYS_INLINE Vec<float> log10(Vec<float> x) {
  return detail::log_with(x, [](const detail::Logarithm& l) {
    return l.in_base(0x1.344p-2f, 0x1.3509f8p-18f, 0x1.bcb7b2p-2f, -0x1.5b235ep-27f);
  });
}

MIXTAPE_ALWAYS_INLINE Vec<float> log1p(Vec<float> x) {
  const Vec<float> u = x + 1.0f;
  // Corrects log(u) by the rounding error of u, relative to u.
  const Vec<float> lost = select(u > x, x - (u - 1.0f), 1.0f - (u - x));
  const Mask<float> regular = (u > 0.0f) & (u < __builtin_inff());
  const Vec<float> y = detail::Logarithm(u).natural() + lost / u;
  const Vec<float> edge = select(u == 0.0f, Vec<float>(-__builtin_inff()),
                                 select(u < 0.0f, Vec<float>(__builtin_nanf("")), u));
  return select(regular, select(x == 0.0f, x, y), edge);
}

MIXTAPE_ALWAYS_INLINE Vec<float> tanh(Vec<float> x) {
  const Vec<float> a = abs(x);
  const Vec<float> t = detail::Exponent(2.0f * smaller(Vec<float>(10.0f), a)).minus_one();
  return copysign(t / (t + 2.0f), x);
}

// The same numbers as scalar.h's, without cases of exp and expm1 that cannot be.
MIXTAPE_ALWAYS_INLINE Shares<Vec<float>> shares(Vec<float> x) {
  const Vec<float> e = detail::Exponent(larger(Vec<float>(-104.0f), -abs(x))).value();
  const Vec<float> most = 1.0f / (1.0f + e), least = e * most;
  const Mask<float> below = x < 0.0f;
  return {select(below, least, most), select(below, most, least)};
}
MIXTAPE_ALWAYS_INLINE Bend<Vec<float>> bend(Vec<float> x) {
  const Vec<float> twice = 2.0f * smaller(Vec<float>(43.0f), abs(x));
  const detail::Exponent e(twice);
  const Vec<float> m = select(twice > 25.0f, e.value(), e.minus_one());
  const Vec<float> part = 1.0f / (m + 2.0f);
  return {copysign(m * part, x), 4.0f * part * (part * (m + 1.0f))};
}

MIXTAPE_ALWAYS_INLINE Vec<float> erf(Vec<float> x) {
  const Vec<float> a = abs(x), s = x * x;
  const Vec<float> near_zero =
      x * detail::polynomial(s, 7.8758751e-5f, -8.0168643e-4f, 5.1890874e-3f, -2.6854212e-2f,
                             1.1283595e-1f, -3.7612627e-1f, 1.1283792f);
  const Vec<float> t = smaller(Vec<float>(4.0f), a);  // log(erfc(t)) = t * polynomial
  const Vec<float> tail = t * detail::polynomial(t, 2.1661804e-7f, -3.2367546e-6f, 1.5843884e-6f,
                                                 3.3168545e-4f, -3.8355113e-3f, 2.4332306e-2f,
                                                 -1.0702251e-1f, -6.3461726e-1f, -1.1287928f);
  // (erfc is never subnormal here, so exp's steps for subnormals are left out.)
  return select(a < 1.0f, near_zero, copysign(-detail::Exponent(tail).minus_one(), x));
}

MIXTAPE_ALWAYS_INLINE Vec<float> within_tails(Vec<float> x) { return clamp(x, -40.0f, 40.0f); }

// The normal distribution at x. Below 0, the cumulative function is the density times a function
// that varies little, so it is accurate to 6 ulp, however small; beyond 14.5 it is 0 or 1.
// (bench/worklog/050)
MIXTAPE_ALWAYS_INLINE Normal<Vec<float>> normal(Vec<float> x) {
  const Vec<float> a = smaller(Vec<float>(14.5f), abs(x)), square = a * a;
  const Vec<float> lost = fma(a, a, -square), rough = detail::Exponent(-0.5f * square).value();
  const Vec<float> e = fma(rough * lost, Vec<float>(-0.5f), rough);  // exp(-a^2 / 2)
  const Vec<float> u = (a - 4.0f) / (a + 4.0f);
  const Vec<float> tail =
      e * detail::polynomial(u, -6.52843924e-5f, -1.67825215e-4f, 6.57762565e-4f, 5.02550986e-4f,
                             -8.49791735e-3f, 3.08654990e-2f, -7.17067429e-2f, 1.24379202e-1f,
                             -1.70397741e-1f, 9.44106422e-2f);
  return {select(x < 0.0f, tail, 1.0f - tail), e * 0.398942280f};
}

// k and kc are those of scalar.h over 2 ln 2, both less by a part of 1 / 28,000: k has 20 bits, so
// that the difference to a sum is exact, and that part leaves kc an error of 1e-10.
MIXTAPE_ALWAYS_INLINE Factors<Vec<float>> gelu_tanh_factors(Vec<float> x) {
  const Vec<float> k = 0x1.26ac1p0f, kc = 0x1.a5a3f4p-5f, part = 3.5735385e-5f;
  const Vec<float> a = larger(Vec<float>(-13.8f), -abs(x)), square = a * a;
  const Vec<float> sum = fma(square, kc, k), rest = fma(square, kc, k - sum);
  const Vec<float> low = fma(sum, part, fma(fma(a, a, -square), kc, rest));
  return factors(detail::Exponent::of_two(a, sum, a * low).value(), x);
}

namespace detail {

// x = n pi / 2 + r with |r| <= pi / 4, in double: n times the 33 bits of the first part of pi / 2
// is exact up to 2^20.
struct Reduced {
  HalfFloats r, n;

  MIXTAPE_ALWAYS_INLINE explicit Reduced(HalfFloats x) {
    const Vec<double> d = __builtin_convertvector(x, Doubles);
    const Vec<double> whole = (d * 0.6366197723675814 + 0x1.8p52) - 0x1.8p52;
    const Vec<double> rest = fma(whole, Vec<double>(-0x1.921fb544p0), d);
    r = __builtin_convertvector(fma(whole, Vec<double>(-0x1.0b4611a626331p-34), rest).v,
                                HalfFloats);
    n = __builtin_convertvector(whole.v, HalfFloats);
  }
};

// The sine and cosine of |r| <= pi / 4.
struct Sines {
  Vec<float> odd, even;

  MIXTAPE_ALWAYS_INLINE explicit Sines(Vec<float> r) {
    const Vec<float> s = r * r;
    odd =
        fma(r * s, polynomial(s, 2.7249314e-6f, -1.9840082e-4f, 8.3333319e-3f, -1.6666667e-1f), r);
    even = fma(s * s, polynomial(s, 2.4547437e-5f, -1.3888301e-3f, 4.1666665e-2f),
               fma(s, Vec<float>(-0.5f), 1.0f));
  }
  MIXTAPE_ALWAYS_INLINE Vec<float> sine(Words q) const {  // of r + q pi / 2
    const Vec<float> value = select(Mask<float>{(q & 1u) != 0u}, even, odd);
    return from_bits<float>(bits(value) ^ reinterpret_cast<Bits<float>>((q & 2u) << 30));
  }
};
MIXTAPE_ALWAYS_INLINE Words to_words(Vec<float> whole) {
  return reinterpret_cast<Words>(__builtin_convertvector(whole.v, Bits<float>));
}

// exact(x...) in the lanes of `which`, y in the others. Rare, so not inlined.
template <class G, class... X>
[[gnu::noinline, gnu::cold]] inline Vec<float> where(Mask<float> which, G exact, Vec<float> y,
                                                     X... x) {
  for (int i = 0; i < y.width; ++i)
    if (which[i]) y.v[i] = exact(float(x.v[i])...);
  return y;
}

// f(sines of r, q) with x = r + q pi / 2. Lanes beyond 2^20 are rare and use `exact`, one by one.
template <class F, class G>
MIXTAPE_ALWAYS_INLINE Vec<float> at_angle(Vec<float> x, F f, G exact) {
  const Mask<float> far = !(abs(x) < 0x1p20f);  // NaN, too
  const Vec<float> v = select(far, Vec<float>(0.0f), x);
  const Reduced lower(low(v)), higher(high(v));
  const Vec<float> y = f(Sines(joined(lower.r, higher.r)), to_words(joined(lower.n, higher.n)));
  if (any(far)) [[unlikely]]
    return where(far, exact, y, x);
  return y;
}

}  // namespace detail

MIXTAPE_ALWAYS_INLINE Vec<float> sin(Vec<float> x) {
  const Vec<float> y = detail::at_angle(
      x, [](const detail::Sines& s, auto q) { return s.sine(q); },
      [](float far) { return std::sin(far); });
  return select(x == 0.0f, x, y);  // keeps -0
}
MIXTAPE_ALWAYS_INLINE Vec<float> cos(Vec<float> x) {
  return detail::at_angle(
      x, [](const detail::Sines& s, auto q) { return s.sine(q + 1u); },
      [](float far) { return std::cos(far); });
}
MIXTAPE_ALWAYS_INLINE Vec<float> tan(Vec<float> x) {
  const Vec<float> y = detail::at_angle(
      x,
      [](const detail::Sines& s, auto q) {
        const Mask<float> odd{(q & 1u) != 0u};
        return select(odd, -s.even, s.odd) / select(odd, s.odd, s.even);
      },
      [](float far) { return std::tan(far); });
  return select(x == 0.0f, x, y);
}

// The cosine and sine of 2 pi v, |v| <= 2^20; the range reduction is exact.
struct Circle {
  Vec<float> cosine, sine;

  MIXTAPE_ALWAYS_INLINE explicit Circle(Vec<float> v) {
    const Vec<float> quarters = round(v * 4.0f);
    const Vec<float> r = (v - quarters * 0.25f) * 6.28318531f;
    const auto q = detail::to_words(quarters);
    const detail::Sines s(r);
    cosine = s.sine(q + 1u);
    sine = s.sine(q);
  }
};

namespace detail {

constexpr float pi = 0x1.921fb6p1f, pi_low = -0x1.777a5cp-24f;  // their sum, to 48 bits

// asin(r) for 0 <= r <= 1/2, s = r^2.
MIXTAPE_ALWAYS_INLINE Vec<float> small_asin(Vec<float> r, Vec<float> s) {
  return fma(
      r * s,
      polynomial(s, 4.21663076e-2f, 2.41795145e-2f, 4.54703756e-2f, 7.49529749e-2f, 1.66667521e-1f),
      r);
}
// atan(t) for 0 <= t <= 1.
MIXTAPE_ALWAYS_INLINE Vec<float> small_atan(Vec<float> t) {
  const Vec<float> s = t * t;
  return fma(
      t * s,
      polynomial(s, -1.79362262e-3f, 1.09146098e-2f, -3.11778542e-2f, 5.79576008e-2f,
                 -8.40345100e-2f, 1.09521858e-1f, -1.42642424e-1f, 1.99985489e-1f, -3.33332986e-1f),
      t);
}

}  // namespace detail

// Beyond 1/2, asin(a) = pi / 2 - 2 asin(sqrt((1 - a) / 2)).
MIXTAPE_ALWAYS_INLINE Vec<float> asin(Vec<float> x) {
  const Vec<float> a = abs(x);
  const Mask<float> large = a > 0.5f;
  const Vec<float> s = select(large, 0.5f - 0.5f * a, a * a);
  const Vec<float> p = detail::small_asin(select(large, sqrt(s), a), s);
  const Vec<float> rest = (0.5f * detail::pi - 2.0f * p) + 0.5f * detail::pi_low;
  return copysign(select(large, rest, p), x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> acos(Vec<float> x) {
  const Vec<float> a = abs(x);
  const Mask<float> large = a > 0.5f;
  const Vec<float> s = select(large, 0.5f - 0.5f * a, a * a);
  const Vec<float> p = detail::small_asin(select(large, sqrt(s), a), s);
  const Vec<float> at_end = select(x < 0.0f, (detail::pi - 2.0f * p) + detail::pi_low, 2.0f * p);
  return select(large, at_end, (0.5f * detail::pi - copysign(p, x)) + 0.5f * detail::pi_low);
}

MIXTAPE_ALWAYS_INLINE Vec<float> atan(Vec<float> x) {
  const Vec<float> a = abs(x);
  const Mask<float> large = a > 1.0f;
  const Vec<float> p = detail::small_atan(select(large, 1.0f / a, a));
  const Vec<float> rest = (0.5f * detail::pi - p) + 0.5f * detail::pi_low;
  return copysign(select(large, rest, p), x);
}

// Inverse hyperbolic functions by log1p, so that nothing cancels near zero. (The square is left out
// where it may overflow and counts for no more than a factor of 2.)
MIXTAPE_ALWAYS_INLINE Vec<float> asinh(Vec<float> x) {
  const Vec<float> a = abs(x);
  const Mask<float> large = a > 0x1p60f;
  const Vec<float> s = select(large, 0.0f, a), s2 = s * s;
  const Vec<float> y = log1p(a + s2 / (1.0f + sqrt(s2 + 1.0f)));
  return copysign(select(large, y + 0.693147181f, y), x);
}
MIXTAPE_ALWAYS_INLINE Vec<float> acosh(Vec<float> x) {
  const Mask<float> large = x > 0x1p60f;
  const Vec<float> t = x - 1.0f, s = select(large, 0.0f, t);
  const Vec<float> y = log1p(t + sqrt(fma(s, s, s + s)));
  return select(x < 1.0f, __builtin_nanf(""), select(large, y + 0.693147181f, y));
}
MIXTAPE_ALWAYS_INLINE Vec<float> atanh(Vec<float> x) {
  const Vec<float> a = abs(x);
  return copysign(0.5f * log1p((a + a) / (1.0f - a)), x);
}

// Other functions of double go to the standard library, one lane at a time.
#define MIXTAPE_LANE_BY_LANE(f)                                 \
  MIXTAPE_ALWAYS_INLINE Vec<double> f(Vec<double> x) {          \
    return detail::each(x, [](double a) { return std::f(a); }); \
  }
MIXTAPE_LANE_BY_LANE(exp2)
MIXTAPE_LANE_BY_LANE(log2)
MIXTAPE_LANE_BY_LANE(log10)
MIXTAPE_LANE_BY_LANE(sinh)
MIXTAPE_LANE_BY_LANE(cosh)
MIXTAPE_LANE_BY_LANE(asinh)
MIXTAPE_LANE_BY_LANE(acosh)
MIXTAPE_LANE_BY_LANE(atanh)
MIXTAPE_LANE_BY_LANE(erf)
MIXTAPE_LANE_BY_LANE(erfc)
MIXTAPE_LANE_BY_LANE(sin)
MIXTAPE_LANE_BY_LANE(cos)
MIXTAPE_LANE_BY_LANE(tan)
MIXTAPE_LANE_BY_LANE(asin)
MIXTAPE_LANE_BY_LANE(acos)
MIXTAPE_LANE_BY_LANE(atan)
#undef MIXTAPE_LANE_BY_LANE

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
