#pragma once
// Functions of lanes. For float: range reduction and a polynomial (minimax, fitted for these
// intervals), within 4 ulp, and right at infinities, NaN, subnormals and large arguments. For
// double: the standard library, lane by lane.

#include "kernels/cpu/lanes.h"

namespace mixtape::kernels::cpu {

namespace detail {

// x = n ln 2 + r with |r| <= ln 2 / 2; q(r) = (e^r - 1 - r) / r^2; scale() multiplies by 2^n in two
// steps, so that results fade into subnormals and overflow to infinity.
struct Exponent {
  Lanes<float> r, q;
  Words16 n;

  [[gnu::always_inline]] explicit Exponent(Lanes<float> x) {
    const float magic = 0x1.8p23f;  // adding it leaves the rounded integer in the low bits
    const Lanes<float> shifted = fma(x, Lanes<float>(1.44269504f), Lanes<float>(magic));
    const Lanes<float> whole = shifted - magic;
    n = reinterpret_cast<Words16>(shifted.v) - 0x4b400000u;
    r = fma(whole, Lanes<float>(-0x1.62e4p-1f), x);  // ln 2 in two parts, the first of 15 bits
    r = fma(whole, Lanes<float>(-0x1.7f7d1cp-20f), r);
    q = polynomial(r, 1.9891080e-4f, 1.3933731e-3f, 8.3333108e-3f, 4.1666464e-2f, 1.6666667e-1f,
                   0.5f);
  }
  [[gnu::always_inline]] static Lanes<float> power(Words16 n) {  // 2^n
    return reinterpret_cast<Lanes<float>::Vector>((n + 127u) << 23);
  }
  [[gnu::always_inline]] Lanes<float> scale(Lanes<float> x) const {
    const Words16 half = reinterpret_cast<Words16>(reinterpret_cast<Bits<float>>(n) >> 1);
    return x * power(half) * power(n - half);
  }
};

// log(x) for x > 0 and not subnormal: x = 2^n (1 + f), sqrt(1/2) <= 1 + f < sqrt(2).
[[gnu::always_inline]] inline Lanes<float> log_normal(Lanes<float> x, Lanes<float> extra_n) {
  const Words16 offset = reinterpret_cast<Words16>(x.v) - 0x3f3504f3u;  // bits of sqrt(1/2)
  const Bits<float> n = reinterpret_cast<Bits<float>>(offset) >> 23;
  const Lanes<float> mantissa =
      reinterpret_cast<Lanes<float>::Vector>((offset & 0x7fffffu) + 0x3f3504f3u);
  const Lanes<float> f = mantissa - 1.0f;
  const Lanes<float> e = Lanes<float>(__builtin_convertvector(n, Lanes<float>::Vector)) + extra_n;
  const Lanes<float> p =
      polynomial(f, 6.9716115e-2f, -1.1479734e-1f, 1.1685420e-1f, -1.2425687e-1f, 1.4249058e-1f,
                 -1.6667802e-1f, 2.0000716e-1f, -2.4999997e-1f, 3.3333331e-1f);
  const Lanes<float> f2 = f * f;
  const Lanes<float> tail = fma(f2 * f, p, fma(e, Lanes<float>(0x1.7f7d1cp-20f), f2 * -0.5f));
  return fma(e, Lanes<float>(0x1.62e4p-1f), f + tail);
}

}  // namespace detail

[[gnu::always_inline]] inline Lanes<float> exp(Lanes<float> x) {
  const Lanes<float> clamped = select(x > 89.0f, 89.0f, select(x < -104.0f, -104.0f, x));
  const detail::Exponent e(clamped);
  return e.scale(fma(e.r * e.r, e.q, e.r) + 1.0f);
}

[[gnu::always_inline]] inline Lanes<float> expm1(Lanes<float> x) {
  const Lanes<float> clamped = select(x > 89.0f, 89.0f, select(x < -30.0f, -30.0f, x));
  const detail::Exponent e(clamped);
  const Lanes<float> p = fma(e.r * e.r, e.q, e.r);
  // 2^n p + (2^n - 1), but 2^128 would overflow: beyond 2^25 the 1 does not matter.
  const Lanes<float> large = e.scale(p + 1.0f);
  const Lanes<float> power = detail::Exponent::power(e.n);
  return select(x == 0.0f, x, select(clamped > 25.0f, large, fma(power, p, power - 1.0f)));
}

[[gnu::always_inline]] inline Lanes<float> log(Lanes<float> x) {
  const Mask<float> small = x < 0x1p-126f;
  const Lanes<float> y =
      detail::log_normal(select(small, x * 0x1p23f, x), select(small, Lanes<float>(-23.0f), 0.0f));
  const Lanes<float> infinity = __builtin_inff();
  const Lanes<float> edge = select(x == 0.0f, -infinity, select(x < 0.0f, __builtin_nanf(""), x));
  return select((x > 0.0f) & (x < infinity), y, edge);
}

[[gnu::always_inline]] inline Lanes<float> log1p(Lanes<float> x) {
  const Lanes<float> u = x + 1.0f;
  // log(u) is off by what rounding u lost, relative to u.
  const Lanes<float> lost = select(u > x, x - (u - 1.0f), 1.0f - (u - x));
  const Mask<float> regular = (u > 0.0f) & (u < __builtin_inff());
  const Lanes<float> y = detail::log_normal(u, 0.0f) + lost / u;
  const Lanes<float> edge = select(u == 0.0f, Lanes<float>(-__builtin_inff()),
                                   select(u < 0.0f, Lanes<float>(__builtin_nanf("")), u));
  return select(regular, select(x == 0.0f, x, y), edge);
}

[[gnu::always_inline]] inline Lanes<float> tanh(Lanes<float> x) {
  const Lanes<float> a = abs(x);
  const detail::Exponent e(2.0f * select(a > 10.0f, 10.0f, a));
  const Lanes<float> power = detail::Exponent::power(e.n);
  const Lanes<float> t = fma(power, fma(e.r * e.r, e.q, e.r), power - 1.0f);  // e^2a - 1
  return copysign(t / (t + 2.0f), x);
}

[[gnu::always_inline]] inline Lanes<float> erf(Lanes<float> x) {
  const Lanes<float> a = abs(x), s = x * x;
  const Lanes<float> near_zero =
      x * detail::polynomial(s, 7.8758751e-5f, -8.0168643e-4f, 5.1890874e-3f, -2.6854212e-2f,
                             1.1283595e-1f, -3.7612627e-1f, 1.1283792f);
  const Lanes<float> t = select(a > 4.0f, 4.0f, a);  // log(erfc(t)) = t * polynomial
  const Lanes<float> tail = t * detail::polynomial(t, 2.1661804e-7f, -3.2367546e-6f, 1.5843884e-6f,
                                                   3.3168545e-4f, -3.8355113e-3f, 2.4332306e-2f,
                                                   -1.0702251e-1f, -6.3461726e-1f, -1.1287928f);
  return select(a < 1.0f, near_zero, copysign(1.0f - exp(tail), x));
}

namespace detail {

// x = n pi / 2 + r with |r| <= pi / 4, in double: n times the 33 bits of the first part of pi / 2
// is exact up to 2^20.
struct Reduced {
  Floats8 r, n;

  [[gnu::always_inline]] explicit Reduced(Floats8 x) {
    const Lanes<double> d = __builtin_convertvector(x, Doubles8);
    const Lanes<double> whole = (d * 0.6366197723675814 + 0x1.8p52) - 0x1.8p52;
    const Lanes<double> rest = fma(whole, Lanes<double>(-0x1.921fb544p0), d);
    r = __builtin_convertvector(fma(whole, Lanes<double>(-0x1.0b4611a626331p-34), rest).v, Floats8);
    n = __builtin_convertvector(whole.v, Floats8);
  }
};
[[gnu::always_inline]] inline Lanes<float> joined(Floats8 a, Floats8 b) {
  return Lanes<float>(
      __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// sin(r + q pi / 2) for |r| <= pi / 4.
[[gnu::always_inline]] inline Lanes<float> sine_in_quadrant(Lanes<float> r, Words16 q) {
  const Lanes<float> s = r * r;
  const Lanes<float> odd =
      fma(r * s, polynomial(s, 2.7249314e-6f, -1.9840082e-4f, 8.3333319e-3f, -1.6666667e-1f), r);
  const Lanes<float> even = fma(s * s, polynomial(s, 2.4547437e-5f, -1.3888301e-3f, 4.1666665e-2f),
                                fma(s, Lanes<float>(-0.5f), 1.0f));
  const Lanes<float> value = select(Mask<float>{(q & 1u) != 0u}, even, odd);
  return from_bits<float>(bits(value) ^ reinterpret_cast<Bits<float>>((q & 2u) << 30));
}
[[gnu::always_inline]] inline Words16 to_words(Lanes<float> whole) {
  return reinterpret_cast<Words16>(__builtin_convertvector(whole.v, Bits<float>));
}

// sin(x + quarter_turns * pi / 2). Lanes beyond 2^20 are rare and go one by one.
[[gnu::always_inline]] inline Lanes<float> sine(Lanes<float> x, uint32_t quarter_turns) {
  const Mask<float> far = !(abs(x) < 0x1p20f);  // NaN, too
  const auto v = select(far, Lanes<float>(0.0f), x).v;
  const Reduced low(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
  const Reduced high(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  Lanes<float> y =
      sine_in_quadrant(joined(low.r, high.r), to_words(joined(low.n, high.n)) + quarter_turns);
  if (any(far)) [[unlikely]]
    for (int i = 0; i < 16; ++i)
      if (far[i]) y.v[i] = quarter_turns ? std::cos(float(x.v[i])) : std::sin(float(x.v[i]));
  return y;
}

}  // namespace detail

[[gnu::always_inline]] inline Lanes<float> sin(Lanes<float> x) {
  return select(x == 0.0f, x, detail::sine(x, 0));  // keeps -0
}
[[gnu::always_inline]] inline Lanes<float> cos(Lanes<float> x) { return detail::sine(x, 1); }

// The cosine and sine of v whole turns, |v| <= 2^20: here the reduction is exact.
struct Circle {
  Lanes<float> cosine, sine;

  [[gnu::always_inline]] explicit Circle(Lanes<float> v) {
    const Lanes<float> quarters = round(v * 4.0f);
    const Lanes<float> r = (v - quarters * 0.25f) * 6.28318531f;
    const auto q = detail::to_words(quarters);
    cosine = detail::sine_in_quadrant(r, q + 1u);
    sine = detail::sine_in_quadrant(r, q);
  }
};

template <class T>
[[gnu::always_inline]] inline Lanes<T> pow(Lanes<T> x, Lanes<T> y) {
  Lanes<T> z;
  for (int i = 0; i < z.width; ++i) z.v[i] = std::pow(T(x.v[i]), T(y.v[i]));
  return z;
}

// double goes to the standard library, one lane at a time.
[[gnu::always_inline]] inline Lanes<double> exp(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::exp(a); });
}
[[gnu::always_inline]] inline Lanes<double> expm1(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::expm1(a); });
}
[[gnu::always_inline]] inline Lanes<double> log(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::log(a); });
}
[[gnu::always_inline]] inline Lanes<double> log1p(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::log1p(a); });
}
[[gnu::always_inline]] inline Lanes<double> tanh(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::tanh(a); });
}
[[gnu::always_inline]] inline Lanes<double> erf(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::erf(a); });
}
[[gnu::always_inline]] inline Lanes<double> sin(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::sin(a); });
}
[[gnu::always_inline]] inline Lanes<double> cos(Lanes<double> x) {
  return detail::each(x, [](double a) { return std::cos(a); });
}

}  // namespace mixtape::kernels::cpu
