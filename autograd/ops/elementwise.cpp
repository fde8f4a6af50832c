// Arithmetic and functions of numbers, and the parts that all elementwise ops share.

#include <cmath>
#include <limits>

#include "autograd/ops/pointwise.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

void check_elements(Takes takes, DType t) {
  if (only_stores(t)) [[unlikely]]
    detail::refuse(t);
  if (takes == Takes::Numbers)
    check(t != boolean, "elements must be numbers, got bool (convert them to a number dtype)");
  else if (takes == Takes::Integers)
    check(is_integer(t), "elements must be integers or bools, got {}", t);
  else if (takes == Takes::Floats)
    check(is_float(t), "elements must be floats, got {} (convert them to a float dtype)", t);
}

Tensor result(const Ctx& ctx, Takes takes, const Tensor& x) {
  return ctx.result(x, takes == Takes::All ? boolean : ctx.dtype());
}

// A tensor for a gradient computed elementwise from dy: dy itself if nothing else uses it, else a
// new one in the order of another tensor.
Tensor reuse_gradient(const Tensor& dy, const Tensor& order, DType dtype) {
  // (Observers read dy again after the rule.)
  if (dy.is_unique() && dy.dtype() == dtype && dy.layout().is_dense() && !values_are_observed()) {
    dy.storage()->bump_version();
    return dy;
  }
  return order.like(dtype);
}

Tensor saved(const Ctx& ctx, unsigned reads, size_t i) {
  return reads >> i & 1 ? ctx.saved(i) : Tensor();
}

// True if the gradient of a half input should be f32.
bool wants_wide(const Ctx& ctx, size_t i) {
  return is_half(ctx.dtype(i)) && ctx.grad_dtype(i) == f32;
}

// y = x + value f(a, b), rounded once.
template <class F>
struct PlusScaled {
  static constexpr std::string_view prefix = "addc", base = F::info.name;
  static constexpr OpInfo info{
      {joined_names<prefix, base>.data(), joined_names<prefix, base>.size()}, Precision::Widest};
  static constexpr bool broadcasts = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& a, const Tensor& b, double value) {
    check_elements(takes<F>, x.dtype());
    check_number(x.dtype(), value);
    Tensor y = deciding(x, a).like(ctx.dtype());
    ctx.run(kernels::plus_scaled, Binary<F>::id, x, a, b, value, y);
    ctx.save(a, b);
    return y;
  }
  // dx = dy, da = value dy df/da, db = value dy df/db, in f64 like the kernel
  static Grads backward(const Ctx& ctx, const Tensor& dy, double value) {
    if (!grad_enabled()) return fused(ctx, dy, value);
    const auto rule = [&](unsigned reads, auto partial) {
      const auto read = [&](size_t i) {
        return reads >> i & 1 ? Expr(cast(ctx.saved(i), f64)) : Expr();
      };
      return partial(mul(cast(dy, f64), value), read(0), read(1), Expr());
    };
    return ctx.grads([&] { return dy; }, [&] { return rule(reads_da<F>(), gradient_a<F>); },
                     [&] { return rule(reads_db<F>(), gradient_b<F>); });
  }

 private:
  static Grads fused(const Ctx& ctx, const Tensor& dy, double value) {
    const auto wider = [](DType t) { return is_half(t) ? f64 : t; };  // the kernel reads no halves
    const auto operand = [&](size_t i) { return cast(ctx.saved(i), wider(ctx.saved(i).dtype())); };
    const auto like = [&](size_t i) { return ctx.output(ctx.shape(i), wider(ctx.grad_dtype(i))); };
    Grads d = ctx.grads([&] { return dy; }, [&] { return like(1); }, [&] { return like(2); });
    if (d[1] || d[2])
      ctx.run(kernels::binary_grad, Binary<F>::id, operand(0), operand(1), Tensor(),
              mul(cast(dy, f64), value), d[1], d[2]);
    return d;
  }
};

struct Lerp {
  static constexpr OpInfo info{"lerp", Precision::Widest};
  static constexpr bool broadcasts = true;
  // Starts from the nearer end, so that a weight of 1 gives b.
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, double weight) {
    check_real(a);
    Tensor y = deciding(a, b).like(ctx.dtype());
    constexpr int sub = kernels::index_in<kernels::Sub>(kernels::BinaryOps{});
    if (weight < 0.5)
      ctx.run(kernels::plus_scaled, sub, a, b, a, weight, y);
    else
      ctx.run(kernels::plus_scaled, sub, b, a, b, 1 - weight, y);
    return y;
  }
  // da = (1 - weight) dy, db = weight dy
  static Grads backward(const Ctx& ctx, const Tensor& dy, double weight) {
    const Tensor d = wide(dy);
    return ctx.grads([&] { return mul(d, 1 - weight); }, [&] { return mul(d, weight); });
  }
};

// Not true of an undefined tensor either, which call() refuses with the op's name.
bool is_bool(const Tensor& x) { return x && x.dtype() == boolean; }
bool is_whole(const Tensor& x) { return x && !is_float(x.dtype()); }

// Bools as f32, beside a number.
Tensor counted(const Tensor& x) { return is_bool(x) ? cast(x, f32) : x; }

}  // namespace

// Compiled once for all ops; they differ in their ids, accepted elements and saved tensors.
Tensor ops::run_unary(Ctx& ctx, int id, Takes takes, bool keeps_x, bool keeps_y, const Tensor& x,
                      std::initializer_list<double> numbers) {
  check_elements(takes, x.dtype());
  kernels::Numbers s;
  std::ranges::copy(numbers, s.value);
  for (const double n : numbers)
    check_number(x.dtype(), std::clamp(n, -0x1p62, 0x1p62));  // clamp's bounds may be infinite
  Tensor y = result(ctx, takes, x);
  ctx.run(kernels::unary, id, x, s, y);
  if (keeps_x) ctx.save(x);
  if (keeps_y) ctx.save_result(y);
  return y;
}
Tensor ops::fused_unary_gradient(int id, const Tensor& v, const Tensor& dy, DType dtype,
                                 const kernels::Numbers& numbers) {
  const Tensor dx = reuse_gradient(dy, deciding(dy, v), dtype);
  kernels::unary_grad(v.device(), id, v, dy, numbers, dx);
  return dx;
}

// Saved tensor i as operand of an expression if the rule reads it, else nothing.
Expr ops::operand(const Ctx& ctx, unsigned reads, size_t i) {
  return reads >> i & 1 ? Expr(wide(ctx.saved(i))) : Expr(0);
}

Tensor ops::run_binary(Ctx& ctx, int id, Takes takes, unsigned reads, const Tensor& a,
                       const Tensor& b) {
  check_elements(takes, a.dtype());
  Tensor c = result(ctx, takes, deciding(a, b));
  ctx.run(kernels::binary, id, a, b, c);
  if (ctx.recording() && reads) {
    ctx.save(reads & 1 ? a : Tensor(), reads & 2 ? b : Tensor());
    if (reads & 4) ctx.save_result(c);
  }
  return c;
}
// Gradients by one kernel, for inputs that need one and whose gradient is not dy itself.
Grads ops::fused_binary_gradients(const Ctx& ctx, int id, const Tensor& dy, bool passes_a,
                                  bool passes_b, unsigned reads_da, unsigned reads_db) {
  const bool wants_a = ctx.wants(0), wants_b = ctx.wants(1);
  const bool a = wants_a && !passes_a, b = wants_b && !passes_b;
  const Tensor none;
  Grads gradients;  // (An initializer list would be copied.)
  gradients.push_back(wants_a && passes_a ? dy : none);
  gradients.push_back(wants_b && passes_b ? dy : none);
  if (!a && !b) return gradients;
  const bool wide = (a && wants_wide(ctx, 0)) || (b && wants_wide(ctx, 1));
  const unsigned reads = (a ? reads_da : 0) | (b ? reads_db : 0);
  const Tensor x = saved(ctx, reads, 0), y = saved(ctx, reads, 1), z = saved(ctx, reads, 2);
  const Tensor& order = deciding(dy, x, y, z);
  const auto buffer = [&](size_t i) {
    return reuse_gradient(dy, order, wide ? f32 : ctx.dtype(i));
  };
  if (a) gradients[0] = buffer(0);
  if (b) gradients[1] = buffer(1);
  ctx.run(kernels::binary_grad, id, x, y, z, dy, a ? gradients[0] : none, b ? gradients[1] : none);
  return gradients;
}

// Saves x and y if bits 0 and 1 of `reads` are set.
Tensor ops::run_with_scalar(Ctx& ctx, int id, Takes takes, bool swapped, unsigned reads,
                            const Tensor& x, double s) {
  check_elements(takes, x.dtype());
  if (takes != Takes::All) {
    check_number(x.dtype(), s);
    if (!is_float(x.dtype())) check_fits(x.dtype(), s);
  } else if (!is_float(x.dtype()) && std::abs(s) >= 0x1p63 && !holds(i64, s))
    s = std::copysign(INFINITY, s);  // i64 numbers just below round to 2^63
  Tensor y = result(ctx, takes, x);
  ctx.run(kernels::binary_scalar, id, x, s, swapped, y);
  if (takes != Takes::All) {
    const Tensor none;
    ctx.save(reads & 1 ? x : none);
    if (reads & 2) ctx.save_result(y);
  }
  return y;
}
Tensor ops::fused_scalar_gradient(const Ctx& ctx, int id, bool swapped, unsigned reads,
                                  const Tensor& dy, double s) {
  const Tensor x = saved(ctx, reads, 0), y = saved(ctx, reads, 1);
  const DType dtype = wants_wide(ctx, 0) ? f32 : ctx.dtype(0);
  const Tensor dx = reuse_gradient(dy, deciding(dy, x, y), dtype);
  ctx.run(kernels::binary_scalar_grad, id, x, s, swapped, y, dy, dx);
  return dx;
}

// Sums and products of two bools are bools, as in NumPy and PyTorch: their or and and.
template <class F>
Tensor ops::binary_out(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (is_bool(a) && is_bool(b)) [[unlikely]] {
    if constexpr (std::is_same_v<F, kernels::Add> || std::is_same_v<F, kernels::Maximum>)
      return logical_or(a, b);
    if constexpr (std::is_same_v<F, kernels::Mul> || std::is_same_v<F, kernels::Minimum>)
      return logical_and(a, b);
  }
  return call_out<Binary<F>>(out, a, b);
}
template <class F>
Tensor ops::binary_out(const Tensor& out, const Tensor& a, double b) {
  return call_out<WithScalar<F, false>>(out, a, b);
}
template Tensor ops::binary_out<kernels::Add>(const Tensor&, const Tensor&, const Tensor&);
template Tensor ops::binary_out<kernels::Sub>(const Tensor&, const Tensor&, const Tensor&);
template Tensor ops::binary_out<kernels::Mul>(const Tensor&, const Tensor&, const Tensor&);
template Tensor ops::binary_out<kernels::Div>(const Tensor&, const Tensor&, const Tensor&);
template Tensor ops::binary_out<kernels::Add>(const Tensor&, const Tensor&, double);
template Tensor ops::binary_out<kernels::Sub>(const Tensor&, const Tensor&, double);
template Tensor ops::binary_out<kernels::Mul>(const Tensor&, const Tensor&, double);
template Tensor ops::binary_out<kernels::Div>(const Tensor&, const Tensor&, double);
Tensor ops::clamp_out(const Tensor& out, const Tensor& x, std::optional<double> low,
                      std::optional<double> high) {
  const Scope scope(kernels::Clamp::info.name);
  check(low || high, "no bound is given");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double from = low.value_or(-infinity), to = high.value_or(infinity);
  if (is_integer(x.dtype())) {  // a bound outside x's range would be the result
    if (std::min(from, to) > 0) check_fits(x.dtype(), std::floor(std::min(from, to)));
    if (to < 0) check_fits(x.dtype(), std::ceil(to));
  } else {
    check(!std::isnan(from) && !std::isnan(to), "bounds must not be NaN, got {} and {}", from, to);
  }
  return call_out<Unary<kernels::Clamp, double, double>>(out, x, from, to);
}

Tensor add(const Tensor& a, const Tensor& b) { return binary_out<kernels::Add>({}, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary_out<kernels::Sub>({}, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary_out<kernels::Mul>({}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) {
  if (is_whole(a) && is_whole(b)) return call<Binary<kernels::Div>>(dividend(a), dividend(b));
  return call<Binary<kernels::Div>>(a, b);
}
Tensor pow(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Pow>>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary_out<kernels::Maximum>({}, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary_out<kernels::Minimum>({}, a, b); }
Tensor remainder(const Tensor& a, const Tensor& b) {
  return call<Binary<kernels::Remainder>>(a, b);
}
Tensor fmod(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Fmod>>(a, b); }
Tensor fmod(const Tensor& a, double b) { return call<WithScalar<kernels::Fmod, false>>(a, b); }
Tensor copysign(const Tensor& a, const Tensor& b) {
  if (is_whole(a) && is_whole(b)) return call<Binary<kernels::Copysign>>(dividend(a), dividend(b));
  return call<Binary<kernels::Copysign>>(a, b);
}
Tensor copysign(const Tensor& a, double b) {
  return call<WithScalar<kernels::Copysign, false>>(dividend(a), b);
}
Tensor logaddexp(const Tensor& a, const Tensor& b) {
  return call<Binary<kernels::LogAddExp>>(a, b);
}
Tensor logaddexp2(const Tensor& a, const Tensor& b) {
  return call<Binary<kernels::LogAddExp2>>(a, b);
}
Tensor atan2(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Atan2>>(a, b); }
Tensor hypot(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Hypot>>(a, b); }
Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return call<Binary<kernels::FloorDivide>>(a, b);
}
Tensor floor_divide(const Tensor& a, double b) {
  if (is_whole(a) && b == 0) {
    const Scope scope(kernels::FloorDivide::info.name);
    fail("division of {} elements by zero", a.dtype());
  }
  return call<WithScalar<kernels::FloorDivide, false>>(a, b);
}
namespace {
// Rounded down where the quotient is positive, else up, as -floor(-a / b) of floats. Of integers,
// -a may not fit: what is left over is subtracted before the division.
template <class B>
Tensor rounded_quotient(const Tensor& a, const B& b, const BoolTensor& opposite,
                        std::string_view mode) {
  const Scope scope("div");
  check(mode == "floor" || mode == "trunc",
        "rounding_mode must be \"floor\" or \"trunc\", got \"{}\"", mode);
  const Tensor down = floor_divide(a, b);
  if (mode == "floor") return down;
  if (!is_float(down.dtype())) return floor_divide(a - fmod(a, b), b);
  const Tensor up = is_bool(a) ? floor_divide(a, -b) : floor_divide(-a, b);
  const auto infinite = [&] {
    const NoGrad off;  // 0 times an infinite slope would be NaN
    return trunc(div(a, b));
  };
  return where(isinf(a), infinite(), where(opposite, -up, down));
}
}  // namespace

Tensor div(const Tensor& a, const Tensor& b, std::string_view mode) {
  return rounded_quotient(a, b, lt(a, 0) ^ lt(b, 0), mode);
}
Tensor div(const Tensor& a, double b, std::string_view mode) {
  return rounded_quotient(a, b, b < 0 ? gt(a, 0) : lt(a, 0), mode);
}
Tensor add(const Tensor& a, double b) {
  return call<WithScalar<kernels::Add, false>>(counted(a), b);
}
Tensor sub(const Tensor& a, double b) {
  return call<WithScalar<kernels::Sub, false>>(counted(a), b);
}
Tensor mul(const Tensor& a, double b) {
  return call<WithScalar<kernels::Mul, false>>(counted(a), b);
}
Tensor div(const Tensor& a, double b) {
  return call<WithScalar<kernels::Div, false>>(dividend(a), b);
}
Tensor pow(const Tensor& a, double b) {
  if (is_whole(a) && b < 0) {
    const Scope scope("pow");
    fail("cannot raise {} elements to the power {} (convert them to a float dtype)", a.dtype(), b);
  }
  return call<WithScalar<kernels::Pow, false>>(a, b);
}
Tensor remainder(const Tensor& a, double b) {
  return call<WithScalar<kernels::Remainder, false>>(a, b);
}
Tensor sub(double a, const Tensor& b) {
  return call<WithScalar<kernels::Sub, true>>(counted(b), a);
}
Tensor div(double a, const Tensor& b) {
  return call<WithScalar<kernels::Div, true>>(dividend(b), a);
}
Tensor pow(double a, const Tensor& b) { return call<WithScalar<kernels::Pow, true>>(b, a); }
Tensor clamp(const Tensor& x, std::optional<double> low, std::optional<double> high) {
  return clamp_out({}, x, low, high);
}
Tensor logit(const Tensor& x, std::optional<double> eps) {
  const Scope scope(kernels::Logit::info.name);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  check(!eps || (*eps >= 0 && *eps <= 0.5), "eps must be from 0 to 0.5, got {}", eps.value_or(0));
  // (In f32, 1 - eps has almost no digits of eps.)
  const double most = eps ? std::log1p(-*eps) - std::log(*eps) : infinity;
  return call<Unary<kernels::Logit, double, double>>(x, eps.value_or(-infinity), most);
}
Tensor hardtanh(const Tensor& x, double low, double high) {
  const Scope scope(kernels::Hardtanh::info.name);
  check(low <= high, "low must be <= high, got {} and {}", low, high);
  return call<Unary<kernels::Hardtanh, double, double>>(x, low, high);
}
Tensor lerp(const Tensor& a, const Tensor& b, double weight) { return call<Lerp>(a, b, weight); }
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call<PlusScaled<kernels::Mul>>(x, a, b, value);
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return call<PlusScaled<kernels::Div>>(x, a, b, value);
}
Tensor neg(const Tensor& x) { return call<Unary<kernels::Neg>>(x); }
Tensor abs(const Tensor& x) { return call<Unary<kernels::Abs>>(x); }
Tensor sign(const Tensor& x) { return call<Unary<kernels::Sign>>(x); }
Tensor floor(const Tensor& x) { return call<Unary<kernels::Floor>>(x); }
Tensor ceil(const Tensor& x) { return call<Unary<kernels::Ceil>>(x); }
Tensor round(const Tensor& x) { return call<Unary<kernels::Round>>(x); }
Tensor round(const Tensor& x, int decimals) {
  const Scope scope(kernels::Round::info.name);
  check(std::abs(decimals) <= 300, "decimals must be from -300 to 300, got {}", decimals);
  const double unit = std::pow(10.0, std::abs(decimals));
  const Tensor wide = cast(x, f64);
  const Tensor y = decimals < 0 ? round(wide / unit) * unit : round(wide * unit) / unit;
  return cast(is_float(x.dtype()) ? where(isfinite(y), y, wide) : y, x.dtype());
}
Tensor trunc(const Tensor& x) { return call<Unary<kernels::Trunc>>(x); }
Tensor frac(const Tensor& x) { return call<Unary<kernels::Frac>>(x); }
Tensor square(const Tensor& x) { return call<Unary<kernels::Square>>(x); }
Tensor sqrt(const Tensor& x) { return call<Unary<kernels::Sqrt>>(x); }
Tensor rsqrt(const Tensor& x) { return call<Unary<kernels::Rsqrt>>(x); }
Tensor reciprocal(const Tensor& x) { return call<Unary<kernels::Reciprocal>>(x); }
Tensor exp(const Tensor& x) { return call<Unary<kernels::Exp>>(x); }
Tensor exp2(const Tensor& x) { return call<Unary<kernels::Exp2>>(x); }
Tensor expm1(const Tensor& x) { return call<Unary<kernels::Expm1>>(x); }
Tensor log(const Tensor& x) { return call<Unary<kernels::Log>>(x); }
Tensor log2(const Tensor& x) { return call<Unary<kernels::Log2>>(x); }
Tensor log10(const Tensor& x) { return call<Unary<kernels::Log10>>(x); }
Tensor log1p(const Tensor& x) { return call<Unary<kernels::Log1p>>(x); }
Tensor sin(const Tensor& x) { return call<Unary<kernels::Sin>>(x); }
Tensor cos(const Tensor& x) { return call<Unary<kernels::Cos>>(x); }
Tensor tan(const Tensor& x) { return call<Unary<kernels::Tan>>(x); }
Tensor asin(const Tensor& x) { return call<Unary<kernels::Asin>>(x); }
Tensor acos(const Tensor& x) { return call<Unary<kernels::Acos>>(x); }
Tensor atan(const Tensor& x) { return call<Unary<kernels::Atan>>(x); }
Tensor sinh(const Tensor& x) { return call<Unary<kernels::Sinh>>(x); }
Tensor cosh(const Tensor& x) { return call<Unary<kernels::Cosh>>(x); }
Tensor asinh(const Tensor& x) { return call<Unary<kernels::Asinh>>(x); }
Tensor acosh(const Tensor& x) { return call<Unary<kernels::Acosh>>(x); }
Tensor atanh(const Tensor& x) { return call<Unary<kernels::Atanh>>(x); }
Tensor erf(const Tensor& x) { return call<Unary<kernels::Erf>>(x); }
Tensor erfc(const Tensor& x) { return call<Unary<kernels::Erfc>>(x); }
Tensor erfinv(const Tensor& x) { return call<Unary<kernels::Erfinv>>(x); }
Tensor lgamma(const Tensor& x) { return call<Unary<kernels::Lgamma>>(x); }
Tensor i0(const Tensor& x) { return call<Unary<kernels::BesselI0>>(x); }
Tensor digamma(const Tensor& x) { return call<Unary<kernels::Digamma>>(x); }

}  // namespace mixtape
