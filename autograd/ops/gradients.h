#pragma once
// Steps that several ops share: products and sums in a chosen dtype, activations of an epilogue,
// dropout masks, results written to a given tensor.

#include <functional>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "autograd/quantised.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// Two factors in the wider of their dtypes: in a second backward pass a gradient may be wider than
// its partner.
struct Factors {
  Tensor a, b;

  Factors(const Tensor& x, const Tensor& y) {
    const DType wider = is_half(x.dtype()) ? y.dtype() : x.dtype();
    a = cast(x, wider);
    b = cast(y, wider);
  }
  // The dtype of their product: `wanted` if the factors are half, else theirs.
  DType product(DType wanted) const { return is_half(a.dtype()) ? wanted : a.dtype(); }
};
// alpha a @ b, in the dtype that Factors::product() gives.
Tensor product(const Tensor& a, const Tensor& b, DType wanted, double alpha = 1);

// The operand whose order in memory the result gets: a, or the first that is channels last. Others
// may be absent.
template <class... T>
const Tensor& deciding(const Tensor& a, const T&... others) {
  const Tensor* found = &a;
  const auto look = [&](const Tensor& t) {
    if (t && internal::format_of(t.layout()) == MemoryFormat::ChannelsLast) found = &t;
  };
  (look(others), ...);
  return *found;
}

// dy f'(x) for an activation, in x's dtype, from x, or from y for Relu.
Tensor activation_gradient(Activation f, const Tensor& x_or_y, const Tensor& dy);
// True if the gradient of an epilogue's activation needs its input, false if it needs the result.
inline bool needs_pre_activation(Activation f) {
  return f == Activation::Gelu || f == Activation::GeluTanh;
}
// Saves that tensor as number 3, after x, the weight and the bias, and before the residual.
inline void save_activation(Ctx& ctx, Activation f, const Tensor& bias, const Tensor& residual,
                            const Tensor& pre, const Tensor& y) {
  if (f == Activation::None) return;
  ctx.save(bias);
  if (!needs_pre_activation(f)) return ctx.save_result(y);
  ctx.save_extra(pre);
  ctx.save(residual);
}
// The gradient of the activation's input. The saved input has no history, so if the gradient is
// itself differentiated, `recompute` makes the input again.
template <class F>
Tensor pre_activation_gradient(const Ctx& ctx, Activation f, const Tensor& dy, F recompute) {
  if (f == Activation::None) return dy;
  const bool again = grad_enabled() && needs_pre_activation(f);
  return activation_gradient(f, again ? recompute() : ctx.saved(3), dy);
}

// The dtype of a product's result: its own or that of a wider residual, as for their sum. A
// residual is never rounded to 16 bits.
inline DType dtype_with(const Ctx& ctx, const Tensor& residual) {
  return residual && is_half(ctx.dtype()) ? residual.dtype() : ctx.dtype();
}
// The gradient of such a result in the dtype of the product, which is also its operands'.
inline Tensor of_product(const Ctx& ctx, const Tensor& dz) {
  return is_half(ctx.dtype()) ? cast(dz, ctx.dtype()) : dz;
}
// The factors of a product's gradients: dz, the gradient of the sums, and the operands, which the
// op saved as numbers 0 and 1. If the policy rounded the operands to 8 or 4 bits, its recipe rounds
// operands and dz for a product that sums over dimension `dim` (see Quantiser). The gradient of a
// bias is the sum of the unrounded dz.
class RoundedFactors {
 public:
  RoundedFactors(const Ctx& ctx, const Tensor& dz)
      : ctx_(ctx), dz_(dz), by_(internal::quantised_operand(ctx)) {}
  bool rounds() const { return by_; }
  Tensor dz(int dim) {
    if (!by_) return dz_;
    if (rounded_ && !by_->quantiser->by_blocks()) return rounded_;
    return rounded_ = by_->quantiser->gradient(dz_, dim);
  }
  Tensor operand(size_t i, int dim) const {
    if (!by_ || !by_->quantiser->by_blocks()) return ctx_.saved(i);
    return by_->quantiser->operand(int(i), by_->ctx.saved(i), dim);
  }

 private:
  const Ctx& ctx_;
  const Tensor dz_;
  const internal::Quantised* const by_;
  Tensor rounded_;
};
// A residual in the order of y, to which it is added.
inline Tensor residual_like(const Tensor& residual, const Tensor& y) {
  if (!residual || residual.strides() == y.strides()) return residual;
  const Tensor copy = y.like(residual.dtype());
  kernels::convert(y.device(), residual, copy);
  return copy;
}
// The gradients of x, weight and bias and, if there is a residual, its gradient dz.
inline Grads with_residual(const Ctx& ctx, Grads grads, const Tensor& dz) {
  if (ctx.wants(3)) grads.push_back(dz);
  return grads;
}

// A dropout mask, given by its position in the random stream, so that every call drops the same
// elements.
struct DropoutMask : Draw {
  double p = 0;
};
DropoutMask draw_mask(double p, int64_t elements);  // checks p, reserves the numbers
Tensor dropout(const Tensor& x, const DropoutMask& mask);

// The dtype of each term of a loss: that of the op's result, or f32 if `wide`, when a sum follows.
inline DType dtype_of_each(const Ctx& ctx, bool wide) {
  return wide ? accumulate_dtype(ctx.dtype()) : ctx.dtype();
}
// The dtype of f's result here, under the policy. Nothing is recorded or observed.
template <class F>
DType dtype_here(const F& f) {
  const NoGrad off;
  const ScopedValue<&ThreadState::observer> unseen(nullptr);
  return f().dtype();
}
// y, a step within an op. If it is f16 or bf16, its gradient arrives in f32, so that terms which
// several steps add up are rounded once. (Not for a tensor of the caller's.)
inline Tensor with_f32_gradient(Tensor y) {
  if (y.grad_fn() && is_half(y.dtype())) y.grad_fn()->grad_dtype = f32;
  return y;
}
// No elements of x, in some shape.
inline Tensor none_of(const Tensor& x, const Shape& shape = {0}) {
  return x.with_layout(internal::Layout(shape));
}
// The dtype that the sum of these tensors has here: theirs or the policy's. Throws Error if they
// differ in dtype.
template <class... T>
DType dtype_of_sum(const T&... x) {
  return dtype_here([&] { return sum((none_of(x) + ...)); });
}
// Rounds a sum y of wide terms, computed from an f16 or bf16 x, to the dtype that it would have
// here with terms that are not wide: that of the sum of `of_nothing`, made by the same op from no
// elements.
template <class F>
Tensor finished(const Tensor& y, const Tensor& x, const F& of_nothing) {
  if (!is_half(x.dtype())) return y;
  return cast(y, dtype_here([&] { return sum(of_nothing()); }));
}
// f(x...), made of ops. For f16 and bf16, steps are computed in f32, whose range they may need, and
// the result is rounded once, to the dtype that a sum of x has here.
template <class F, class... T>
Tensor in_f32(const F& f, const T&... x) {
  if (!(is_half(x.dtype()) || ...)) return f(x...);
  const DType out = dtype_of_sum(x...);
  return cast(f(cast(x, accumulate_dtype(x.dtype()))...), out);
}
// The same for floats, in f64 if one of x has the range of f32, for ops that are not worth a kernel
// of their own.
template <class F, class... T>
Tensor in_wider(const F& f, const T&... x) {
  (check_real(x), ...);
  if (!((x.dtype() == f32 || x.dtype() == bf16) || ...)) return in_f32(f, x...);
  const DType out = dtype_of_sum(x...);
  return cast(f(cast(x, f64)...), out);
}

// The rows of n examples, which follow each other, as [n, rows of each, ...].
Tensor by_example(const Tensor& rows, int64_t n);
// The gradients by example, [n, channels], of a bias of dimension 1 of dy, in f32 at least.
Tensor bias_each(const Tensor& dy, int64_t n);
// The gradients by example, [n, shape], of a tensor whose rows each belong to one example: g with
// zeros in the rows of other examples.
Tensor in_own_rows(const Tensor& g, int64_t n);

// Options of reductions. The result's dtype serves rules that need an f32 gradient from half terms.
struct ReduceOptions {
  uint32_t dims = 0;              // bit d: dimension d is reduced
  std::optional<DType> out = {};  // dtype of the result
};
ReduceOptions reduce_options(const Dims& dims, int rank);  // no dims: all
// Keeps reduced dimensions with size 1.
Tensor sum_to(const Tensor& x, const ReduceOptions& options);
// The gradient of input `i`, a bias that was added along these dimensions (bit d: dimension d).
Tensor bias_gradient(const Ctx& ctx, size_t i, const Tensor& dy, uint32_t dims);
// dy, shared evenly among the winners of each reduction.
Tensor share_among(const Tensor& dy, const Tensor& winner, const ReduceOptions& options);
struct NormOptions : ReduceOptions {
  double p = 2;
};
// norm() over those dimensions, which are kept; in f64, since x's dtype may not hold it.
Tensor norm_of(const Tensor& x, const NormOptions& o);
Tensor length_of(Ctx& ctx, const Tensor& x, const NormOptions& o);
// A power of two in this dtype near each of these lengths, which are f64. Numbers divided by it
// stay in range and keep their digits.
Tensor scale_near(const Tensor& length, DType dtype);
// A power of two near the largest |x| of each reduction (1 if that is 0, infinite or NaN). Squares
// of x divided by it stay in range, and x keeps its digits.
Tensor scale_of(const Tensor& x, const ReduceOptions& options);
inline Tensor scale_of(const Tensor& x) { return scale_of(x, reduce_options({}, x.rank())); }
// The same, but far enough from both ends that gradients may be multiplied by it, added up, and
// divided by it. Squares still stay in range.
Tensor moderate_scale_of(const Tensor& x, const ReduceOptions& options);
// The gradient of the p-norm y of x, all in f32 or f64.
Tensor norm_gradient(const Tensor& x, const Tensor& y, const Tensor& dy, const NormOptions& o);
// cosine_similarity(). A `wide` result is f32 even for f16 and bf16.
Tensor cosine(const Tensor& x, const Tensor& y, int dim, double eps, bool wide);
// Limits the gradient of vectors that were divided by their lengths, or by eps if that is larger.
// In the latter rows it is dy / eps, which f16 may not hold; an infinity would skip a step even if
// the vector is masked, and 0 would never move it. So in these rows it becomes the nearest f16
// number, unless dy was not finite.
Tensor within_range(const Tensor& dx, const Tensor& rows, DType dtype);
// running = (1 - momentum) running + momentum now, except where the batch overflowed: its step may
// be skipped, and running statistics would never become finite again.
void update_running(const Tensor& running, const Tensor& now, double momentum);
// Reduces a loss to its mean or sum, or keeps all elements.
Tensor reduce_losses(const Tensor& each, Reduction reduction);

// Makes f(old) the value of x in all its handles, recorded. If x is a leaf, or if another tensor
// sees its storage, throws Error with what to do instead.
void replace_value(const Tensor& x, std::string_view instead,
                   const std::function<Tensor(const Tensor& old)>& f);

// Binary ops for their in-place forms: they write to `out` as call_out() does. F is a struct of
// kernels/common/binary.h: Add, Sub, Mul or (for floats) Div.
template <class F>
[[gnu::visibility("hidden")]] Tensor binary_out(const Tensor& out, const Tensor& a,
                                                const Tensor& b);
template <class F>
[[gnu::visibility("hidden")]] Tensor binary_out(const Tensor& out, const Tensor& a, double b);
Tensor clamp_out(const Tensor& out, const Tensor& x, std::optional<double> low,
                 std::optional<double> high);

}  // namespace ops
}  // namespace mixtape
