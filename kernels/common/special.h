#pragma once
// The logarithm of the gamma function, its first two derivatives, the inverse of erf, hypot, and
// the modified Bessel functions of orders 0 and 1. Formulas are for double, or vectors of it, and
// skip what no lane needs; results for float are rounded from there.

#include <concepts>

#include "kernels/common/scalar.h"

namespace mixtape::kernels {
namespace special {

// c[0] x^n + ... + c[n], by Horner's rule.
template <class T, class... C>
MIXTAPE_HD T horner(T x, double first, C... rest) {
  T y(first);
  ((y = y * x + T(rest)), ...);
  return y;
}

// A negative x reflected to 1 - x, and the angle pi x, reduced to half a turn around 0: values at x
// and 1 - x differ by a function of it. (For x >= 0, x itself and pi / 2, which is not used.)
template <class T>
struct Reflected {
  T x, angle;
};
template <class T>
MIXTAPE_HD Reflected<T> reflected(T x) {
  const T r = select(x < T(0), x - round(x), T(0.5));
  return {select(x < T(0), T(1) - x, x), r * T(3.141592653589793)};
}

// psi(x) = psi(x + 8) - sum of 1 / (x + i), and the asymptotic series from 8 on.
template <class T>
MIXTAPE_HD T digamma(T x) {
  const Reflected<T> at = reflected(x);
  const T middle = at.x + T(4), inverse = T(1) / middle;
  T sum = T(1) / at.x + inverse;  // (with the sign of a zero)
  for (int i = 1; i < 4; ++i)     // 1 / (x + 4 - i) + 1 / (x + 4 + i)
    sum = sum + T(2) / (middle - T(i * i) * inverse);
  const T y = at.x + T(8), r = T(1) / y, z = r * r;
  const T series =
      horner(z, 1.0 / 12, -691.0 / 32760, 1.0 / 132, -1.0 / 240, 1.0 / 252, -1.0 / 120, 1.0 / 12);
  const T psi = log(y) - T(0.5) * r - z * series - sum;
  if (!any(x < T(0))) return psi;
  const T below = select(at.angle == T(0), T(std::numeric_limits<double>::quiet_NaN()),
                         psi - T(3.141592653589793) / tan(at.angle));
  return select(x < T(0), below, psi);
}

// The derivative of digamma. On the tape, too, so that higher derivatives follow from it.
template <class T>
MIXTAPE_HD T trigamma(T x) {
  const Reflected<T> at = reflected(x);
  T sum(0);
  for (int i = 0; i < 8; ++i) sum = sum + T(1) / (at.x + T(i)) / (at.x + T(i));
  const T y = at.x + T(8), z = T(1) / y / y;
  const T series =
      horner(z, 7.0 / 6, -691.0 / 2730, 5.0 / 66, -1.0 / 30, 1.0 / 42, -1.0 / 30, 1.0 / 6);
  const T psi = T(1) / y + z * T(0.5) + z / y * series + sum;
  const T ratio = T(3.141592653589793) / sin(at.angle);
  return select(x < T(0), ratio * ratio - psi, psi);
}

// Wichura 1988 (AS 241): three rational functions, one of x^2 in the middle, two of
// sqrt(-log((1 - |x|) / 2)) further out.
template <class T>
MIXTAPE_HD T erfinv_of_tails(T a) {
  const T r = sqrt(-log(T(0.5) * (T(1) - a))), n = r - T(1.6), f = r - T(5);
  const T near =
      horner(n, 7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
             1.27045825245236838258, 3.64784832476320460504, 5.76949722146069140550,
             4.63033784615654529590, 1.42343711074968357734) /
      horner(n, 1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
             1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940,
             2.05319162663775882187, 1.0);
  const T far =
      horner(f, 2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
             2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580,
             5.46378491116411436990, 6.65790464350110377720) /
      horner(f, 2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
             7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
             5.99832206555887937690e-1, 1.0);
  return select(a == T(1), T(std::numeric_limits<double>::infinity()),
                select(r <= T(5), near, far));
}
template <class T>
MIXTAPE_HD T erfinv(T x) {
  const T a = abs(x);
  const T m = T(0.180625) - T(0.25) * x * x;
  T size = T(0.5) * a *
           horner(m, 2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
                  4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
                  1.3314166789178437745e2, 3.3871328727963666080) /
           horner(m, 5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
                  2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
                  4.2313330701600911252e1, 1.0);
  const auto tail = a > T(0.85);
  if (any(tail)) size = select(tail, erfinv_of_tails(a), size);
  return copysign(T(0.7071067811865476) * size, x);  // 1 / sqrt(2)
}

// The modified Bessel function I_order(x), order 0 or 1: a power series, whose terms have one sign,
// up to 20, and an asymptotic one from there on. The exponential is taken in two factors, since the
// function stays in range for longer. On the tape, too.
template <int order, class T>
MIXTAPE_HD T bessel_i(T x) {
  const auto far = abs(x) > T(20);
  const T near = select(far, T(1), x), z = T(0.25) * near * near;
  T series(1);
  for (int k = 40; k > 0; --k) series = T(1) + series * z * T(1.0 / (k * (k + order)));
  if (order == 1) series = T(0.5) * near * series;
  if (!any(far)) return series;
  const T a = select(far, select(abs(x) > T(750), T(750), abs(x)), T(20));
  T tail(1);
  for (int k = 32; k > 0; --k) {  // ((2 k - 1)^2 - 4 order^2) / (8 k)
    const double odd = 2 * k - 1;
    tail = T(1) + tail * T((odd * odd - 4 * order) / (8 * k)) / a;
  }
  const T root = exp(T(0.5) * a);
  const T y = root * (tail / sqrt(T(6.283185307179586) * a)) * root;  // 2 pi
  return select(far, order == 1 ? select(x < T(0), -y, y) : y, series);
}

// sqrt(x^2 + y^2). An infinite side wins over NaN.
template <class T>
MIXTAPE_HD T hypot(T x, T y) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const T a = abs(x), b = abs(y), most = select(a > b, a, b);
  const auto plain = both(most > T(0), most < T(infinity));
  const T ratio = select(a > b, b, a) / select(plain, most, T(1));
  const T length = select(plain, most * sqrt(T(1) + ratio * ratio), a + b);
  return select(either(a == T(infinity), b == T(infinity)), T(infinity), length);
}

}  // namespace special

namespace math {
// f(x...) of doubles, rounded once.
template <class F, std::same_as<double>... X>
MIXTAPE_HD double in_double(F f, X... x) {
  return f(x...);
}
template <class F, std::same_as<float>... X>
MIXTAPE_HD float in_double(F f, X... x) {
  return static_cast<float>(f(double(x)...));
}

MIXTAPE_HD inline double hypot(double x, double y) { return special::hypot(x, y); }
MIXTAPE_HD inline float hypot(float x, float y) {
  return in_double([](double a, double b) { return special::hypot(a, b); }, x, y);
}
MIXTAPE_HD inline double lgamma(double x) {
#ifdef __CUDA_ARCH__
  return ::lgamma(x);
#else
  int sign;  // (std::lgamma would write it to a variable shared by all threads.)
  return ::lgamma_r(x, &sign);
#endif
}
MIXTAPE_HD inline float lgamma(float x) { return static_cast<float>(lgamma(double(x))); }
MIXTAPE_HD inline double digamma(double x) { return special::digamma(x); }
MIXTAPE_HD inline float digamma(float x) { return static_cast<float>(digamma(double(x))); }
MIXTAPE_HD inline double trigamma(double x) { return special::trigamma(x); }
MIXTAPE_HD inline float trigamma(float x) { return static_cast<float>(trigamma(double(x))); }
MIXTAPE_HD inline double bessel_i0(double x) { return special::bessel_i<0>(x); }
MIXTAPE_HD inline float bessel_i0(float x) { return static_cast<float>(bessel_i0(double(x))); }
MIXTAPE_HD inline double bessel_i1(double x) { return special::bessel_i<1>(x); }
MIXTAPE_HD inline float bessel_i1(float x) { return static_cast<float>(bessel_i1(double(x))); }
MIXTAPE_HD inline double erfinv(double x) { return special::erfinv(x); }
MIXTAPE_HD inline float erfinv(float x) { return static_cast<float>(erfinv(double(x))); }
}  // namespace math

}  // namespace mixtape::kernels
