#pragma once
// Ops made of the structs of kernels/common/unary.h and binary.h: of one tensor, of two, and of a
// tensor and a number. Code that does not depend on the struct is compiled once, in
// elementwise.cpp.

#include <algorithm>
#include <array>

#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "kernels/common/elementwise.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// The elements that an op accepts. Predicates, whose result is bool, accept all.
enum class Takes { Floats, Integers, Numbers, All };
template <class F>
constexpr Takes takes = kernels::Predicate<F>       ? Takes::All
                        : kernels::OnlyIntegers<F>  ? Takes::Integers
                        : kernels::TakesIntegers<F> ? Takes::Numbers
                                                    : Takes::Floats;

// Ops differ in their ids, accepted elements and saved tensors.
Tensor run_unary(Ctx& ctx, int id, Takes takes, bool keeps_x, bool keeps_y, const Tensor& x,
                 std::initializer_list<double> numbers);
Tensor fused_unary_gradient(int id, const Tensor& v, const Tensor& dy, DType dtype,
                            const kernels::Numbers& numbers);
// `reads`: the operands a, b and c (bits 0, 1, 2) that derivatives read, and which are saved.
Tensor run_binary(Ctx& ctx, int id, Takes takes, unsigned reads, const Tensor& a, const Tensor& b);
// Gradients by one kernel, for inputs that need one and whose gradient is not dy itself.
Grads fused_binary_gradients(const Ctx& ctx, int id, const Tensor& dy, bool passes_a, bool passes_b,
                             unsigned reads_da, unsigned reads_db);
// Saves x and y if bits 0 and 1 of `reads` are set.
Tensor run_with_scalar(Ctx& ctx, int id, Takes takes, bool swapped, unsigned reads, const Tensor& x,
                       double s);
Tensor fused_scalar_gradient(const Ctx& ctx, int id, bool swapped, unsigned reads, const Tensor& dy,
                             double s);
// Saved tensor i as operand of an expression if the rule reads it, else nothing. (Expressions are
// f32 or f64, as in kernels: terms of a derivative may exceed the range of f16.)
Expr operand(const Ctx& ctx, unsigned reads, size_t i);

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

// An op of two tensors. Saves those of a, b and c that the derivatives read.
template <class F>
struct Binary {
  static constexpr OpInfo info = F::info;
  static constexpr bool broadcasts = true;
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b) {
    unsigned reads = 0;
    if constexpr (kernels::Differentiable<F>) reads = reads_da<F>() | reads_db<F>();
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
    return ctx.grads([&] { return gradient_a<F>(d, read(a, 0), read(a, 1), read(a, 2)); },
                     [&] { return gradient_b<F>(d, read(b, 0), read(b, 1), read(b, 2)); });
  }
  static Grads fused(const Ctx& ctx, const Tensor& dy) {
    return fused_binary_gradients(ctx, id, dy, PassesA<F>, PassesB<F>, reads_da<F>(),
                                  reads_db<F>());
  }
};

template <std::string_view const& text, std::string_view const& suffix>
constexpr auto joined_names = [] {
  std::array<char, text.size() + suffix.size()> both{};
  std::copy(suffix.begin(), suffix.end(), std::copy(text.begin(), text.end(), both.begin()));
  return both;
}();

// A tensor and a number: f(x, s), or f(s, x) if Swapped. A number never widens a tensor, but a
// number divided by a tensor is a reciprocal, which needs f32.
template <class F, bool Swapped>
struct WithScalar {
  static constexpr std::string_view base = F::info.name,
                                    suffix = Swapped ? "_from_scalar" : "_scalar";
  static constexpr OpInfo info{
      {joined_names<base, suffix>.data(), joined_names<base, suffix>.size()},
      kernels::Predicate<F>                       ? Precision::Any
      : Swapped&& std::is_same_v<F, kernels::Div> ? Precision::Full
                                                  : F::info.precision};
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});
  static_assert(kernels::takes_scalar<F>(Swapped), "has no kernel");
  static Tensor forward(Ctx& ctx, const Tensor& x, double s) {
    unsigned kept = 0;
    if constexpr (kernels::Differentiable<F>) kept = reads();
    return run_with_scalar(ctx, id, takes<F>, Swapped, kept, x, s);
  }
  // dx = dy df/dx
  static Grads backward(const Ctx& ctx, const Tensor& dy, double s) {
    if constexpr (Swapped ? PassesB<F> : PassesA<F>) return {dy};
    if (grad_enabled()) {
      const Expr x = operand(ctx, reads(), 0), y = operand(ctx, reads(), 1);
      return {Swapped ? gradient_b<F>(wide(dy), s, x, y) : gradient_a<F>(wide(dy), x, s, y)};
    }
    return {fused_scalar_gradient(ctx, id, Swapped, reads(), dy, s)};
  }

 private:
  static unsigned reads() {  // bit 0: x, bit 1: y
    const unsigned abc = Swapped ? reads_db<F>() : reads_da<F>();
    return (abc >> (Swapped ? 1 : 0) & 1) | (abc >> 1 & 2);
  }
};

// Integers as f32, for quotients and other ops whose results are not integers.
inline Tensor dividend(const Tensor& x) { return !x || is_float(x.dtype()) ? x : cast(x, f32); }

// The op of a predicate, or of integers alone, without backward().
template <class Op>
struct Constant : private Op {
  using Op::info, Op::forward;
  static constexpr bool broadcasts = detail::facts_of<Op>().broadcasts;
};

}  // namespace ops
}  // namespace mixtape
