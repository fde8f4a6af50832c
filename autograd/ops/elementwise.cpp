// Elementwise ops, one for every struct of kernels/common/unary.h and kernels/common/binary.h.

#include "kernels/common/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// The elements that an op accepts. Predicates, whose result is bool, accept all.
enum class Takes { Floats, Numbers, All };
template <class F>
constexpr Takes takes = kernels::Predicate<F>       ? Takes::All
                        : kernels::TakesIntegers<F> ? Takes::Numbers
                                                    : Takes::Floats;
void check_elements(Takes takes, DType t) {
  if (takes == Takes::Numbers)
    check(t != boolean, "elements must be numbers, got bool (convert them to a number dtype)");
  else if (takes == Takes::Floats)
    check(is_float(t), "elements must be floats, got {} (convert them to a float dtype)", t);
}

Tensor result(const Ctx& ctx, Takes takes, const Tensor& x) {
  return ctx.result(x, takes == Takes::All ? boolean : ctx.dtype());
}

// Compiled once for all ops, which differ in their ids, accepted elements and saved tensors.
Tensor run_unary(Ctx& ctx, int id, Takes takes, bool keeps_x, bool keeps_y, const Tensor& x,
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
// The buffer for a gradient computed from dy element by element: dy itself if nothing else uses it.
Tensor reuse_gradient(const Tensor& dy, const Tensor& v, DType dtype) {
  // (Observers read dy again after the rule.)
  if (dy.is_unique() && dy.dtype() == dtype && dy.layout().is_dense() && !values_are_observed())
    return dy;
  return deciding(dy, v).like(dtype);
}
Tensor fused_unary_gradient(int id, const Tensor& v, const Tensor& dy, DType dtype,
                            const kernels::Numbers& numbers) {
  const Tensor dx = reuse_gradient(dy, v, dtype);
  kernels::unary_grad(v.device(), id, v, dy, numbers, dx);
  return dx;
}

// dy f' from x or y, whichever f saves.
template <class F, class... Number>
Tensor unary_gradient(const Tensor& v, const Tensor& dy, DType dtype, Number... s) {
  if (grad_enabled()) {
    const Expr read = wide(v);
    const Expr derivative = is_half(dtype) ? kernels::derivative<F, true>(read, Expr(s)...)
                                           : kernels::derivative<F, false>(read, Expr(s)...);
    return cast(passed<F>(wide(dy), derivative), dtype);
  }
  return fused_unary_gradient(kernels::index_in<F>(kernels::UnaryOps{}), v, dy, dtype, {{s...}});
}

// y = f(x, numbers...)
template <class F, class... Number>
struct Unary {
  static constexpr OpInfo info = F::info;
  static constexpr int id = kernels::index_in<F>(kernels::UnaryOps{});
  static_assert(sizeof...(Number) == kernels::numbers_of<F>);

  static Tensor forward(Ctx& ctx, const Tensor& x, Number... s) {
    const bool half = is_half(x.dtype());
    return run_unary(ctx, id, takes<F>, kernels::saves_x<F>(half), kernels::saves_y<F>(half), x,
                     {s...});
  }
  // dx = dy f'
  static Grads backward(const Ctx& ctx, const Tensor& dy, Number... s) {
    if constexpr (kernels::Constant<F>)
      return {Expr(F::d).times(dy)};
    else
      return {unary_gradient<F>(ctx.saved(0), dy, ctx.dtype(0), s...)};
  }
};

// The operands a, b and c (bits 0, 1, 2) that the derivatives with respect to a and to b read.
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
// True if the gradient is dy itself.
template <class F>
concept PassesA = requires { requires F::da == 1; };
template <class F>
concept PassesB = requires { requires F::db == 1; };

// A saved tensor that a rule reads, as operand of an expression or by itself; nothing otherwise.
// (Expressions are f32 or f64, as in kernels: terms of a derivative may exceed the range of f16.)
Expr operand(const Ctx& ctx, unsigned reads, size_t i) {
  return reads >> i & 1 ? Expr(wide(ctx.saved(i))) : Expr(0);
}
Tensor saved(const Ctx& ctx, unsigned reads, size_t i) {
  return reads >> i & 1 ? ctx.saved(i) : Tensor();
}
// True if the gradient of a half input is to be f32.
bool wants_wide(const Ctx& ctx, size_t i) {
  return is_half(ctx.dtype(i)) && ctx.grad_dtype(i) == f32;
}

Tensor run_binary(Ctx& ctx, int id, Takes takes, unsigned reads, const Tensor& a, const Tensor& b) {
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
Grads fused_binary_gradients(const Ctx& ctx, int id, const Tensor& dy, bool passes_a, bool passes_b,
                             unsigned reads_da, unsigned reads_db) {
  const bool a = ctx.wants(0) && !passes_a, b = ctx.wants(1) && !passes_b;
  Grads gradients;  // (An initializer list would be copied.)
  if (!a && !b) {
    gradients.push_back(dy);
    gradients.push_back(dy);
    return gradients;
  }
  const bool wide = (a && wants_wide(ctx, 0)) || (b && wants_wide(ctx, 1));
  const unsigned reads = (a ? reads_da : 0) | (b ? reads_db : 0);
  const Tensor none, x = saved(ctx, reads, 0), y = saved(ctx, reads, 1), z = saved(ctx, reads, 2);
  const Tensor& order = deciding(dy, x, y, z);
  gradients.push_back(a ? order.like(wide ? f32 : ctx.dtype(0)) : dy);
  gradients.push_back(b ? order.like(wide ? f32 : ctx.dtype(1)) : dy);
  ctx.run(kernels::binary_grad, id, x, y, z, dy, a ? gradients[0] : none, b ? gradients[1] : none);
  return gradients;
}

// An op of two tensors. Saves those of a, b and c that the derivatives read.
template <class F>
struct Binary {
  static constexpr OpInfo info = F::info;
  static constexpr bool broadcasts = true;
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b) {
    unsigned reads = 0;
    if constexpr (!kernels::Predicate<F>) reads = reads_da<F>() | reads_db<F>();
    return run_binary(ctx, id, takes<F>, reads, a, b);
  }
  // da = dy df/da, db = dy df/db
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return grad_enabled() ? recorded(ctx, dy) : fused(ctx, dy);
  }

 private:
  static Grads recorded(const Ctx& ctx, const Tensor& dy) {
    const Tensor d = wide(dy);
    const auto read = [&](unsigned reads, size_t i) { return operand(ctx, reads, i); };
    const unsigned a = reads_da<F>(), b = reads_db<F>();
    return ctx.grads(
        [&] { return passed<F>(d, kernels::derivative_a<F>(read(a, 0), read(a, 1), read(a, 2))); },
        [&] { return passed<F>(d, kernels::derivative_b<F>(read(b, 0), read(b, 1), read(b, 2))); });
  }
  static Grads fused(const Ctx& ctx, const Tensor& dy) {
    return fused_binary_gradients(ctx, id, dy, PassesA<F>, PassesB<F>, reads_da<F>(),
                                  reads_db<F>());
  }
};

template <std::string_view const& text, std::string_view const& suffix>
constexpr auto joined = [] {
  std::array<char, text.size() + suffix.size()> both{};
  std::copy(suffix.begin(), suffix.end(), std::copy(text.begin(), text.end(), both.begin()));
  return both;
}();

// Saves x and y if bits 0 and 1 of `reads` are set.
Tensor run_with_scalar(Ctx& ctx, int id, Takes takes, bool swapped, unsigned reads, const Tensor& x,
                       double s) {
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
Tensor fused_scalar_gradient(const Ctx& ctx, int id, bool swapped, unsigned reads, const Tensor& dy,
                             double s) {
  const Tensor x = saved(ctx, reads, 0), y = saved(ctx, reads, 1),
               dx = deciding(dy, x, y).like(wants_wide(ctx, 0) ? f32 : ctx.dtype(0));
  ctx.run(kernels::binary_scalar_grad, id, x, s, swapped, y, dy, dx);
  return dx;
}

// A tensor and a number: f(x, s), or f(s, x) if Swapped. A number never widens a tensor, but a
// number divided by a tensor is a reciprocal, which needs f32.
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
    unsigned kept = 0;
    if constexpr (!kernels::Predicate<F>) kept = reads();
    return run_with_scalar(ctx, id, takes<F>, Swapped, kept, x, s);
  }
  // dx = dy df/dx
  static Grads backward(const Ctx& ctx, const Tensor& dy, double s) {
    if constexpr (Swapped ? PassesB<F> : PassesA<F>) return {dy};
    if (grad_enabled()) {
      const Expr x = operand(ctx, reads(), 0), y = operand(ctx, reads(), 1);
      return {(Swapped ? kernels::derivative_b<F>(Expr(s), x, y)
                       : kernels::derivative_a<F>(x, Expr(s), y))
                  .times(wide(dy))};
    }
    return {fused_scalar_gradient(ctx, id, Swapped, reads(), dy, s)};
  }

 private:
  static unsigned reads() {  // bit 0: x, bit 1: y
    const unsigned abc = Swapped ? reads_db<F>() : reads_da<F>();
    return (abc >> (Swapped ? 1 : 0) & 1) | (abc >> 1 & 2);
  }
};

// y = x + value f(a, b), rounded once.
template <class F>
struct PlusScaled {
  static constexpr std::string_view prefix = "addc", base = F::info.name;
  static constexpr OpInfo info{{joined<prefix, base>.data(), joined<prefix, base>.size()},
                               Precision::Widest};
  static constexpr bool broadcasts = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& a, const Tensor& b, double value) {
    check_elements(takes<F>, x.dtype());
    check_number(x.dtype(), value);
    Tensor y = deciding(x, a).like(ctx.dtype());
    ctx.run(kernels::plus_scaled, Binary<F>::id, x, a, b, value, y);
    ctx.save(a, b);
    return y;
  }
  // dx = dy, da = value dy df/da, db = value dy df/db
  static Grads backward(const Ctx& ctx, const Tensor& dy, double value) {
    const auto rule = [&](unsigned reads, auto partial) {
      const Expr a = operand(ctx, reads, 0), b = operand(ctx, reads, 1);
      return (partial(a, b, Expr(0)) * value).times(wide(dy));
    };
    return ctx.grads([&] { return dy; },
                     [&] { return rule(reads_da<F>(), kernels::derivative_a<F, Expr>); },
                     [&] { return rule(reads_db<F>(), kernels::derivative_b<F, Expr>); });
  }
};

struct Lerp {
  static constexpr OpInfo info{"lerp", Precision::Widest};
  static constexpr bool broadcasts = true;
  // From the nearer end, so that a weight of 1 gives b.
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
    return ctx.grads([&] { return mul(dy, 1 - weight); }, [&] { return mul(dy, weight); });
  }
};

// Bools beside a number, as f32.
Tensor counted(const Tensor& x) { return x.dtype() == boolean ? cast(x, f32) : x; }
// Integers as f32, since their quotient is no integer.
Tensor dividend(const Tensor& x) { return is_float(x.dtype()) ? x : cast(x, f32); }

// The op of a predicate, without its backward.
template <class Op>
struct Predicate : private Op {
  using Op::info, Op::forward;
  static constexpr bool broadcasts = detail::broadcasts<Op>;
};
template <class F>
BoolTensor compare(const Tensor& a, const Tensor& b) {
  return BoolTensor(call<Predicate<Binary<F>>>(a, b));
}
template <class F>
BoolTensor compare(const Tensor& a, double b) {
  return BoolTensor(call<Predicate<WithScalar<F, false>>>(a, b));
}
template <class F>
BoolTensor property(const Tensor& x) {
  return BoolTensor(call<Predicate<Unary<F>>>(x));
}

}  // namespace

Tensor ops::activation_gradient(Activation f, const Tensor& x_or_y, const Tensor& dy) {
  Tensor dx;
  kernels::visit_activation(f,
                            [&]<class F>() { dx = unary_gradient<F>(x_or_y, dy, x_or_y.dtype()); });
  return dx;
}

// Sums and products of two bools are bools, as in NumPy and PyTorch: or, and.
template <class F>
Tensor ops::binary_out(const Tensor& out, const Tensor& a, const Tensor& b) {
  if (a.dtype() == boolean && b.dtype() == boolean) [[unlikely]] {
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
  }
  return call_out<Unary<kernels::Clamp, double, double>>(out, x, from, to);
}

Tensor add(const Tensor& a, const Tensor& b) { return binary_out<kernels::Add>({}, a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary_out<kernels::Sub>({}, a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary_out<kernels::Mul>({}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) {
  if (is_float(a.dtype()) || is_float(b.dtype())) return call<Binary<kernels::Div>>(a, b);
  return call<Binary<kernels::Div>>(dividend(a), dividend(b));
}
Tensor pow(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Pow>>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary_out<kernels::Maximum>({}, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary_out<kernels::Minimum>({}, a, b); }
Tensor remainder(const Tensor& a, const Tensor& b) {
  return call<Binary<kernels::Remainder>>(a, b);
}
Tensor atan2(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Atan2>>(a, b); }
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
  if (!is_float(a.dtype()) && b < 0) {
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
Tensor trunc(const Tensor& x) { return call<Unary<kernels::Trunc>>(x); }
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
Tensor erf(const Tensor& x) { return call<Unary<kernels::Erf>>(x); }
Tensor relu(const Tensor& x) { return call<Unary<kernels::Relu>>(x); }
Tensor relu6(const Tensor& x) { return call<Unary<kernels::Relu6>>(x); }
Tensor selu(const Tensor& x) { return call<Unary<kernels::Selu>>(x); }
Tensor gelu(const Tensor& x) { return call<Unary<kernels::Gelu>>(x); }
Tensor gelu_tanh(const Tensor& x) { return call<Unary<kernels::GeluTanh>>(x); }
Tensor silu(const Tensor& x) { return call<Unary<kernels::Silu>>(x); }
Tensor sigmoid(const Tensor& x) { return call<Unary<kernels::Sigmoid>>(x); }
Tensor hardsigmoid(const Tensor& x) { return call<Unary<kernels::Hardsigmoid>>(x); }
Tensor hardswish(const Tensor& x) { return call<Unary<kernels::Hardswish>>(x); }
Tensor mish(const Tensor& x) { return call<Unary<kernels::Mish>>(x); }
Tensor tanh(const Tensor& x) { return call<Unary<kernels::Tanh>>(x); }
Tensor softsign(const Tensor& x) { return call<Unary<kernels::Softsign>>(x); }
Tensor softplus(const Tensor& x) { return call<Unary<kernels::Softplus>>(x); }
Tensor log_sigmoid(const Tensor& x) { return call<Unary<kernels::LogSigmoid>>(x); }
Tensor leaky_relu(const Tensor& x, double slope) {
  return call<Unary<kernels::LeakyRelu, double>>(x, slope);
}
Tensor elu(const Tensor& x, double alpha) { return call<Unary<kernels::Elu, double>>(x, alpha); }
Tensor glu(const Tensor& x, int dim) {
  const Scope scope(kernels::Glu::info.name);
  const int64_t n = x.size(dim), half = n / 2;
  check(n % 2 == 0, "dimension {} has {} elements, which cannot be halved", dim, n);
  return call<Binary<kernels::Glu>>(narrow(x, dim, 0, half), narrow(x, dim, half, half));
}
Tensor swiglu(const Tensor& a, const Tensor& b) { return call<Binary<kernels::Swiglu>>(a, b); }
BoolTensor eq(const Tensor& a, const Tensor& b) { return compare<kernels::Equal>(a, b); }
BoolTensor ne(const Tensor& a, const Tensor& b) { return compare<kernels::NotEqual>(a, b); }
BoolTensor lt(const Tensor& a, const Tensor& b) { return compare<kernels::Less>(a, b); }
BoolTensor le(const Tensor& a, const Tensor& b) { return compare<kernels::LessEqual>(a, b); }
BoolTensor gt(const Tensor& a, const Tensor& b) { return compare<kernels::Greater>(a, b); }
BoolTensor ge(const Tensor& a, const Tensor& b) { return compare<kernels::GreaterEqual>(a, b); }
BoolTensor eq(const Tensor& a, double b) { return compare<kernels::Equal>(a, b); }
BoolTensor ne(const Tensor& a, double b) { return compare<kernels::NotEqual>(a, b); }
BoolTensor lt(const Tensor& a, double b) { return compare<kernels::Less>(a, b); }
BoolTensor le(const Tensor& a, double b) { return compare<kernels::LessEqual>(a, b); }
BoolTensor gt(const Tensor& a, double b) { return compare<kernels::Greater>(a, b); }
BoolTensor ge(const Tensor& a, double b) { return compare<kernels::GreaterEqual>(a, b); }
BoolTensor logical_and(const Tensor& a, const Tensor& b) { return compare<kernels::And>(a, b); }
BoolTensor logical_or(const Tensor& a, const Tensor& b) { return compare<kernels::Or>(a, b); }
BoolTensor logical_xor(const Tensor& a, const Tensor& b) { return compare<kernels::Xor>(a, b); }
BoolTensor logical_not(const Tensor& x) { return property<kernels::Not>(x); }
BoolTensor isnan(const Tensor& x) { return property<kernels::IsNan>(x); }
BoolTensor isinf(const Tensor& x) { return property<kernels::IsInf>(x); }
BoolTensor isfinite(const Tensor& x) { return property<kernels::IsFinite>(x); }

}  // namespace mixtape
