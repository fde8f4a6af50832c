// Elementwise ops: one op for every struct in kernels/elementwise.h, and the few that are not maths
// (where, masked_fill, cast, clone).

#include "kernels/elementwise.h"

#include <cmath>
#include <limits>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/expr.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {

Expr pow(const Expr& a, const Expr& b) {
  return combine(a, b, [](const auto& x, const auto& y) {
    using std::pow;
    if constexpr (std::is_same_v<std::decay_t<decltype(x)>, double> &&
                  std::is_same_v<std::decay_t<decltype(y)>, Tensor>)
      return Expr(exp(mul(y, std::log(x))));
    else
      return Expr(pow(x, y));
  });
}

namespace {

template <class F>
struct Unary {
  static constexpr OpInfo info = F::info;
  static constexpr int id = kernels::index_in<F>(kernels::UnaryOps{});

  static Tensor forward(Ctx& ctx, const Tensor& x) {
    check(is_float(x.dtype()), "of {} elements (convert them to a float dtype)", x.dtype());
    Tensor y = ctx.output(x.shape());
    ctx.run(kernels::unary, id, x, y);
    if constexpr (kernels::NeedsX<F>)
      ctx.save(x);
    else
      ctx.save_result(y);
    return y;
  }
  // dx = dy f'
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor v = ctx.saved(0);
    if (grad_enabled()) return {kernels::derivative<F>(Expr(cast(v, dy.dtype()))).times(dy)};
    Tensor dx = ctx.like(0);
    ctx.run(kernels::unary_grad, id, v, dy, dx);
    return {dx};
  }
};

// Which of a, b and c (bits 0, 1, 2) the derivatives with respect to a and to b read.
template <class F>
unsigned reads_da() {
  static const unsigned mask =
      kernels::derivative_a<F>(Reads::operand(0), Reads::operand(1), Reads::operand(2)).mask;
  return mask;
}
template <class F>
unsigned reads_db() {
  static const unsigned mask =
      kernels::derivative_b<F>(Reads::operand(0), Reads::operand(1), Reads::operand(2)).mask;
  return mask;
}
// Whether the gradient is that of the result, as it is.
template <class F>
constexpr bool passes_a() {
  if constexpr (kernels::ConstantA<F>) return F::da == 1;
  return false;
}
template <class F>
constexpr bool passes_b() {
  if constexpr (kernels::ConstantB<F>) return F::db == 1;
  return false;
}

// What a rule reads: saved tensors as operands of an expression, nothing elsewhere.
Expr operand(const Ctx& ctx, unsigned reads, size_t i, DType dtype) {
  return reads >> i & 1 ? Expr(cast(ctx.saved(i), dtype)) : Expr(0);
}
Tensor saved(const Ctx& ctx, unsigned reads, size_t i) {
  return reads >> i & 1 ? ctx.saved(i) : Tensor();
}
// Whether the gradient of a narrow input is wanted in f32.
bool wants_wide(const Ctx& ctx, size_t i) {
  return is_narrow(ctx.dtype(i)) && ctx.grad_dtype(i) == f32;
}

// Keeps of a, b and c what the derivatives read.
template <class F>
struct Binary {
  static constexpr OpInfo info = F::info;
  static constexpr bool broadcasts = true;
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});

  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b) {
    check(a.dtype() != boolean, "of bool elements (convert them to a number dtype)");
    Tensor c = ctx.output(a.shape());
    ctx.run(kernels::binary, id, a, b, c);
    if (const unsigned reads = reads_da<F>() | reads_db<F>(); ctx.recording() && reads) {
      const Tensor none;
      ctx.save(reads & 1 ? a : none, reads & 2 ? b : none);
      if (reads & 4) ctx.save_result(c);
    }
    return c;
  }
  // da = dy df/da, db = dy df/db
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return grad_enabled() ? recorded(ctx, dy) : fused(ctx, dy);
  }

 private:
  static Grads recorded(const Ctx& ctx, const Tensor& dy) {
    const auto read = [&](unsigned reads, size_t i) { return operand(ctx, reads, i, dy.dtype()); };
    const unsigned a = reads_da<F>(), b = reads_db<F>();
    return ctx.grads(
        [&] { return kernels::derivative_a<F>(read(a, 0), read(a, 1), read(a, 2)).times(dy); },
        [&] { return kernels::derivative_b<F>(read(b, 0), read(b, 1), read(b, 2)).times(dy); });
  }
  static Grads fused(const Ctx& ctx, const Tensor& dy) {
    const bool a = ctx.wants(0) && !passes_a<F>(), b = ctx.wants(1) && !passes_b<F>();
    Tensor da = dy, db = dy;
    if (a || b) {
      const bool wide = (a && wants_wide(ctx, 0)) || (b && wants_wide(ctx, 1));
      const auto made = [&](size_t i) {
        return ctx.output(ctx.shape(i), wide ? f32 : ctx.dtype(i));
      };
      const unsigned reads = (a ? reads_da<F>() : 0) | (b ? reads_db<F>() : 0);
      if (a) da = made(0);
      if (b) db = made(1);
      const Tensor none;
      ctx.run(kernels::binary_grad, id, saved(ctx, reads, 0), saved(ctx, reads, 1),
              saved(ctx, reads, 2), dy, a ? da : none, b ? db : none);
    }
    return {da, db};
  }
};

template <class F>
struct Predicate {
  static constexpr OpInfo info = F::info;
  static constexpr bool broadcasts = true;
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});

  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b) {
    Tensor c = ctx.output(a.shape(), boolean);
    ctx.run(kernels::binary, id, a, b, c);
    return c;
  }
};

template <std::string_view const& text, std::string_view const& suffix>
constexpr auto joined = [] {
  std::array<char, text.size() + suffix.size()> both{};
  std::copy(suffix.begin(), suffix.end(), std::copy(text.begin(), text.end(), both.begin()));
  return both;
}();

// A tensor and a number: f(x, s), or f(s, x) if Swapped. A number never widens a tensor, but a
// number divided by a tensor is a reciprocal, which wants f32.
template <class F, bool Swapped>
struct WithScalar {
  static constexpr std::string_view base = F::info.name,
                                    suffix = Swapped ? "_from_scalar" : "_scalar";
  static constexpr OpInfo info{{joined<base, suffix>.data(), joined<base, suffix>.size()},
                               kernels::Predicate<F>                       ? Precision::Any
                               : Swapped&& std::is_same_v<F, kernels::Div> ? Precision::Full
                                                                           : F::info.precision};
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});

  static Tensor forward(Ctx& ctx, const Tensor& x, double s) {
    check(x.dtype() != boolean || kernels::Predicate<F>,
          "of bool elements (convert them to a number dtype)");
    check(is_float(x.dtype()) || kernels::Predicate<F> || s == std::trunc(s),
          "of {} elements and {} (convert them to a float dtype)", x.dtype(), s);
    Tensor y = ctx.output(x.shape(), kernels::Predicate<F> ? boolean : ctx.dtype());
    ctx.run(kernels::binary_scalar, id, x, s, Swapped, y);
    if constexpr (!kernels::Predicate<F>) {
      const Tensor none;
      ctx.save(reads() & 1 ? x : none);
      if (reads() & 2) ctx.save_result(y);
    }
    return y;
  }

 protected:
  static unsigned reads() {  // bit 0: x, bit 1: y
    const unsigned abc = Swapped ? reads_db<F>() : reads_da<F>();
    return (abc >> (Swapped ? 1 : 0) & 1) | (abc >> 1 & 2);
  }
};
template <class F, bool Swapped>
struct WithScalarGrad : WithScalar<F, Swapped> {
  using Base = WithScalar<F, Swapped>;
  // dx = dy df/dx
  static Grads backward(const Ctx& ctx, const Tensor& dy, double s) {
    if constexpr (Swapped ? passes_b<F>() : passes_a<F>()) return {dy};
    const unsigned reads = Base::reads();
    if (grad_enabled()) {
      const Expr x = operand(ctx, reads, 0, dy.dtype()), y = operand(ctx, reads, 1, dy.dtype());
      return {(Swapped ? kernels::derivative_b<F>(Expr(s), x, y)
                       : kernels::derivative_a<F>(x, Expr(s), y))
                  .times(dy)};
    }
    Tensor dx = ctx.output(ctx.shape(0), wants_wide(ctx, 0) ? f32 : ctx.dtype(0));
    ctx.run(kernels::binary_scalar_grad, Base::id, saved(ctx, reads, 0), s, Swapped,
            saved(ctx, reads, 1), dy, dx);
    return {dx};
  }
};

struct WhereOp {
  static constexpr OpInfo info{
      "where", Precision::Widest, {Role::Mask, Role::Activation, Role::Activation}};
  static constexpr bool broadcasts = true;
  static Tensor forward(Ctx& ctx, const Tensor& condition, const Tensor& a, const Tensor& b) {
    Tensor y = ctx.output(a.shape());
    // (A policy may ask for a result wider than the operands, which the kernel only moves.)
    ctx.run(kernels::where, condition, cast(a, y.dtype()), cast(b, y.dtype()), y);
    ctx.save(condition);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor condition = ctx.saved(0),
                 none = expand(zeros({}, dy.dtype(), dy.device()), dy.shape());
    return ctx.grads([] { return Tensor(); }, [&] { return call<WhereOp>(condition, dy, none); },
                     [&] { return call<WhereOp>(condition, none, dy); });
  }
};

struct MaskedFill {
  static constexpr OpInfo info{"masked_fill", Precision::Any, {Role::Activation, Role::Mask}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& mask, double value) {
    if (x.dtype() == f16 && std::isfinite(value)) value = std::clamp(value, -65504.0, 65504.0);
    if (x.dtype() == bf16 && std::isfinite(value))
      value = std::clamp(value, -0x1.fep127, 0x1.fep127);
    Tensor y = ctx.output(x.shape());
    ctx.run(kernels::where, mask, expand(full({}, value, x.dtype(), x.device()), x.shape()), x, y);
    ctx.save(mask);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return {call<MaskedFill>(dy, ctx.saved(0), 0.0)};
  }
};

struct Cast {
  static constexpr OpInfo info{"cast"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, DType to) {
    Tensor y = ctx.output(x.shape(), to);
    ctx.run(kernels::convert, x, y);
    return y;
  }
  // The engine converts a gradient to the dtype its receiver wants; there is nothing else to do.
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy}; }
};
struct CastToInteger {  // piecewise constant: no gradient
  static constexpr OpInfo info{"cast_to_integer"};
  static Tensor forward(Ctx& ctx, const Tensor& x, DType to) { return Cast::forward(ctx, x, to); }
};

struct Clone {
  static constexpr OpInfo info{"clone"};
  static constexpr bool moves_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    Tensor y = ctx.output(x.shape());
    ctx.run(kernels::convert, x, y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy}; }
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Add>>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Sub>>(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Mul>>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Div>>(a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Pow>>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Maximum>>(a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Minimum>>(a, b); }
Tensor add(const Tensor& a, double b) { return call<WithScalarGrad<kernels::Add, false>>(a, b); }
Tensor sub(const Tensor& a, double b) { return call<WithScalarGrad<kernels::Sub, false>>(a, b); }
Tensor mul(const Tensor& a, double b) { return call<WithScalarGrad<kernels::Mul, false>>(a, b); }
Tensor div(const Tensor& a, double b) { return call<WithScalarGrad<kernels::Div, false>>(a, b); }
Tensor pow(const Tensor& a, double b) { return call<WithScalarGrad<kernels::Pow, false>>(a, b); }
Tensor sub(double a, const Tensor& b) { return call<WithScalarGrad<kernels::Sub, true>>(b, a); }
Tensor div(double a, const Tensor& b) { return call<WithScalarGrad<kernels::Div, true>>(b, a); }

Tensor neg(const Tensor& x) {
  return is_float(x.dtype()) ? call<Unary<kernels::Neg>>(x) : sub(0, x);
}
Tensor abs(const Tensor& x) { return call<Unary<kernels::Abs>>(x); }
Tensor square(const Tensor& x) { return call<Unary<kernels::Square>>(x); }
Tensor sqrt(const Tensor& x) { return call<Unary<kernels::Sqrt>>(x); }
Tensor rsqrt(const Tensor& x) { return call<Unary<kernels::Rsqrt>>(x); }
Tensor reciprocal(const Tensor& x) { return call<Unary<kernels::Reciprocal>>(x); }
Tensor exp(const Tensor& x) { return call<Unary<kernels::Exp>>(x); }
Tensor expm1(const Tensor& x) { return call<Unary<kernels::Expm1>>(x); }
Tensor log(const Tensor& x) { return call<Unary<kernels::Log>>(x); }
Tensor log1p(const Tensor& x) { return call<Unary<kernels::Log1p>>(x); }
Tensor sin(const Tensor& x) { return call<Unary<kernels::Sin>>(x); }
Tensor cos(const Tensor& x) { return call<Unary<kernels::Cos>>(x); }
Tensor erf(const Tensor& x) { return call<Unary<kernels::Erf>>(x); }
Tensor relu(const Tensor& x) { return call<Unary<kernels::Relu>>(x); }
Tensor gelu(const Tensor& x) { return call<Unary<kernels::Gelu>>(x); }
Tensor gelu_tanh(const Tensor& x) { return call<Unary<kernels::GeluTanh>>(x); }
Tensor silu(const Tensor& x) { return call<Unary<kernels::Silu>>(x); }
Tensor sigmoid(const Tensor& x) { return call<Unary<kernels::Sigmoid>>(x); }
Tensor tanh(const Tensor& x) { return call<Unary<kernels::Tanh>>(x); }
Tensor softplus(const Tensor& x) { return call<Unary<kernels::Softplus>>(x); }

Tensor eq(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::Equal>>(a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::NotEqual>>(a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::Less>>(a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::LessEqual>>(a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::Greater>>(a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::GreaterEqual>>(a, b); }
Tensor eq(const Tensor& a, double b) { return call<WithScalar<kernels::Equal, false>>(a, b); }
Tensor ne(const Tensor& a, double b) { return call<WithScalar<kernels::NotEqual, false>>(a, b); }
Tensor lt(const Tensor& a, double b) { return call<WithScalar<kernels::Less, false>>(a, b); }
Tensor le(const Tensor& a, double b) { return call<WithScalar<kernels::LessEqual, false>>(a, b); }
Tensor gt(const Tensor& a, double b) { return call<WithScalar<kernels::Greater, false>>(a, b); }
Tensor ge(const Tensor& a, double b) {
  return call<WithScalar<kernels::GreaterEqual, false>>(a, b);
}

Tensor logical_and(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::And>>(a, b); }
Tensor logical_or(const Tensor& a, const Tensor& b) { return call<Predicate<kernels::Or>>(a, b); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  return call<WhereOp>(condition, a, b);
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value) {
  const Scope scope(MaskedFill::info.name);
  return call<MaskedFill>(x, expand(mask, x.shape()), value);
}

Tensor cast(const Tensor& x, DType to) {
  if (x.dtype() == to) return x;
  return is_float(to) ? call<Cast>(x, to) : call<CastToInteger>(x, to);
}
Tensor clone(const Tensor& x) { return call<Clone>(x); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : clone(x); }
Tensor detach(const Tensor& x) { return x.detach(); }

Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }
Tensor Tensor::clone() const { return mixtape::clone(*this); }
Tensor Tensor::contiguous() const { return mixtape::contiguous(*this); }
Tensor Tensor::to(Device where) const {
  if (where == device()) return *this;
  fail("moving a tensor from {} to {}: this build has no CUDA device", device(), where);
}

}  // namespace mixtape
