#pragma once
// Elementwise losses of a prediction x and its target t: formulas and derivatives, written as in
// elementwise.h. s is the parameter that some of them take.

#include "kernels/common/elementwise.h"

namespace mixtape::kernels {

// A loss of the difference d = x - t: F has of(d, s) and its derivative.
template <class F>
struct OfDifference {
  MIXTAPE_HD static auto f(auto x, auto t, auto s) { return F::of(x - t, s); }
  MIXTAPE_HD static auto dx(auto x, auto t, auto s) { return F::derivative(x - t, s); }
  MIXTAPE_HD static auto dt(auto x, auto t, auto s) { return -F::derivative(x - t, s); }
};

// s is a factor of the square, which may be too large without it.
struct SquaredError : OfDifference<SquaredError> {
  static constexpr OpInfo info{"mse_loss", Precision::Full};
  MIXTAPE_HD static auto of(auto d, auto s) { return d * (d * s); }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T s) {
    return T(2) * d * s;
  }
};

struct AbsoluteError : OfDifference<AbsoluteError> {
  static constexpr OpInfo info{"l1_loss", Precision::Full};
  MIXTAPE_HD static auto of(auto d, auto) { return abs(d); }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T) {
    return select(d > T(0), T(1), select(d < T(0), T(-1), T(0)));
  }
};

struct SmoothL1 : OfDifference<SmoothL1> {  // s is beta
  static constexpr OpInfo info{"smooth_l1_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T s) {
    return select(abs(d) < s, T(0.5) * d * (d / s), abs(d) - T(0.5) * s);
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T s) {
    return select(d > s, T(1), select(d < -s, T(-1), d / s));  // NaN stays
  }
};

struct Huber : OfDifference<Huber> {  // s is delta
  static constexpr OpInfo info{"huber_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T s) {
    return select(abs(d) < s, T(0.5) * d * d, s * (abs(d) - T(0.5) * s));
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T s) {
    return select(d > s, s, select(d < -s, -s, d));
  }
};

// At probabilities of 0 and 1 logarithms are clamped to -100, and the slope to 1e12.
struct BinaryCrossEntropy {
  static constexpr OpInfo info{"binary_cross_entropy", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T) {
    return (t - T(1)) * bounded(log1p(-x)) - t * bounded(log(x));
  }
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T) {
    const T v = x * (T(1) - x);
    return (x - t) / select(v < T(1e-12), T(1e-12), v);
  }
  // (Where the logarithms are nearly equal, that of their quotient is exact.)
  template <class T>
  MIXTAPE_HD static T dt(T x, T, T) {
    const auto even = abs(x - T(0.5)) < T(0.25);
    const T v = select(even, x, T(0.5)), quotient = log1p((T(1) - T(2) * v) / v);
    return select(even, quotient, bounded(log1p(-x)) - bounded(log(x)));
  }

 private:
  template <class T>
  MIXTAPE_HD static T bounded(T logarithm) {
    return select(logarithm < T(-100), T(-100), logarithm);
  }
};

// Binary cross-entropy of sigmoid(x), so that exp cannot overflow: softplus(x) - t x, in a form in
// which an infinite x occurs once.
struct BinaryCrossEntropyWithLogits {
  static constexpr OpInfo info{"binary_cross_entropy_with_logits", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T) {
    return select(x > T(0), T(1) - t, -t) * x + log1p(exp(-abs(x)));
  }
  // sigmoid(x) - t, without the rounding of a sigmoid near 1, which a target of 1 would bare.
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T) {
    const T s = sigmoid(select(x > T(0), -x, x));
    return select(x > T(0), (T(1) - t) - s, s - t);
  }
  MIXTAPE_HD static auto dt(auto x, auto, auto) { return -x; }
};

// A target of 0 costs nothing, whatever x is.
struct KlDiv {
  static constexpr OpInfo info{"kl_div", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T) {
    return select(t == T(0), T(0), t * (log(t) - x));
  }
  MIXTAPE_HD static auto dx(auto, auto t, auto) { return -t; }
  template <class T>
  MIXTAPE_HD static T dt(T x, T t, T) {
    return log(t) + T(1) - x;
  }
};
struct KlDivOfLogarithms {
  static constexpr OpInfo info{"kl_div_log_target", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T) {
    const T p = exp(t);
    return select(p == T(0), T(0), p * (t - x));
  }
  MIXTAPE_HD static auto dx(auto, auto t, auto) { return -exp(t); }
  template <class T>
  MIXTAPE_HD static T dt(T x, T t, T) {
    return exp(t) * (t - x + T(1));
  }
};

using Losses = OpList<SquaredError, AbsoluteError, SmoothL1, Huber, BinaryCrossEntropy,
                      BinaryCrossEntropyWithLogits, KlDiv, KlDivOfLogarithms>;

}  // namespace mixtape::kernels
