#pragma once
// The functions that formulas of elementwise ops use, for scalars: mathematics, integers that never
// trap, conversions. SIMD vectors and tapes have their own versions.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/op_info.h"
#include "kernels/common/always_inline.h"
#include "kernels/common/math.h"
#include "kernels/common/op_list.h"

namespace mixtape::kernels {

// The functions that an unqualified exp(x) finds for scalars; for other types argument-dependent
// lookup finds theirs.
namespace math {
template <std::floating_point T>
MIXTAPE_HD T abs(T x) {
  return std::abs(x);
}
template <std::floating_point T>
MIXTAPE_HD T floor(T x) {
  return std::floor(x);
}
template <std::floating_point T>
MIXTAPE_HD T sqrt(T x) {
  return std::sqrt(x);
}
template <std::floating_point T>
MIXTAPE_HD T pow(T x, T y) {
  return std::pow(x, y);
}
template <std::floating_point T>
MIXTAPE_HD T fma(T x, T y, T z) {
  return std::fma(x, y, z);
}
using std::abs, std::acos, std::acosh, std::asin, std::asinh, std::atan, std::atan2, std::atanh,
    std::ceil, std::copysign, std::cos, std::cosh, std::erf, std::erfc, std::exp, std::exp2,
    std::expm1, std::floor, std::fma, std::fmod, std::log, std::log10, std::log1p, std::log2,
    std::pow, std::sin, std::sinh, std::sqrt, std::tan, std::tanh, std::trunc;
MIXTAPE_HD auto round(auto x) { return std::nearbyint(x); }  // ties to even
MIXTAPE_HD constexpr bool both(bool a, bool b) { return a && b; }
MIXTAPE_HD constexpr bool either(bool a, bool b) { return a || b; }
MIXTAPE_HD constexpr bool differ(bool a, bool b) { return a != b; }
MIXTAPE_HD constexpr bool any(bool condition) { return condition; }  // of a vector's lanes
}  // namespace math

// (x - mean) rstd, by halves: the difference of two numbers may be beyond the largest one.
template <class T>
struct StandardScore {
  T mean, rstd;  // half of the one, twice the other
  MIXTAPE_HD StandardScore(T m, T r) : mean(T(0.5f) * m), rstd(r + r) {}
  MIXTAPE_HD T operator()(T x) const { return fma(x, T(0.5f), -mean) * rstd; }
};

// sigmoid(x) and 1 - sigmoid(x), both to full precision.
template <class T>
struct Shares {
  T share, rest;
};
template <class T>
MIXTAPE_HD Shares<T> shares(T x) {
  const T e = exp(-abs(x)), most = T(1) / (T(1) + e), least = e * most;
  return {select(x < T(0), least, most), select(x < T(0), most, least)};
}
template <class T>
MIXTAPE_HD T sigmoid(T x) {
  return shares(x).share;
}

// 1 - sigmoid(x), and sigmoid(x) as a product of two factors. These are normal numbers even where
// sigmoid(x) is subnormal, so multiplying by one after the other keeps all digits.
template <class T>
struct Factors {
  T outer, inner, rest;
};
// From root = exp(-|x| / 2) and the sign of x.
template <class T>
MIXTAPE_HD Factors<T> factors(T root, T x) {
  const T e = root * root, most = T(1) / (T(1) + e), outer = select(x < T(0), root, T(1));
  return {outer, outer * most, select(x < T(0), most, e * most)};
}
template <class T>
MIXTAPE_HD Factors<T> factors(T x) {
  return factors(exp(T(-0.5) * abs(x)), x);
}

// tanh(x) and its derivative, which 1 - tanh(x)^2 cannot give where tanh(x) is near 1.
template <class T>
struct Bend {
  T value, slope;
};
template <class T>
MIXTAPE_HD Bend<T> bend(T x) {
  const T a = abs(x), m = expm1(T(2) * select(a > T(43), T(43), a)), part = T(1) / (m + T(2));
  const T value = m * part;
  return {select(x < T(0), -value, value), T(4) * part * (part * (m + T(1)))};
}

// x, limited to the range beyond which exp(-x^2 / 2) is 0 in any dtype.
template <class T>
MIXTAPE_HD T within_tails(T x) {
  const T most(40);
  return select(x > most, most, select(x < -most, -most, x));
}
// exp(-s x^2), where s >= 1/2 is a power of two. Computed in two parts, since the exponent would
// multiply the rounding error of the square.
template <class T>
MIXTAPE_HD T gaussian(T x, T s) {
  const T a = within_tails(x), square = a * a, lost = fma(a, a, -square), e = exp(-s * square);
  return e - e * (s * lost);
}

// The normal distribution's cumulative function and density.
template <class T>
struct Normal {
  T cumulative, density;
};
template <class T>
MIXTAPE_HD Normal<T> normal(T x) {
  constexpr double root = 0.7071067811865476;  // 1 / sqrt(2), in two parts for float
  constexpr double rest = std::is_same_v<T, float> ? root - double(float(root)) : 0;
  const T bell = gaussian(x, T(0.5)), a = within_tails(x), z = a * T(root);
  const T lost = fma(a, T(root), -z) + a * T(rest);                 // of z, by erfc's slope
  return {T(0.5) * erfc(-z) + T(0.5641895835477563) * bell * lost,  // 1 / sqrt(pi)
          T(0.3989422804014327) * bell};                            // 1 / sqrt(2 pi)
}

// sigmoid(k x + kc x^3) as factors, for GPT-2's gelu; k is 2 sqrt(2 / pi). An error of the exponent
// would be multiplied by its size, so it has two parts. k_high has few bits, so that f32 holds the
// rest of a sum beside it.
inline constexpr double gelu_k = 1.5957691216057308, gelu_kc = gelu_k * 0.044715;
template <class T>
MIXTAPE_HD Factors<T> gelu_tanh_factors(T x) {
  constexpr double k_high = 0x1.9884p0, kc_high = double(float(gelu_kc));
  const T a = within_tails(x), square = a * a, sum = fma(square, T(kc_high), T(k_high));
  const T rest =
      fma(square, T(kc_high), T(k_high) - sum) +
      fma(fma(a, a, -square), T(kc_high), fma(square, T(gelu_kc - kc_high), T(gelu_k - k_high)));
  const T z = fma(a, sum, T(0));  // (A product would be contracted with the sum below.)
  const T lost = fma(a, rest, fma(a, sum, -z)), exponent = z + lost;
  Factors<T> s = factors(exponent);
  s.inner = s.inner + s.inner * s.rest * (lost - (exponent - z));
  return s;
}

// The range where an op is smooth, for generated tests.
struct Domain {
  double low = -3, high = 3;
};

// The type in which all integers are computed: 64 bits that wrap around, with x / 0 = x % 0 = 0.
struct Whole {
  int64_t v = 0;

  Whole() = default;
  template <class I>
  MIXTAPE_HD constexpr explicit Whole(I x) : v(static_cast<int64_t>(x)) {}
  template <class I>
  MIXTAPE_HD constexpr explicit operator I() const {
    return static_cast<I>(v);
  }

  MIXTAPE_HD friend constexpr Whole operator+(Whole a, Whole b) {
    return Whole(uint64_t(a.v) + uint64_t(b.v));
  }
  MIXTAPE_HD friend constexpr Whole operator-(Whole a, Whole b) {
    return Whole(uint64_t(a.v) - uint64_t(b.v));
  }
  MIXTAPE_HD friend constexpr Whole operator*(Whole a, Whole b) {
    return Whole(uint64_t(a.v) * uint64_t(b.v));
  }
  MIXTAPE_HD friend constexpr Whole operator/(Whole a, Whole b) {
    if (b.v == 0) return Whole(0);
    return b.v == -1 ? Whole(0) - a : Whole(a.v / b.v);  // the smallest / -1 would trap
  }
  MIXTAPE_HD friend constexpr Whole operator-(Whole a) { return Whole(0) - a; }
  MIXTAPE_HD friend constexpr Whole operator&(Whole a, Whole b) { return Whole(a.v & b.v); }
  MIXTAPE_HD friend constexpr Whole operator|(Whole a, Whole b) { return Whole(a.v | b.v); }
  MIXTAPE_HD friend constexpr Whole operator^(Whole a, Whole b) { return Whole(a.v ^ b.v); }
  MIXTAPE_HD friend constexpr Whole operator~(Whole a) { return Whole(~a.v); }
  // A shift by fewer than 0 or more than 63 bits shifts all out.
  MIXTAPE_HD friend constexpr Whole operator<<(Whole a, Whole b) {
    return Whole(uint64_t(b.v) < 64 ? uint64_t(a.v) << b.v : 0);
  }
  MIXTAPE_HD friend constexpr Whole operator>>(Whole a, Whole b) {
    return Whole(a.v >> (uint64_t(b.v) < 64 ? b.v : 63));
  }
  MIXTAPE_HD friend constexpr bool operator==(Whole a, Whole b) { return a.v == b.v; }
  MIXTAPE_HD friend constexpr bool operator!=(Whole a, Whole b) { return a.v != b.v; }
  MIXTAPE_HD friend constexpr bool operator<(Whole a, Whole b) { return a.v < b.v; }
  MIXTAPE_HD friend constexpr bool operator<=(Whole a, Whole b) { return a.v <= b.v; }
  MIXTAPE_HD friend constexpr bool operator>(Whole a, Whole b) { return a.v > b.v; }
  MIXTAPE_HD friend constexpr bool operator>=(Whole a, Whole b) { return a.v >= b.v; }
  MIXTAPE_HD friend constexpr Whole abs(Whole a) { return a.v < 0 ? -a : a; }
  MIXTAPE_HD friend constexpr Whole floor(Whole a) { return a; }
  MIXTAPE_HD friend constexpr Whole ceil(Whole a) { return a; }
  MIXTAPE_HD friend constexpr Whole round(Whole a) { return a; }
  MIXTAPE_HD friend constexpr Whole trunc(Whole a) { return a; }
  MIXTAPE_HD friend constexpr Whole fmod(Whole a, Whole b) {
    return b.v == 0 || b.v == -1 ? Whole(0) : Whole(a.v % b.v);
  }
  MIXTAPE_HD friend constexpr Whole pow(Whole a, Whole b) {  // by squaring; 1 / a^|b| truncates
    if (b.v < 0)
      return a.v == 1 || (a.v == -1 && b.v % 2 == 0) ? Whole(1) : Whole(a.v == -1 ? -1 : 0);
    Whole result(1);
    for (int64_t n = b.v; n > 0; n >>= 1, a = a * a)
      if (n & 1) result = result * a;
    return result;
  }
};

// Converts a value to another element type. Floats truncate and saturate to integers, NaN to 0;
// everything but 0 is true; every conversion rounds at most once.
template <class To, class From>
MIXTAPE_ALWAYS_INLINE MIXTAPE_HD constexpr To convert_to(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
    return convert_to<To>(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bool>)
    return x != From(0);
  else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, float>)
      return To(x);
    else if constexpr (std::is_same_v<From, int64_t>)  // folds what a double cannot hold into a bit
      return To(static_cast<double>(
          x >> 53 == x >> 63 ? x : (x & ~int64_t{0x7ff}) | int64_t{(x & 0x7ff) != 0} << 11));
    else
      return To(static_cast<double>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    if (!(x == x)) return To(0);
    return x <= From(low) ? low : x >= From(high) ? high : static_cast<To>(x);
  } else
    return static_cast<To>(x);
}

// True if a sum of squares neither overflowed f32 nor lost squares that count to underflow.
MIXTAPE_HD constexpr bool squares_in_range(double sum) {
  return sum >= 0x1p-80 && sum <= 0x1.fffffep127;
}

// start + i step. Integers, whose start and step are whole, are exact even beyond 2^53.
template <class T>
MIXTAPE_HD constexpr T counted(double start, double step, int64_t i) {
  if constexpr (std::is_same_v<T, int64_t>)
    return int64_t(Whole(convert_to<int64_t>(start)) + Whole(i) * Whole(convert_to<int64_t>(step)));
  else
    return convert_to<T>(start + double(i) * step);
}

}  // namespace mixtape::kernels
