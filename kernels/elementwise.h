#pragma once
// Every elementwise op: its name, its numerics, y = f(x), and the derivative from whichever of x
// and y the backward pass should keep. T is float, double, a SIMD lane or, in derivatives, an
// expression on the tape: write with + - * /, T(constant), comparisons, select and the functions
// below only.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "core/op_info.h"

namespace mixtape::kernels {

// What an unqualified exp(x) means for scalars; other types bring their own by argument lookup.
namespace math {
using std::abs, std::cos, std::erf, std::exp, std::expm1, std::log, std::log1p, std::pow, std::sin,
    std::sqrt, std::tanh;
template <class T>
MIXTAPE_HD constexpr T select(bool condition, T a, T b) {
  return condition ? a : b;
}
MIXTAPE_HD constexpr bool both(bool a, bool b) { return a && b; }
MIXTAPE_HD constexpr bool either(bool a, bool b) { return a || b; }
}  // namespace math
using namespace math;

// Where the op is smooth, for generated gradient tests.
struct Domain {
  double low = -3, high = 3;
  bool kink_at_zero = false;
};

struct Relu {
  static constexpr OpInfo info{"relu", Precision::Any};
  static constexpr Domain domain{.kink_at_zero = true};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x < T(0), T(0), x);
  }  // keeps NaN
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return select(y <= T(0), T(0), T(1));
  }  // 1 for NaN, as in PyTorch: what is broken stays visible
};

struct Neg {
  static constexpr OpInfo info{"neg", Precision::Any};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return -x;
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T) {
    return T(-1);
  }
};

struct Abs {
  static constexpr OpInfo info{"abs", Precision::Any};
  static constexpr Domain domain{.kink_at_zero = true};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return abs(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x > T(0), T(1), select(x < T(0), T(-1), T(0)));
  }
};

struct Gelu {  // x times the normal distribution's cumulative function
  static constexpr OpInfo info{"gelu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(0.5) * x * (T(1) + erf(x * T(sqrt_half)));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T cumulative = T(0.5) * (T(1) + erf(x * T(sqrt_half)));
    return cumulative + x * exp(T(-0.5) * x * x) * T(0.3989422804014327);  // 1 / sqrt(2 pi)
  }

 private:
  static constexpr double sqrt_half = 0.7071067811865476;
};

struct GeluTanh {  // GPT-2's approximation of gelu
  static constexpr OpInfo info{"gelu_tanh", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(0.5) * x * (T(1) + tanh(inner(x)));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T t = tanh(inner(x));
    const T d_inner = T(k) + T(3 * k * c) * x * x;
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * d_inner;
  }

 private:
  static constexpr double k = 0.7978845608028654, c = 0.044715;  // k = sqrt(2 / pi)
  template <class T>
  MIXTAPE_HD static T inner(T x) {
    return T(k) * x * (T(1) + T(c) * x * x);
  }
};

struct Silu {
  static constexpr OpInfo info{"silu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return x / (T(1) + exp(-x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T s = T(1) / (T(1) + exp(-x));
    return s * (T(1) + x * (T(1) - s));
  }
};

struct Sigmoid {
  static constexpr OpInfo info{"sigmoid", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(1) / (T(1) + exp(-x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return y * (T(1) - y);
  }
};

struct Tanh {
  static constexpr OpInfo info{"tanh", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return tanh(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return T(1) - y * y;
  }
};

struct Exp {
  static constexpr OpInfo info{"exp", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return exp(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return y;
  }
};

struct Log {
  static constexpr OpInfo info{"log", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return log(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / x;
  }
};

struct Square {
  static constexpr OpInfo info{"square", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return x * x;
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(2) * x;
  }
};

struct Sqrt {
  static constexpr OpInfo info{"sqrt", Precision::Native};
  static constexpr Domain domain{.low = 0.2};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return sqrt(x);
  }
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
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return T(-0.5) * y * y * y;
  }
};

struct Reciprocal {
  static constexpr OpInfo info{"reciprocal", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return T(1) / x;
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return -(y * y);
  }
};

struct Sin {
  static constexpr OpInfo info{"sin", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return sin(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return cos(x);
  }
};

struct Cos {
  static constexpr OpInfo info{"cos", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return cos(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return -sin(x);
  }
};

struct Erf {
  static constexpr OpInfo info{"erf", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return erf(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1.1283791670955126) * exp(-(x * x));  // 2 / sqrt(pi)
  }
};

struct Log1p {
  static constexpr OpInfo info{"log1p", Precision::Full};
  static constexpr Domain domain{.low = -0.8};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return log1p(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / (T(1) + x);
  }
};

struct Expm1 {
  static constexpr OpInfo info{"expm1", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return expm1(x);
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return y + T(1);
  }
};

struct Softplus {  // log(1 + exp(x)), written so that exp cannot overflow
  static constexpr OpInfo info{"softplus", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x > T(0), x, T(0)) + log1p(exp(-abs(x)));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / (T(1) + exp(-x));
  }
};

// Binary ops: c = f(a, b), and the partial derivatives dc/da and dc/db.

struct Add {
  static constexpr OpInfo info{"add", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return a + b;
  }
  template <class T>
  MIXTAPE_HD static T da(T, T, T) {
    return T(1);
  }
  template <class T>
  MIXTAPE_HD static T db(T, T, T) {
    return T(1);
  }
};

struct Sub {
  static constexpr OpInfo info{"sub", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return a - b;
  }
  template <class T>
  MIXTAPE_HD static T da(T, T, T) {
    return T(1);
  }
  template <class T>
  MIXTAPE_HD static T db(T, T, T) {
    return T(-1);
  }
};

struct Mul {
  static constexpr OpInfo info{"mul", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return a * b;
  }
  template <class T>
  MIXTAPE_HD static T da(T, T b, T) {
    return b;
  }
  template <class T>
  MIXTAPE_HD static T db(T a, T, T) {
    return a;
  }
};

struct Div {
  static constexpr OpInfo info{"div", Precision::Widest};
  static constexpr Domain domain{.low = 0.3};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return a / b;
  }
  template <class T>
  MIXTAPE_HD static T da(T, T b, T) {
    return T(1) / b;
  }
  template <class T>
  MIXTAPE_HD static T db(T, T b, T c) {
    return -(c / b);
  }
};

struct Pow {
  static constexpr OpInfo info{"pow", Precision::Full};
  static constexpr Domain domain{.low = 0.3, .high = 2};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return pow(a, b);
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(b == T(0), T(0), b * pow(a, b - T(1)));
  }
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T c) {
    return c * log(select(a == T(0), select(b < T(0), a, T(1)), a));  // 0^b stays 0 while b >= 0
  }
};

struct Maximum {  // NaN wins; at a tie the gradient is split
  static constexpr OpInfo info{"maximum", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return select(a != a, a, select(a > b, a, b));
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(a > b, T(1), select(a == b, T(0.5), T(0)));
  }
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T c) {
    return da(b, a, c);
  }
};

struct Minimum {
  static constexpr OpInfo info{"minimum", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return select(a != a, a, select(a < b, a, b));
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(a < b, T(1), select(a == b, T(0.5), T(0)));
  }
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T c) {
    return da(b, a, c);
  }
};

// Predicates: the result is bool and there is no derivative.

struct Equal {
  static constexpr OpInfo info{"eq", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  static constexpr OpInfo info{"ne", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a != b;
  }
};
struct Less {
  static constexpr OpInfo info{"lt", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a < b;
  }
};
struct LessEqual {
  static constexpr OpInfo info{"le", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  static constexpr OpInfo info{"gt", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a > b;
  }
};
struct GreaterEqual {
  static constexpr OpInfo info{"ge", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return a >= b;
  }
};
struct And {
  static constexpr OpInfo info{"logical_and", Precision::Any};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return both(a != T(0), b != T(0));
  }
};
struct Or {
  static constexpr OpInfo info{"logical_or", Precision::Any};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return either(a != T(0), b != T(0));
  }
};

template <class... Ops>
struct OpList {
  static constexpr int size = sizeof...(Ops);
};
using UnaryOps = OpList<Relu, Neg, Abs, Gelu, GeluTanh, Silu, Sigmoid, Tanh, Exp, Log, Square, Sqrt,
                        Rsqrt, Reciprocal, Sin, Cos, Erf, Log1p, Expm1, Softplus>;
using BinaryOps = OpList<Add, Sub, Mul, Div, Pow, Maximum, Minimum, Equal, NotEqual, Less,
                         LessEqual, Greater, GreaterEqual, And, Or>;

// Position of an op in its list: how one translation unit names a functor to another.
template <class Op, class... Ops>
constexpr int index_in(OpList<Ops...>) {
  static_assert((std::is_same_v<Op, Ops> || ...), "not in this list");
  int i = 0;
  (void)((std::is_same_v<Op, Ops> ? true : (++i, false)) || ...);
  return i;
}

// Whether the backward pass of F keeps x; otherwise it keeps y.
template <class F>
concept NeedsX = requires(float x) {
  F::d_from_x(x);
};

template <class F, class T>
MIXTAPE_HD T derivative(T v) {
  if constexpr (NeedsX<F>)
    return F::d_from_x(v);
  else
    return F::d_from_y(v);
}

// Whether the result of a binary op is bool.
template <class F>
inline constexpr bool is_predicate = !requires(float x) {
  F::da(x, x, x);
};

template <class F>
constexpr Domain domain_of() {
  if constexpr (requires { F::domain; })
    return F::domain;
  else
    return {};
}

// What integers of every width compute in: 64 bits that wrap around, with x / 0 = 0.
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
  MIXTAPE_HD friend constexpr bool operator==(Whole a, Whole b) { return a.v == b.v; }
  MIXTAPE_HD friend constexpr bool operator!=(Whole a, Whole b) { return a.v != b.v; }
  MIXTAPE_HD friend constexpr bool operator<(Whole a, Whole b) { return a.v < b.v; }
  MIXTAPE_HD friend constexpr bool operator<=(Whole a, Whole b) { return a.v <= b.v; }
  MIXTAPE_HD friend constexpr bool operator>(Whole a, Whole b) { return a.v > b.v; }
  MIXTAPE_HD friend constexpr bool operator>=(Whole a, Whole b) { return a.v >= b.v; }
  MIXTAPE_HD friend constexpr Whole pow(Whole a, Whole b) {  // by squaring; 1 / a^|b| truncates
    if (b.v < 0)
      return a.v == 1 || (a.v == -1 && b.v % 2 == 0) ? Whole(1) : Whole(a.v == -1 ? -1 : 0);
    Whole result(1);
    for (int64_t n = b.v; n > 0; n >>= 1, a = a * a)
      if (n & 1) result = result * a;
    return result;
  }
};

// One value to another element type. Floats to integers truncate and saturate, NaN gives 0;
// anything but 0 is true; every conversion rounds at most once.
template <class To, class From>
MIXTAPE_HD constexpr To convert_to(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>)
    return convert_to<To>(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bool>)
    return x != From(0);
  else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, float>)
      return To(x);
    else
      return To(static_cast<double>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    if (!(x == x)) return To(0);
    return x <= From(low) ? low : x >= From(high) ? high : static_cast<To>(x);
  } else
    return static_cast<To>(x);
}

}  // namespace mixtape::kernels
