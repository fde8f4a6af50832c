#pragma once
// Ops of one tensor: y = f(x), and the derivative from whichever of x and y the backward pass
// should keep. elementwise.h says how these are written.

#include "kernels/activation.h"

namespace mixtape::kernels {

struct Neg {
  static constexpr OpInfo info{"neg", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return -x; }
  template <class T>
  MIXTAPE_HD static T d_from_y(T) {
    return T(-1);
  }
};

struct Abs {
  static constexpr OpInfo info{"abs", Precision::Any};
  MIXTAPE_HD static auto f(auto x) { return abs(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x > T(0), T(1), select(x < T(0), T(-1), T(0)));
  }
};

struct Square {
  static constexpr OpInfo info{"square", Precision::Full};
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
  MIXTAPE_HD static auto d_from_y(auto y) { return -(y * y); }
};

struct Exp {
  static constexpr OpInfo info{"exp", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return exp(x); }
  MIXTAPE_HD static auto d_from_y(auto y) { return y; }
};

struct Expm1 {
  static constexpr OpInfo info{"expm1", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return expm1(x); }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return y + T(1);
  }
};

struct Log {
  static constexpr OpInfo info{"log", Precision::Full};
  static constexpr Domain domain{.low = 0.2};
  MIXTAPE_HD static auto f(auto x) { return log(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1) / x;
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

struct Sin {
  static constexpr OpInfo info{"sin", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return sin(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return cos(x); }
};

struct Cos {
  static constexpr OpInfo info{"cos", Precision::Full};
  MIXTAPE_HD static auto f(auto x) { return cos(x); }
  MIXTAPE_HD static auto d_from_x(auto x) { return -sin(x); }
};

struct Erf {
  static constexpr OpInfo info{"erf", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return erf(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return T(1.1283791670955126) * exp(-(x * x));  // 2 / sqrt(pi)
  }
};

using UnaryOps = OpList<Relu, Neg, Abs, Gelu, GeluTanh, Silu, Sigmoid, Tanh, Exp, Log, Square, Sqrt,
                        Rsqrt, Reciprocal, Sin, Cos, Erf, Log1p, Expm1, Softplus>;

}  // namespace mixtape::kernels
