#pragma once
// Steps that several ops share: products and sums in a chosen dtype, activations of an epilogue,
// dropout masks, results written to a given tensor.

#include <functional>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// Two factors in their wider dtype: in a second backward a gradient may be wider than its partner.
struct Factors {
  Tensor a, b;

  Factors(const Tensor& x, const Tensor& y) {
    const DType wider = is_half(x.dtype()) ? y.dtype() : x.dtype();
    a = cast(x, wider);
    b = cast(y, wider);
  }
  // The dtype of their product: the wanted one if the factors are half, else theirs.
  DType product(DType wanted) const { return is_half(a.dtype()) ? wanted : a.dtype(); }
};
// a @ b, in the dtype that Factors::product() gives.
Tensor product(const Tensor& a, const Tensor& b, DType wanted);

// dy f'(x) of an activation, in x's dtype: from x, or from y for Relu.
Tensor activation_gradient(Activation f, const Tensor& x_or_y, const Tensor& dy);
// True if the gradient of an epilogue's activation needs its input, false if it needs the result.
inline bool needs_pre_activation(Activation f) {
  return f == Activation::Gelu || f == Activation::GeluTanh;
}
// Saves that tensor as number 3, after x, the weight and the bias.
inline void save_activation(Ctx& ctx, Activation f, const Tensor& bias, const Tensor& pre,
                            const Tensor& y) {
  if (f == Activation::None) return;
  ctx.save(bias);
  if (needs_pre_activation(f))
    ctx.save_extra(pre);
  else
    ctx.save_result(y);
}
// The gradient of the activation's input. The saved one has no history: for a gradient that is
// itself differentiated, `recompute` makes it again.
template <class F>
Tensor pre_activation_gradient(const Ctx& ctx, Activation f, const Tensor& dy, F recompute) {
  if (f == Activation::None) return dy;
  const bool again = grad_enabled() && needs_pre_activation(f);
  return activation_gradient(f, again ? recompute() : ctx.saved(3), dy);
}

// A dropout mask by its place in the random stream: the same elements at every call.
struct DropoutMask {
  uint64_t seed = 0, offset = 0;
  double p = 0;
};
DropoutMask draw_mask(double p, int64_t elements);  // checks p, reserves the numbers
Tensor dropout(const Tensor& x, const DropoutMask& mask);

// Sums with a chosen result dtype, for rules that need an f32 gradient from half terms.
struct ReduceOptions {
  uint32_t dims = 0;              // bit d: dimension d is reduced
  std::optional<DType> out = {};  // dtype of the result
};
ReduceOptions reduce_options(const Dims& dims, int rank);  // no dims: all
// Keeps reduced dimensions with size 1.
Tensor sum_to(const Tensor& x, const ReduceOptions& options);
// The gradient of input `i`, a bias that was added along these dimensions (bit d: dimension d).
Tensor bias_gradient(const Ctx& ctx, size_t i, const Tensor& dy, uint32_t dims);
// The mean or the sum of a loss over its elements, or all of them.
Tensor reduce_losses(const Tensor& each, Reduction reduction);

// Makes f(old) the value of x in all its handles, recorded. Throws Error, with what to do instead,
// if x is a leaf or if another tensor sees its storage.
void replace_value(const Tensor& x, std::string_view instead,
                   const std::function<Tensor(const Tensor& old)>& f);

// Ops for their forms in place: they write to `out` as call_out() does. F is a struct of
// kernels/common/binary.h: Add, Sub, Mul or Div (of floats).
template <class F>
[[gnu::visibility("hidden")]] Tensor binary_out(const Tensor& out, const Tensor& a,
                                                const Tensor& b);
template <class F>
[[gnu::visibility("hidden")]] Tensor binary_out(const Tensor& out, const Tensor& a, double b);
Tensor clamp_out(const Tensor& out, const Tensor& x, std::optional<double> low,
                 std::optional<double> high);

}  // namespace ops
}  // namespace mixtape
