#pragma once
// Ops of one tensor: y = f(x, numbers...), and the derivative as a function of x or y, or as a
// number if it is constant. elementwise.h has the rules for formulas.

#include "kernels/common/activation.h"
#include "kernels/common/special.h"

namespace mixtape::kernels {

struct Neg {
  static constexpr OpInfo info{"neg", Precision::Any};
  static constexpr bool integers = true;
  static constexpr double d = -1;
  MIXTAPE_HD static auto f(auto x) { return -x; }
};

struct Abs {
  static constexpr OpInfo info{"abs", Precision::Any};
  static constexpr bool integers = true;
  MIXTAPE_HD static auto f(auto x) { return abs(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x > T(0), T(1), select(x < T(0), T(-1), T(0)));
  }
};

// Constant between jumps.
struct Stepwise {
  static constexpr bool integers = true;
  static constexpr double d = 0;
};

struct Sign : Stepwise {  // 0 for 0 and NaN
  static constexpr OpInfo info{"sign", Precision::Any};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x > T(0), T(1), select(x < T(0), T(-1), T(0)));
  }
};

struct Floor : Stepwise {
  static constexpr OpInfo info{"floor", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return floor(x); }
};

struct Ceil : Stepwise {
  static constexpr OpInfo info{"ceil", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return ceil(x); }
};

struct Round : Stepwise {
  static constexpr OpInfo info{"round", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return round(x); }
};

struct Trunc : Stepwise {
  static constexpr OpInfo info{"trunc", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return trunc(x); }
};

struct Frac {  // x - trunc(x)
  static constexpr OpInfo info{"frac", Precision::Any};
  static constexpr double d = 1;
  MIXTAPE_HD static auto f(auto x) { return x - trunc(x); }
};

struct Clamp {
  static constexpr OpInfo info{"clamp", Precision::Any};
  static constexpr bool flat = true;
  static constexpr bool integers = true;
  template <class T>
  MIXTAPE_HD static T f(T x, T low, T high) {
    const T y = select(x < low, low, x);
    return select(y > high, high, y);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x, T low, T high) {
    return select(x >= low, select(x <= high, T(1), T(0)), T(0));
  }
};

struct Hardtanh : Clamp {  // whose slope is 0 at the bounds, too
  static constexpr OpInfo info{"hardtanh", Precision::Any};
  template <class T>
  MIXTAPE_HD static T d_from_x(T x, T low, T high) {
    return select(x <= low, T(0), select(x >= high, T(0), T(1)));
  }
};

struct Square {
  static constexpr OpInfo info{"square", Precision::Full};
  static constexpr bool integers = true;
  MIXTAPE_HD static auto f(auto x) { return x * x; }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(2) * x;
  }
};

struct Sqrt {
  static constexpr OpInfo info{"sqrt", Precision::Native};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return sqrt(x); }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return T(0.5) / y;
  }
};

struct Rsqrt {
  static constexpr OpInfo info{"rsqrt", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(1) / sqrt(x);
  }
  static constexpr bool from_y = true;
  MIXTAPE_HD static auto gradient(auto dy, auto y) { return decltype(y)(-0.5) * dy * y * y * y; }
};

struct Reciprocal {
  static constexpr OpInfo info{"reciprocal", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(1) / x;
  }
  static constexpr bool from_y = true;
  MIXTAPE_HD static auto gradient(auto dy, auto y) { return -(dy * y * y); }
};

struct Exp {
  static constexpr OpInfo info{"exp", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return exp(x); }
  MIXTAPE_HD static auto d_from_y(auto y) { return y; }
};

struct Exp2 {
  static constexpr OpInfo info{"exp2", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return exp2(x); }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return y * T(0.6931471805599453);  // ln 2
  }
};

struct Expm1 {
  static constexpr OpInfo info{"expm1", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return expm1(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return exp(x); }
};

struct Log {
  static constexpr OpInfo info{"log", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return log(x); }
  MIXTAPE_HD static auto gradient(auto dy, auto x) { return dy / x; }
};

struct Log2 {
  static constexpr OpInfo info{"log2", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return log2(x); }
  MIXTAPE_HD static auto gradient(auto dy, auto x) {
    return dy / x * decltype(x)(1.4426950408889634);  // 1 / ln 2
  }
};

struct Log10 {
  static constexpr OpInfo info{"log10", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return log10(x); }
  MIXTAPE_HD static auto gradient(auto dy, auto x) {
    using T = decltype(x);  // 1 / ln 10, in two factors, since dy / x may be too large
    return dy * T(0.25) / x * T(4 * 0.4342944819032518);
  }
};

struct Log1p {
  static constexpr OpInfo info{"log1p", Precision::Full};
  static constexpr Domain domain{.low = -0.8};
  MIXTAPE_HD static auto f(auto x) { return log1p(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / (T(1) + x);
  }
};

struct Logit {  // log(x / (1 - x)); -most below eps, most above 1 - eps
  static constexpr OpInfo info{"logit", Precision::Full};
  static constexpr Domain domain{.low = 0.1, .high = 0.9};
  static constexpr bool flat = true;
  template <class T>
  MIXTAPE_HD static T f(T x, T eps, T most) {
    const T odds = x / (T(1) - x), above_even = (T(2) * x - T(1)) / (T(1) - x);  // odds - 1
    const T y = select(abs(x - T(0.5)) < T(0.25), log1p(above_even), log(odds));
    return select(x < eps, -most, select(x > T(1) - eps, most, y));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x, T eps, T) {
    const T d = T(1) / (x * (T(1) - x));
    return select(x < eps, T(0), select(x > T(1) - eps, T(0), d));
  }
};

struct Sin {
  static constexpr OpInfo info{"sin", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return sin(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return cos(x); }
};

struct Cos {
  static constexpr OpInfo info{"cos", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return cos(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return -sin(x); }
};

struct Tan {
  static constexpr OpInfo info{"tan", Precision::Full};
  static constexpr Domain domain{.low = -1.2, .high = 1.2};
  MIXTAPE_HD static auto f(auto x) { return tan(x); }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return T(1) + y * y;
  }
};

struct Asin {
  static constexpr OpInfo info{"asin", Precision::Full};
  static constexpr Domain domain{.low = -0.9, .high = 0.9};
  MIXTAPE_HD static auto f(auto x) { return asin(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / sqrt((T(1) - x) * (T(1) + x));
  }
};

struct Acos {
  static constexpr OpInfo info{"acos", Precision::Full};
  static constexpr Domain domain{.low = -0.9, .high = 0.9};
  MIXTAPE_HD static auto f(auto x) { return acos(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(-1) / sqrt((T(1) - x) * (T(1) + x));
  }
};

struct Atan {
  static constexpr OpInfo info{"atan", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return atan(x); }
  template <class T>
  MIXTAPE_HD static T gradient(T dy, T x) {
    const T far = select(abs(x) > T(1e9), x, T(1));  // so that no derivative divides by 0
    return select(abs(x) > T(1e9), dy / far / far, dy / (T(1) + x * x));
  }
};

struct Sinh {
  static constexpr OpInfo info{"sinh", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return sinh(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return cosh(x); }
};

struct Cosh {
  static constexpr OpInfo info{"cosh", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return cosh(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return sinh(x); }
};

struct Asinh {
  static constexpr OpInfo info{"asinh", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return asinh(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T a = abs(x), far = select(a > T(1e9), a, T(1));  // whose square may overflow
    return select(a > T(1e9), T(1) / far, T(1) / sqrt(T(1) + x * x));
  }
};

struct Acosh {
  static constexpr OpInfo info{"acosh", Precision::Full};
  static constexpr Domain domain{.low = 1.2};
  MIXTAPE_HD static auto f(auto x) { return acosh(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / (sqrt(x - T(1)) * sqrt(x + T(1)));
  }
};

struct Atanh {
  static constexpr OpInfo info{"atanh", Precision::Full};
  static constexpr Domain domain{.low = -0.9, .high = 0.9};
  MIXTAPE_HD static auto f(auto x) { return atanh(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / ((T(1) - x) * (T(1) + x));
  }
};

struct Erf {
  static constexpr OpInfo info{"erf", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return erf(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1.1283791670955126) * gaussian(x, T(1));  // 2 / sqrt(pi)
  }
};

struct Erfc {  // 1 - erf(x), however small
  static constexpr OpInfo info{"erfc", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return erfc(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return -Erf::d_from_x(x);
  }
};

struct Erfinv {
  static constexpr OpInfo info{"erfinv", Precision::Full};
  static constexpr Domain domain{.low = -0.9, .high = 0.9};
  MIXTAPE_HD static auto f(auto x) { return erfinv(x); }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return T(0.8862269254527580) * exp(y * y);  // sqrt(pi) / 2
  }
};

struct Lgamma {  // log |Gamma(x)|
  static constexpr OpInfo info{"lgamma", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return lgamma(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return digamma(x); }
};

struct Digamma {  // the derivative of lgamma
  static constexpr OpInfo info{"digamma", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return digamma(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return trigamma(x); }
};

struct BesselI0 {  // the modified Bessel function of order 0
  static constexpr OpInfo info{"i0", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return bessel_i0(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return bessel_i1(x); }
};

struct BitNot {
  static constexpr OpInfo info{"bitwise_not"};
  static constexpr bool only_integers = true;
  MIXTAPE_HD static auto f(auto x) { return ~x; }
};

// Predicates: the result is bool and there is no derivative. (x - x is 0 only if x is finite.)

struct IsNan {
  static constexpr OpInfo info{"isnan", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return x != x; }
};
struct IsInf {
  static constexpr OpInfo info{"isinf", Precision::Any};
  template <class T>
  MIXTAPE_HD static auto f(T x) {
    return both(x == x, x - x != T(0));
  }
};
struct IsFinite {
  static constexpr OpInfo info{"isfinite", Precision::Any};
  template <class T>
  MIXTAPE_HD static auto f(T x) {
    return x - x == T(0);
  }
};
struct Not {
  static constexpr OpInfo info{"logical_not", Precision::Any};
  template <class T>
  MIXTAPE_HD static auto f(T x) {
    return x == T(0);
  }
};

using UnaryOps = decltype(joined(
    Activations{},
    OpList<Neg, Abs, Sign, Floor, Ceil, Round, Trunc, Clamp, Square, Sqrt, Rsqrt, Reciprocal, Exp,
           Exp2, Expm1, Log, Log2, Log10, Log1p, Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Erf,
           IsNan, IsInf, IsFinite, Not, Frac, Asinh, Acosh, Atanh, Erfc, Erfinv, Lgamma, Digamma,
           BitNot, Hardtanh, Logit, BesselI0>{}));

}  // namespace mixtape::kernels
