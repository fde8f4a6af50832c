#pragma once
// Expr: a tensor or a constant. Instantiating a derivative of an elementwise op (kernels/) with it
// records that derivative on the tape, so that every such op can be differentiated to any order.

#include <cmath>
#include <functional>

#include "autograd/ops.h"
#include "kernels/common/elementwise.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

struct Expr {
  Tensor t;
  double constant = 0;

  Expr(double c = 0) : constant(c) {}
  Expr(const Tensor& x) : t(x) {}

  // The product with a gradient.
  Tensor times(const Tensor& dy) const {
    if (t) return mul(dy, cast(t, dy.dtype()));
    return constant == 1    ? dy
           : constant == -1 ? neg(dy)
           : constant == 0  ? zeros_like(dy)
                            : mul(dy, constant);
  }
};

// f(a, b). (A select() of two constants is f64 until it meets a tensor of another dtype.)
template <class F>
Expr combine(const Expr& a, const Expr& b, const F& f) {
  if (a.t && b.t) {
    const DType dtype = a.t.dtype() == f64 ? b.t.dtype() : a.t.dtype();
    return f(cast(a.t, dtype), cast(b.t, dtype));
  }
  if (a.t) return f(a.t, b.constant);
  if (b.t) return f(a.constant, b.t);
  return f(a.constant, b.constant);
}
inline Expr operator+(const Expr& a, const Expr& b) { return combine(a, b, std::plus()); }
inline Expr operator-(const Expr& a, const Expr& b) { return combine(a, b, std::minus()); }
inline Expr operator*(const Expr& a, const Expr& b) { return combine(a, b, std::multiplies()); }
inline Expr operator/(const Expr& a, const Expr& b) { return combine(a, b, std::divides()); }
inline Expr operator-(const Expr& a) { return a.t ? Expr(neg(a.t)) : Expr(-a.constant); }
inline Expr pow(const Expr& a, const Expr& b) {
  return combine(a, b, [](const auto& x, const auto& y) {
    using std::pow;
    return Expr(pow(x, y));
  });
}

// A comparison gives a bool tensor, or 1 or 0 for constants.
inline Expr operator>(const Expr& a, const Expr& b) { return combine(a, b, std::greater()); }
inline Expr operator<(const Expr& a, const Expr& b) { return combine(a, b, std::less()); }
inline Expr operator<=(const Expr& a, const Expr& b) { return combine(a, b, std::less_equal()); }
inline Expr operator>=(const Expr& a, const Expr& b) { return combine(a, b, std::greater_equal()); }
inline Expr operator==(const Expr& a, const Expr& b) {
  if (!b.t) return a.t ? Expr(eq(a.t, b.constant)) : Expr(a.constant == b.constant);
  return a.t ? eq(a.t, b.t) : eq(b.t, a.constant);
}
inline Expr select(const Expr& condition, const Expr& a, const Expr& b) {
  if (!condition.t) return condition.constant != 0 ? a : b;
  const DType dtype = a.t && (!b.t || a.t.dtype() != f64) ? a.t.dtype() : b.t ? b.t.dtype() : f64;
  const auto operand = [&](const Expr& e) {
    return e.t ? cast(e.t, dtype) : full({}, e.constant, dtype, condition.t.device());
  };
  return where(condition.t, operand(a), operand(b));
}
inline Expr exp(const Expr& x) { return exp(x.t); }
inline Expr exp2(const Expr& x) { return exp2(x.t); }
inline Expr log(const Expr& x) { return x.t ? Expr(log(x.t)) : Expr(std::log(x.constant)); }
inline Expr log1p(const Expr& x) { return log1p(x.t); }
inline Expr sqrt(const Expr& x) { return sqrt(x.t); }
inline Expr tanh(const Expr& x) { return tanh(x.t); }
inline Expr sigmoid(const Expr& x) { return sigmoid(x.t); }
inline kernels::Shares<Expr> shares(const Expr& x) { return {sigmoid(x), sigmoid(-x)}; }
inline kernels::Factors<Expr> factors(const Expr& x) { return {1, sigmoid(x), sigmoid(-x)}; }
inline kernels::Factors<Expr> gelu_tanh_factors(const Expr& x) {
  return factors(x * (Expr(kernels::gelu_k) + Expr(kernels::gelu_kc) * (x * x)));
}
inline kernels::Bend<Expr> bend(const Expr& x) { return {tanh(x), {}}; }  // no slope
// In f64; scalar.h's compensate for the rounded exponent.
inline Expr gaussian(const Expr& x, const Expr& s) {
  const Expr wide = cast(x.t, f64);
  return cast(exp(-(s * wide * wide)).t, x.t.dtype());
}
inline kernels::Normal<Expr> normal(const Expr& x) {
  const Tensor below = erfc(cast(x.t, f64) * -0.7071067811865476);
  return {cast(0.5 * below, x.t.dtype()), Expr(0.3989422804014327) * gaussian(x, 0.5)};
}
inline Expr erf(const Expr& x) { return erf(x.t); }
inline Expr erfc(const Expr& x) { return erfc(x.t); }
inline Expr erfinv(const Expr& x) { return erfinv(x.t); }
inline Expr digamma(const Expr& x) { return digamma(x.t); }
inline Expr trigamma(const Expr& x) { return kernels::special::trigamma(x); }
inline bool any(const Expr&) { return true; }  // as far as is known here
inline Expr bessel_i1(const Expr& x) { return kernels::special::bessel_i<1>(x); }
inline Expr abs(const Expr& x) { return x.t ? Expr(abs(x.t)) : Expr(std::abs(x.constant)); }
inline Expr differ(const Expr& a, const Expr& b) { return ne(a.t, b.t); }
inline Expr sin(const Expr& x) { return sin(x.t); }
inline Expr cos(const Expr& x) { return cos(x.t); }
inline Expr tan(const Expr& x) { return tan(x.t); }
inline Expr sinh(const Expr& x) { return sinh(x.t); }
inline Expr cosh(const Expr& x) { return cosh(x.t); }
inline Expr round(const Expr& x) { return round(x.t); }

// dy f' of an elementwise op.
template <class F>
Tensor passed(const Tensor& dy, const Expr& derivative) {
  if constexpr (kernels::HasGradient<F>) return F::gradient(Expr(dy), derivative).t;
  Tensor g = derivative.times(dy);
  // Masks only where 0 * dy would be NaN, since elsewhere the derivative has a derivative of its
  // own.
  if constexpr (kernels::Flat<F>)
    if (derivative.t)
      g = masked_fill(g, logical_and((derivative == 0).t, logical_not(isfinite(dy))), 0);
  return g;
}

// dy df/da and dy df/db of an op of two operands; a gradient may be a constant, as that of x^0.
inline Tensor like(const Tensor& x, const Expr& e) { return e.t ? e.t : full_like(x, e.constant); }
template <class F>
Tensor gradient_a(const Tensor& dy, const Expr& a, const Expr& b, const Expr& c) {
  if constexpr (kernels::HasGradients<F>)
    return like(dy, F::gradient_a(Expr(dy), a, b));
  else
    return passed<F>(dy, kernels::derivative_a<F>(a, b, c));
}
template <class F>
Tensor gradient_b(const Tensor& dy, const Expr& a, const Expr& b, const Expr& c) {
  if constexpr (kernels::HasGradients<F>)
    return like(dy, F::gradient_b(Expr(dy), a, b));
  else
    return passed<F>(dy, kernels::derivative_b<F>(a, b, c));
}

// A stand-in for an operand that records which operands a derivative reads: bit 0 a, 1 b, 2 c.
struct Reads {
  unsigned mask = 0;
  Reads() = default;
  Reads(double) {}
  static Reads operand(int i) {
    Reads r;
    r.mask = 1u << i;
    return r;
  }
  friend Reads operator|(Reads a, Reads b) {
    a.mask |= b.mask;
    return a;
  }
};
inline Reads operator+(Reads a, Reads b) { return a | b; }
inline Reads operator-(Reads a, Reads b) { return a | b; }
inline Reads operator*(Reads a, Reads b) { return a | b; }
inline Reads operator/(Reads a, Reads b) { return a | b; }
inline Reads operator-(Reads a) { return a; }
inline Reads operator>(Reads a, Reads b) { return a | b; }
inline Reads operator<(Reads a, Reads b) { return a | b; }
inline Reads operator==(Reads a, Reads b) { return a | b; }
inline Reads select(Reads c, Reads a, Reads b) { return c | a | b; }
inline Reads differ(Reads a, Reads b) { return a | b; }
inline Reads pow(Reads a, Reads b) { return a | b; }
inline Reads sqrt(Reads a) { return a; }
inline Reads abs(Reads a) { return a; }
inline Reads exp(Reads a) { return a; }
inline Reads log(Reads a) { return a; }
inline Reads round(Reads a) { return a; }
inline Reads sigmoid(Reads a) { return a; }

}  // namespace ops
}  // namespace mixtape
