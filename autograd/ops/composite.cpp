// Elementwise functions that are composed of other ops.

#include <limits>
#include <numbers>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/pointwise.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

constexpr double pi = std::numbers::pi;

Tensor x_log_y(const Tensor& x, const Tensor& y) {  // of floats that are not half
  const Tensor none = logical_and(eq(x, 0), logical_or(le(y, 0), isinf(y)));
  return x * log(where(none, 1, y));
}

// Near 0 a power series in t^2, t = pi x, since terms of the derivative cancel there; elsewhere the
// sine of the distance to the nearest integer, which is exact.
Tensor sinc_of(const Tensor& x) {
  const Tensor far = gt(abs(x), 0.125), t = square(masked_fill(x, far, 0) * pi);
  Tensor near = number_like(x, 1);
  for (int k = 7; k > 0; --k) near = 1.0 - near * t / (2.0 * k * (2 * k + 1));
  const Tensor away = masked_fill(x, logical_not(far), 1), whole = round(away.detach());
  const Tensor odd = remainder(whole, 2), sine = sin((away - whole) * pi) * (1.0 - odd * 2);
  return where(far, sine / (away * pi), near);
}

}  // namespace

// Compares, since maximum() and minimum() would share the gradient at a bound. NaN in x or in a
// bound stays, and NaN in x gets no gradient, as with numbers for bounds.
Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high) {
  const Scope scope("clamp");
  check(low || high, "no bound is given");
  Tensor y = low ? where(logical_or(lt(x, low), isnan(low)), low, x) : x;
  if (high) y = where(logical_or(gt(y, high), isnan(high)), high, y);
  return x.requires_grad() && grad_enabled() ? where(isnan(x), x.detach(), y) : y;
}
Tensor fmax(const Tensor& a, const Tensor& b) {
  const Scope scope("fmax");
  return where(logical_or(ge(a, b), isnan(b)), a, b);
}
Tensor fmin(const Tensor& a, const Tensor& b) {
  const Scope scope("fmin");
  return where(logical_or(le(a, b), isnan(b)), a, b);
}

Tensor deg2rad(const Tensor& x) { return mul(dividend(x), pi / 180); }
Tensor rad2deg(const Tensor& x) { return mul(dividend(x), 180 / pi); }
Tensor sinc(const Tensor& x) {
  const Scope scope("sinc");
  return in_wider(sinc_of, x);
}

Tensor xlogy(const Tensor& a, const Tensor& b) {
  const Scope scope("xlogy");
  check_real(a);
  check_real(b);
  return in_f32(x_log_y, a, b);
}
Tensor xlogy(const Tensor& a, double b) {
  const Scope scope("xlogy");
  check_real(a);
  return in_f32([b](const Tensor& x) { return x_log_y(x, number_like(x, b)); }, a);
}
Tensor xlogy(double a, const Tensor& b) {
  const Scope scope("xlogy");
  check_real(b);
  return in_f32([a](const Tensor& y) { return x_log_y(number_like(y, a), y); }, b);
}

// The logarithm needs no threshold: from 20 on, this is x to 1e-10.
Tensor softplus(const Tensor& x, double beta, double threshold) {
  if (beta == 1 && threshold >= 20) return softplus(x);
  const Scope scope("softplus");
  check_real(x);
  check(beta > 0, "beta must be > 0, got {}", beta);
  const auto smooth = [&](const Tensor& w) {
    return where(gt(w * beta, threshold), w, softplus(w * beta) / beta);
  };
  return in_f32(smooth, x);
}

Tensor celu(const Tensor& x, double alpha) {
  const Scope scope("celu");
  check_real(x);
  check(alpha > 0, "alpha must be > 0, got {}", alpha);
  if (alpha == 1) return elu(x);
  // (x / alpha * alpha would round, and overflow for a small alpha.)
  const Tensor w = wide(x), above = gt(w, 0);
  return cast(where(above, w, elu(masked_fill(w, above, 0) / alpha) * alpha), x.dtype());
}
Tensor softshrink(const Tensor& x, double size) {
  const Scope scope("softshrink");
  check_real(x);
  check(size >= 0, "the size must be >= 0, got {}", size);
  const Tensor w = wide(x);
  return cast(w - clamp(w, -size, size), x.dtype());
}
Tensor hardshrink(const Tensor& x, double size) {
  const Scope scope("hardshrink");
  return masked_fill(x, le(abs(x), size), 0);
}
Tensor tanhshrink(const Tensor& x) {
  const Scope scope("tanhshrink");
  const Tensor w = cast(x, f64);  // near 0 the terms cancel
  return cast(w - tanh(w), is_float(x.dtype()) ? x.dtype() : f32);
}
Tensor threshold(const Tensor& x, double threshold, double value) {
  const Scope scope("threshold");
  return masked_fill(x, le(x, threshold), value);
}
Tensor rrelu(const Tensor& x, double lower, double upper) {
  const Scope scope("rrelu");
  check_real(x);
  check(lower <= upper, "lower must be <= upper, got {} and {}", lower, upper);
  return where(gt(x, 0), x, x * uniform(x.shape(), lower, upper, x.dtype(), x.device()));
}
Tensor softmin(const Tensor& x, int dim) {
  const Scope scope("softmin");
  return softmax(-x, dim);
}

// Adds Gumbel noise, -log(-log(u)) for uniform numbers u, where 0 counts as half a step.
Tensor gumbel_softmax(const Tensor& logits, double tau, bool hard, int dim) {
  const Scope scope("gumbel_softmax");
  check_real(logits);
  check(tau > 0, "tau must be > 0, got {}", tau);
  const DType dtype = accumulate_dtype(logits.dtype());
  const Tensor u = clamp(rand(logits.shape(), dtype, logits.device()), 0x1p-25, {});
  const auto drawn = [&](const Tensor& x) {
    const Tensor soft = softmax((x - log(-log(u))) / tau, dim);
    if (!hard) return soft;
    const Tensor best = argmax(soft.detach(), dim, true);
    const Tensor one = scatter(zeros_like(soft), dim, best, ones(best.shape(), dtype, u.device()));
    return one + (soft - soft.detach());  // has the gradient of the soft result
  };
  return in_f32(drawn, logits);
}

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> inf,
                  std::optional<double> minus_inf) {
  const Scope scope("nan_to_num");
  if (!is_float(x.dtype())) return x;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double most = largest(x.dtype());
  Tensor y = masked_fill(x, isnan(x), nan);
  if (inf) y = masked_fill(y, eq(x, infinity), *inf);
  if (minus_inf) y = masked_fill(y, eq(x, -infinity), *minus_inf);
  return clamp(y, minus_inf ? -infinity : -most, inf ? infinity : most);
}

BoolTensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  const Scope scope("isclose");
  const NoGrad off;
  const Tensor x = a.to(f64), y = b.to(f64), apart = abs(x - y);
  const BoolTensor near = eq(x, y) | (isfinite(apart) & (apart <= atol + rtol * abs(y)));
  return equal_nan ? near | (isnan(x) & isnan(y)) : near;
}
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  const Scope scope("allclose");
  return all(isclose(a, b, rtol, atol, equal_nan)).item<bool>();
}
bool equal(const Tensor& a, const Tensor& b) {
  const Scope scope("equal");
  return a.dtype() == b.dtype() && a.shape() == b.shape() && all(eq(a, b)).item<bool>();
}

}  // namespace mixtape
