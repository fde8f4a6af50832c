#pragma once
// Ops of two tensors: c = f(a, b), and the partial derivatives dc/da and dc/db, as functions of a,
// b and c or, if constant, numbers. elementwise.h has the rules for formulas.

#include "kernels/common/unary.h"

namespace mixtape::kernels {

struct Add {
  static constexpr OpInfo info{"add", Precision::Widest};
  static constexpr bool integers = true;
  static constexpr double da = 1, db = 1;
  MIXTAPE_HD static auto f(auto a, auto b) { return a + b; }
};

struct Sub {
  static constexpr OpInfo info{"sub", Precision::Widest};
  static constexpr bool integers = true;
  static constexpr double da = 1, db = -1;
  MIXTAPE_HD static auto f(auto a, auto b) { return a - b; }
};

struct Mul {
  static constexpr OpInfo info{"mul", Precision::Widest};
  static constexpr bool integers = true;
  MIXTAPE_HD static auto f(auto a, auto b) { return a * b; }
  MIXTAPE_HD static auto da(auto, auto b, auto) { return b; }
  MIXTAPE_HD static auto db(auto a, auto, auto) { return a; }
};

// dy a / b^2. Each step moves to the other side of 1 if one can, so that none leaves the range of T
// where the result is in it.
template <class T>
MIXTAPE_HD T over_square(T dy, T a, T b) {
  const auto grows = abs(b) < T(1), swapped = differ(abs(dy) < abs(a), grows);
  const T first = select(swapped, a, dy) / b, second = select(swapped, dy, a);
  const auto now = differ(abs(first) < T(1), grows);
  return first * select(now, second, T(1)) / b * select(now, T(1), second);
}

struct Div {
  static constexpr OpInfo info{"div", Precision::Widest};
  static constexpr Domain domain{.low = 0.3};
  MIXTAPE_HD static auto f(auto a, auto b) { return a / b; }
  MIXTAPE_HD static auto gradient_a(auto dy, auto, auto b) { return dy / b; }
  MIXTAPE_HD static auto gradient_b(auto dy, auto a, auto b) { return -over_square(dy, a, b); }
};

struct Pow {
  static constexpr OpInfo info{"pow", Precision::Full};
  static constexpr bool integers = true;
  static constexpr Domain domain{.low = 0.3, .high = 2};
  MIXTAPE_HD static auto f(auto a, auto b) { return pow(a, b); }
  template <class T>
  MIXTAPE_HD static T gradient_a(T dy, T a, T b) {  // a^b is in range where a^(b - 1) need not be
    const T p = b * abs(a);
    const auto falls = p < T(0.5) * p;  // not for 0 and -inf, where a^b may lose a sign
    const T part = dy * pow(a, select(falls, b, b - T(1))) / select(falls, a, T(1));
    return select(b == T(0), T(0), part * b);
  }
  template <class T>
  MIXTAPE_HD static T gradient_b(T dy, T a, T b) {  // 0^b stays 0 while b >= 0
    const T y = pow(a, b), l = log(select(a == T(0), select(b < T(0), a, T(1)), a));
    const auto shrinks = abs(l) < T(1);  // dy y may be beyond the range
    return dy * select(shrinks, l, y) * select(shrinks, y, l);
  }
};

struct Maximum {  // NaN wins, its gradient goes to both operands; ties share the gradient
  static constexpr OpInfo info{"maximum", Precision::Widest};
  static constexpr bool flat = true;
  static constexpr bool integers = true;
  MIXTAPE_HD static auto f(auto a, auto b) { return maximum(a, b); }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(a < b, T(0), select(a == b, T(0.5), T(1)));
  }
  MIXTAPE_HD static auto db(auto a, auto b, auto c) { return da(b, a, c); }
};

struct Minimum {
  static constexpr OpInfo info{"minimum", Precision::Widest};
  static constexpr bool flat = true;
  static constexpr bool integers = true;
  MIXTAPE_HD static auto f(auto a, auto b) { return minimum(a, b); }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(a > b, T(0), select(a == b, T(0.5), T(1)));
  }
  MIXTAPE_HD static auto db(auto a, auto b, auto c) { return da(b, a, c); }
};

// (a - b) / c, rounded to an integer. Halves of large numbers do not overflow.
template <class T>
MIXTAPE_HD T quotient_of_difference(T a, T b, T c) {
  const T part = select(abs(b) > T(0x1p100), T(0.5), T(1));
  return round((part * a - part * b) / (part * c));
}

struct Remainder {  // of the division rounded down: has the sign of b
  static constexpr OpInfo info{"remainder", Precision::Widest};
  static constexpr bool integers = true;
  static constexpr Domain domain{.low = 0.3};
  static constexpr double da = 1;
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    const T r = fmod(a, b);
    return select(both(r != T(0), differ(r < T(0), b < T(0))), r + b, r);
  }
  // Minus the quotient, computed from c: a / b may round up to the next integer.
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T c) {
    return select(c == b, T(1), quotient_of_difference(c, a, b));
  }
};

struct Fmod {  // of the division rounded toward zero: has the sign of a
  static constexpr OpInfo info{"fmod", Precision::Widest};
  static constexpr bool integers = true;
  static constexpr Domain domain{.low = 0.3};
  static constexpr double da = 1;
  MIXTAPE_HD static auto f(auto a, auto b) { return fmod(a, b); }
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T c) {
    return select(c == a, T(0), quotient_of_difference(c, a, b));
  }
};

struct Copysign {  // |a| with the sign of b, even of a zero
  static constexpr OpInfo info{"copysign", Precision::Widest};
  static constexpr bool flat = true;
  static constexpr Domain domain{.low = 0.3};
  static constexpr double db = 0;
  MIXTAPE_HD static auto f(auto a, auto b) { return copysign(a, b); }
  template <class T>
  MIXTAPE_HD static T da(T a, T, T c) {  // 1 where the sign stayed, 0 at 0
    return select(a == a, Sign::f(a) * Sign::f(c), a);
  }
};

// a - b, of equal infinities 0. Other equal numbers keep the slopes of a difference, for second
// derivatives.
template <class T>
MIXTAPE_HD T apart(T a, T b) {
  const T d = a - b;
  return select(d == d, d, select(a == b, T(0), d));
}

struct LogAddExp {  // log(exp(a) + exp(b))
  static constexpr OpInfo info{"logaddexp", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return select(a > b, a, b) + log1p(exp(-abs(apart(a, b))));
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return sigmoid(apart(a, b));
  }
  MIXTAPE_HD static auto db(auto a, auto b, auto c) { return da(b, a, c); }
};

struct LogAddExp2 {  // log2(2^a + 2^b)
  static constexpr OpInfo info{"logaddexp2", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    const T more = log1p(exp2(-abs(a - b))) * T(1.4426950408889634);  // 1 / ln 2
    return select(a == b, a + T(1), select(a > b, a, b) + more);
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return sigmoid(apart(a, b) * T(0.6931471805599453));  // ln 2
  }
  MIXTAPE_HD static auto db(auto a, auto b, auto c) { return da(b, a, c); }
};

// dy a / (a^2 + b^2), without those squares, which might overflow or vanish; 0 if both are 0.
template <class T>
MIXTAPE_HD T over_squares(T dy, T a, T b) {
  const auto larger = abs(a) > abs(b), none = abs(a) + abs(b) == T(0);  // not for NaN beside 0
  const T most = select(none, T(1), select(larger, a, b)), ratio = select(larger, b, a) / most;
  return select(larger, dy / most, over_square(dy, a, most)) / (T(1) + ratio * ratio);
}

struct Atan2 {
  static constexpr OpInfo info{"atan2", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return atan2(a, b); }
  MIXTAPE_HD static auto gradient_a(auto dy, auto a, auto b) { return over_squares(dy, b, a); }
  MIXTAPE_HD static auto gradient_b(auto dy, auto a, auto b) { return -over_squares(dy, a, b); }
};

struct Glu {  // a sigmoid(b)
  static constexpr OpInfo info{"glu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    const Factors<T> s = factors(b);
    return a * s.outer * s.inner;
  }
  MIXTAPE_HD static auto da(auto, auto b, auto) { return sigmoid(b); }
  template <class T>
  MIXTAPE_HD static T db(T a, T b, T) {
    const Factors<T> s = factors(b);
    return a * s.outer * (s.inner * s.rest);
  }
};

struct Prelu {  // a, times the slope b if not positive
  static constexpr OpInfo info{"prelu", Precision::Native};
  static constexpr bool flat = true;
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    return select(a > T(0), a, a * b);
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    return select(a > T(0), T(1), b);
  }
  template <class T>
  MIXTAPE_HD static T db(T a, T, T) {
    return select(a > T(0), T(0), a);
  }
};

struct FloorDivide {  // the quotient rounded down; of integers by 0: 0
  static constexpr OpInfo info{"floor_divide", Precision::Widest};
  static constexpr bool integers = true;
  static constexpr Domain domain{.low = 0.3};
  static constexpr double da = 0, db = 0;
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    if constexpr (std::is_same_v<T, Whole>) {
      return a / b - one_below(fmod(a, b), b);
    } else {
      return in_double(
          []<class W>(W x, W y) {
            W q;
            if constexpr (std::is_same_v<W, T>) {  // (x / y may round up to the next whole number)
              const W rest = fmod(x, y);
              q = round((x - rest) / y) - one_below(rest, y);
            } else {  // f32's 24 bits are too few for that
              q = floor(x / y);
              q = select(both(q == W(0), x * y < W(0)), W(-1), q) + (x - x);  // by infinity
            }
            return select(y == W(0), x / y, q);
          },
          a, b);
    }
  }

 private:
  template <class T>
  MIXTAPE_HD static T one_below(T rest, T b) {
    return select(both(rest != T(0), differ(rest < T(0), b < T(0))), T(1), T(0));
  }
};

struct Hypot {  // sqrt(a^2 + b^2), without those squares' overflow; gradient 0 at (0, 0)
  static constexpr OpInfo info{"hypot", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return hypot(a, b); }
  template <class T>
  MIXTAPE_HD static T gradient_a(T dy, T a, T b) {
    const auto larger = abs(a) > abs(b), none = abs(a) + abs(b) == T(0);  // not for NaN beside 0
    const T most = select(none, T(1), select(larger, abs(a), abs(b)));
    const T x = select(larger, unit(a), part(a, most)), y = select(larger, part(b, most), unit(b));
    return dy * select(none, T(0), x / sqrt(x * x + y * y));
  }
  MIXTAPE_HD static auto gradient_b(auto dy, auto a, auto b) { return gradient_a(dy, b, a); }

 private:
  template <class T>
  MIXTAPE_HD static T unit(T z) {
    return select(z < T(0), T(-1), select(z == z, T(1), z));
  }
  template <class T>
  MIXTAPE_HD static T part(T z, T most) {  // z / most; 1 or -1 if both are infinite, too
    return select(abs(z) == T(INFINITY), unit(z), z / most);
  }
};

// Predicates: the result is bool and there is no derivative.

struct Equal {
  static constexpr OpInfo info{"eq", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a == b; }
};
struct NotEqual {
  static constexpr OpInfo info{"ne", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a != b; }
};
struct Less {
  static constexpr OpInfo info{"lt", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a < b; }
};
struct LessEqual {
  static constexpr OpInfo info{"le", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a <= b; }
};
struct Greater {
  static constexpr OpInfo info{"gt", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a > b; }
};
struct GreaterEqual {
  static constexpr OpInfo info{"ge", Precision::Widest};
  MIXTAPE_HD static auto f(auto a, auto b) { return a >= b; }
};
struct And {
  static constexpr OpInfo info{"logical_and", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return both(a != T(0), b != T(0));
  }
};
struct Or {
  static constexpr OpInfo info{"logical_or", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return either(a != T(0), b != T(0));
  }
};

struct Swiglu {
  static constexpr OpInfo info{"swiglu", Precision::Widest};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    const Factors<T> s = factors(a);
    return a * s.outer * (b * s.inner);
  }
  template <class T>
  MIXTAPE_HD static T da(T a, T b, T) {
    const Factors<T> s = factors(a);
    return b * s.outer * (s.inner * (T(1) + a * s.rest));
  }
  MIXTAPE_HD static auto db(auto a, auto, auto) { return Silu::f(a); }
};

struct Xor {
  static constexpr OpInfo info{"logical_xor", Precision::Widest};
  template <class T>
  MIXTAPE_HD static auto f(T a, T b) {
    return differ(a != T(0), b != T(0));
  }
};

struct OfIntegers {  // alone
  static constexpr bool only_integers = true;
};
// Bits. (On bools the op runs the logical ops instead.)
struct BitAnd : OfIntegers {
  static constexpr OpInfo info{"bitwise_and"};
  MIXTAPE_HD static auto f(auto a, auto b) { return a & b; }
};
struct BitOr : OfIntegers {
  static constexpr OpInfo info{"bitwise_or"};
  MIXTAPE_HD static auto f(auto a, auto b) { return a | b; }
};
struct BitXor : OfIntegers {
  static constexpr OpInfo info{"bitwise_xor"};
  MIXTAPE_HD static auto f(auto a, auto b) { return a ^ b; }
};
struct LeftShift : OfIntegers {
  static constexpr OpInfo info{"bitwise_left_shift"};
  MIXTAPE_HD static auto f(auto a, auto b) { return a << b; }
};
struct RightShift : OfIntegers {  // keeps the sign
  static constexpr OpInfo info{"bitwise_right_shift"};
  MIXTAPE_HD static auto f(auto a, auto b) { return a >> b; }
};
struct Gcd : OfIntegers {  // the greatest common divisor, by Euclid's algorithm
  static constexpr OpInfo info{"gcd"};
  template <class T>
  MIXTAPE_HD static T f(T a, T b) {
    while (b != T(0)) {
      const T rest = fmod(a, b);
      a = b;
      b = rest;
    }
    return abs(a);
  }
};

using BinaryOps =
    OpList<Add, Sub, Mul, Div, Pow, Maximum, Minimum, Remainder, Atan2, Glu, Prelu, Equal, NotEqual,
           Less, LessEqual, Greater, GreaterEqual, And, Or, Xor, Swiglu, Fmod, Copysign, LogAddExp,
           LogAddExp2, FloorDivide, Hypot, BitAnd, BitOr, BitXor, LeftShift, RightShift, Gcd>;

}  // namespace mixtape::kernels
