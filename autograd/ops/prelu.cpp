// A leaky ReLU whose slopes are learned: written with ops, but one op, so that the weight's
// gradient is summed in f32 and does not pass through f16.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "autograd/ops/reduce.h"
#include "core/format.h"

namespace mixtape {
namespace {

struct Prelu {  // weight of x's rank, broadcasts
  static constexpr OpInfo info{"prelu", Precision::Native, {Role::Activation, Role::Parameter}};

  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight) {
    check_real(x);
    ctx.save(x, weight);
    const Tensor y = cast(x, ctx.dtype());
    return where(gt(y, 0), y, y * cast(weight, y.dtype()));
  }
  // dx = dy or w dy, dw = sum of x dy where x is not positive
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor x = ctx.saved(0), w = ctx.saved(1), positive = gt(x, 0);
    const DType dtype = statistics(x.dtype());
    ReduceOptions over{.out = dtype};
    for (int d = 0; d < w.rank(); ++d) over.dims |= uint32_t(w.size(d) == 1) << d;
    return ctx.grads([&] { return where(positive, dy, dy * cast(w, dy.dtype())); },
                     [&] {
                       const Tensor terms = where(positive, 0.0, cast(x, dtype) * cast(dy, dtype));
                       return cast(sum_to(terms, over), ctx.grad_dtype(1));
                     });
  }
};

}  // namespace

Tensor prelu(const Tensor& x, const Tensor& weight) {
  const Scope scope(Prelu::info.name);
  const int64_t n = weight.numel();
  check(weight.rank() == 1 && (n == 1 || (x.rank() > 1 && n == x.size(1))),
        "a weight of shape {} for an input of shape {}: one number, or one per channel",
        weight.shape(), x.shape());
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) shape.push_back(d == 1 ? n : 1);
  return call<Prelu>(x, reshape(weight, shape));
}

}  // namespace mixtape
