#pragma once
// Activations: y = f(x, numbers...), and the derivative as a function of x or y. elementwise.h has
// the rules for formulas, and says which of the two an op saves.

#include "kernels/common/epilogue.h"
#include "kernels/common/scalar.h"

namespace mixtape::kernels {

struct Relu {
  static constexpr OpInfo info{"relu", Precision::Any};
  static constexpr bool flat = true;
  static constexpr bool exact = true;
  static constexpr bool integers = true;
  // Keeps NaN. A tape differentiates it to 0 at 0, as d_from_y does.
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x <= T(0), T(0), x);
  }
  // 1 for NaN, as in PyTorch, so that NaN propagates.
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return select(y <= T(0), T(0), T(1));
  }
};

struct Relu6 {
  static constexpr OpInfo info{"relu6", Precision::Any};
  static constexpr bool flat = true;
  static constexpr bool exact = true;
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x < T(0), T(0), select(x > T(6), T(6), x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_y(T y) {
    return select(y > T(0), select(y < T(6), T(1), T(0)), T(0));
  }
};

struct LeakyRelu {
  static constexpr OpInfo info{"leaky_relu", Precision::Any};
  template <class T>
  MIXTAPE_HD static T f(T x, T slope) {
    return select(x > T(0), x, x * slope);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x, T slope) {
    return select(x > T(0), T(1), slope);
  }
};

struct Elu {
  static constexpr OpInfo info{"elu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x, T alpha) {
    return select(x > T(0), x, alpha * expm1(x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x, T alpha) {
    return select(x > T(0), T(1), alpha * exp(select(x > T(0), T(0), x)));
  }
};

struct Selu {  // elu with the alpha and the scale that keep mean 0 and variance 1
  static constexpr OpInfo info{"selu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x > T(0), T(scale) * x, T(scale * alpha) * expm1(x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x > T(0), T(scale), T(scale * alpha) * exp(select(x > T(0), T(0), x)));
  }

 private:
  static constexpr double alpha = 1.6732632423543772, scale = 1.0507009873554805;
};

struct Gelu {  // x times the normal distribution's cumulative function
  static constexpr OpInfo info{"gelu", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return x * normal(x).cumulative; }
  MIXTAPE_HD static auto d_from_x(auto x) {
    const auto [cumulative, density] = normal(x);
    return cumulative + within_tails(x) * density;
  }
};

struct GeluTanh {  // GPT-2's approximation of gelu; (1 + tanh(z)) / 2 is sigmoid(2 z)
  static constexpr OpInfo info{"gelu_tanh", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    const Factors<T> s = gelu_tanh_factors(x);
    return x * s.outer * s.inner;
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T a = within_tails(x);
    const Factors<T> s = gelu_tanh_factors(a);
    return s.outer * (s.inner + a * (T(gelu_k) + T(3 * gelu_kc) * (a * a)) * (s.inner * s.rest));
  }
};

struct Silu {
  static constexpr OpInfo info{"silu", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    const Factors<T> s = factors(x);
    return x * s.outer * s.inner;
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const Factors<T> s = factors(x);
    return s.outer * (s.inner * (T(1) + x * s.rest));
  }
};

struct Sigmoid {
  static constexpr OpInfo info{"sigmoid", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return sigmoid(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const Shares<T> s = shares(x);
    return s.share * s.rest;
  }
};

struct Hardsigmoid {
  static constexpr OpInfo info{"hardsigmoid", Precision::Native};
  static constexpr bool flat = true;
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return Relu6::f(x + T(3)) / T(6);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x > T(-3), select(x < T(3), T(1.0 / 6), T(0)), T(0));
  }
};

struct Hardswish {  // x hardsigmoid(x)
  static constexpr OpInfo info{"hardswish", Precision::Native};
  static constexpr bool flat = true;
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return x * (Relu6::f(x + T(3)) / T(6));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    return select(x < T(-3), T(0), select(x > T(3), T(1), (x + T(1.5)) / T(3)));
  }
};

// e^x, also as a product of two factors (its roots below 0, as in Factors), and n + 2 with
// n = e^x (e^x + 2).
template <class T>
struct MishTerms {
  T e, outer, inner, sum;

  MIXTAPE_HD explicit MishTerms(T x) {
    const T root = exp(T(0.5) * select(x > T(20), T(20), x));
    e = root * root;
    outer = select(x < T(0), root, T(1));
    inner = select(x < T(0), root, e);
    sum = e * (e + T(2)) + T(2);
  }
};
// x tanh(softplus(x)) = x n / (n + 2); beyond x = 20 the quotient is 1 in any dtype.
struct Mish {
  static constexpr OpInfo info{"mish", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    const MishTerms<T> t(x);
    return x * t.outer * (t.inner * (t.e + T(2)) / t.sum);
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const MishTerms<T> t(x);
    const T y = t.e * (t.e + T(2)) / t.sum;
    return t.outer * (t.inner * (t.e + T(2)) / t.sum + x * (T(1) - y * y) * t.inner / (t.e + T(1)));
  }
};

struct Tanh {
  static constexpr OpInfo info{"tanh", Precision::Native};
  MIXTAPE_HD static auto f(auto x) { return tanh(x); }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {  // of tanh(x) = 2 sigmoid(2 x) - 1
    const Shares<T> s = shares(T(2) * x);
    return T(4) * (s.share * s.rest);
  }
};

struct Softsign {  // x / (1 + |x|)
  static constexpr OpInfo info{"softsign", Precision::Native};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return x / (T(1) + abs(x));
  }
  template <class T>
  MIXTAPE_HD static T d_from_x(T x) {
    const T part = T(1) / (T(1) + abs(x));
    return part * part;
  }
};

struct Softplus {  // log(1 + exp(x)), written so that exp cannot overflow
  static constexpr OpInfo info{"softplus", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x > T(0), x, T(0)) + log1p(exp(-abs(x)));
  }
  MIXTAPE_HD static auto d_from_x(auto x) { return sigmoid(x); }
};

struct LogSigmoid {  // -softplus(-x)
  static constexpr OpInfo info{"log_sigmoid", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x) {
    return select(x < T(0), x, T(0)) - log1p(exp(-abs(x)));
  }
  MIXTAPE_HD static auto d_from_x(auto x) { return sigmoid(-x); }
};

using Activations = OpList<Relu, Relu6, LeakyRelu, Elu, Selu, Gelu, GeluTanh, Silu, Sigmoid,
                           Hardsigmoid, Hardswish, Mish, Tanh, Softsign, Softplus, LogSigmoid>;

// Calls f.operator()<F>() with the activation of an epilogue, if it has one.
template <class F>
MIXTAPE_HD void visit_activation(Activation a, F f) {
  switch (a) {
    case Activation::None:
      return;
    case Activation::Relu:
      return f.template operator()<Relu>();
    case Activation::Gelu:
      return f.template operator()<Gelu>();
    case Activation::GeluTanh:
      return f.template operator()<GeluTanh>();
  }
}

}  // namespace mixtape::kernels
