#pragma once
// Elementwise losses of a prediction x and its target t: formulas and derivatives, written as in
// elementwise.h. s is the parameter that some of them take. w multiplies losses of differences,
// since a mean may be in range where a single loss is not.

#include "kernels/common/activation.h"
#include "kernels/common/elementwise.h"

namespace mixtape::kernels {

// x - t = d unit: half the difference and 2 if the difference is out of T's range, else the
// difference and 1.
template <class T>
struct Difference {
  T d, unit;
};
template <class T>
MIXTAPE_HD Difference<T> difference(T x, T t) {
  const T d = x - t;
  const auto finite = d - d == T(0);
  return {select(finite, d, T(0.5) * x - T(0.5) * t), select(finite, T(1), T(2))};
}

// A loss of the difference d = x - t: F has of(d, s, w) and its derivative. If d and s double, the
// loss grows by 2^degree.
template <class F, int degree>
struct OfDifference {
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T s, T w) {
    const auto [d, unit] = difference(x, t);
    const T y = F::of(d, s / unit, w) * unit;
    return degree == 2 ? y * unit : y;
  }
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T s, T w) {
    const auto [d, unit] = difference(x, t);
    const T slope = F::derivative(d, s / unit, w);
    return degree == 2 ? slope * unit : slope;
  }
  MIXTAPE_HD static auto dt(auto x, auto t, auto s, auto w) { return -dx(x, t, s, w); }
};

struct SquaredError : OfDifference<SquaredError, 2> {
  static constexpr OpInfo info{"mse_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T, T w) {
    return d * (d * w);
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T, T w) {
    return T(2) * (d * w);
  }
};

struct AbsoluteError : OfDifference<AbsoluteError, 1> {
  static constexpr OpInfo info{"l1_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T, T w) {
    return abs(d) * w;
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T, T w) {
    return select(d > T(0), w, select(d < T(0), -w, T(0)));
  }
};

struct SmoothL1 : OfDifference<SmoothL1, 1> {  // s is beta
  static constexpr OpInfo info{"smooth_l1_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T s, T w) {
    return select(abs(d) < s, T(0.5) * d * (d / s), abs(d) - T(0.5) * s) * w;
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T s, T w) {
    return select(d > s, w, select(d < -s, -w, d / s * w));  // NaN stays
  }
};

struct Huber : OfDifference<Huber, 2> {  // s is delta
  static constexpr OpInfo info{"huber_loss", Precision::Full};
  template <class T>
  MIXTAPE_HD static T of(T d, T s, T w) {
    return select(abs(d) < s, T(0.5) * d * (d * w), s * ((abs(d) - T(0.5) * s) * w));
  }
  template <class T>
  MIXTAPE_HD static T derivative(T d, T s, T w) {
    return select(d > s, s, select(d < -s, -s, d)) * w;
  }
};

// At probabilities of 0 and 1 logarithms are clamped to -100, and the slope to 1e12.
struct BinaryCrossEntropy {
  static constexpr OpInfo info{"binary_cross_entropy", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T, T) {
    return (t - T(1)) * bounded(log1p(-x)) - t * bounded(log(x));
  }
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T, T) {
    const T v = x * (T(1) - x);
    return (x - t) / select(v < T(1e-12), T(1e-12), v);
  }
  // (Where the logarithms are nearly equal, that of their quotient is exact.)
  template <class T>
  MIXTAPE_HD static T dt(T x, T, T, T) {
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
  MIXTAPE_HD static T f(T x, T t, T, T) {
    return select(x > T(0), T(1) - t, -t) * x + log1p(exp(-abs(x)));
  }
  // sigmoid(x) - t. A sigmoid near 1 would be rounded, and for a target of 1 only its error would
  // remain.
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T, T) {
    const T s = sigmoid(select(x > T(0), -x, x));
    return select(x > T(0), (T(1) - t) - s, s - t);
  }
  MIXTAPE_HD static auto dt(auto x, auto, auto, auto) { return -x; }
};

// A target of 0 costs nothing, whatever x is.
struct KlDiv {
  static constexpr OpInfo info{"kl_div", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T, T) {
    return select(t == T(0), T(0), t * (log(t) - x));
  }
  MIXTAPE_HD static auto dx(auto, auto t, auto, auto) { return -t; }
  template <class T>
  MIXTAPE_HD static T dt(T x, T t, T, T) {
    return log(t) + T(1) - x;
  }
};
struct KlDivOfLogarithms {
  static constexpr OpInfo info{"kl_div_log_target", Precision::Full};
  template <class T>
  MIXTAPE_HD static T f(T x, T t, T, T) {
    const T p = exp(t);
    return select(p == T(0), T(0), p * (t - x));
  }
  MIXTAPE_HD static auto dx(auto, auto t, auto, auto) { return -exp(t); }
  template <class T>
  MIXTAPE_HD static T dt(T x, T t, T, T) {
    return exp(t) * (t - x + T(1));
  }
};

// Losses whose terms cancel, or leave the range of f32 where their sum does not: those of f32 are
// computed in f64.
struct Wide {
  static constexpr bool wide = true;
};
struct SoftMargin : Wide {  // log(1 + exp(-t x))
  static constexpr OpInfo info{"soft_margin_loss", Precision::Full};
  MIXTAPE_HD static auto f(auto x, auto t, auto, auto) { return Softplus::f(-t * x); }
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T, T) {
    return -t * sigmoid(-t * x);
  }
  MIXTAPE_HD static auto dt(auto x, auto t, auto s, auto w) { return dx(t, x, s, w); }
};
struct PoissonNll : Wide {  // exp(x) - t x
  static constexpr OpInfo info{"poisson_nll_loss", Precision::Full};
  MIXTAPE_HD static auto f(auto x, auto t, auto, auto) { return exp(x) - t * x; }
  MIXTAPE_HD static auto dx(auto x, auto t, auto, auto) { return exp(x) - t; }
  MIXTAPE_HD static auto dt(auto x, auto, auto, auto) { return -x; }
};
struct PoissonRateNll : Wide {  // x - t log(x + s)
  static constexpr OpInfo info{"poisson_rate_nll_loss", Precision::Full};
  MIXTAPE_HD static auto f(auto x, auto t, auto s, auto) { return x - t * log(x + s); }
  template <class T>
  MIXTAPE_HD static T dx(T x, T t, T s, T) {
    return T(1) - t / (x + s);
  }
  MIXTAPE_HD static auto dt(auto x, auto, auto s, auto) { return -log(x + s); }
};

using Losses = OpList<SquaredError, AbsoluteError, SmoothL1, Huber, BinaryCrossEntropy,
                      BinaryCrossEntropyWithLogits, KlDiv, KlDivOfLogarithms, SoftMargin,
                      PoissonNll, PoissonRateNll>;

template <class F>
concept WideLoss = requires { requires F::wide; };
// The dtype in which a loss is computed for predictions of dtype t.
template <class F>
constexpr DType loss_dtype(DType t) {
  return t == f64 || (WideLoss<F> && t == f32) ? f64 : f32;
}

}  // namespace mixtape::kernels
