// Softmax and its logarithm.

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

template <bool log>
struct Softmax {  // over dimension 1 of lines
  static constexpr OpInfo info{log ? "log_softmax" : "softmax", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    check_real(x);
    Tensor y = ctx.output(x.shape());
    ctx.run(kernels::softmax, log, rows_of(x.contiguous()), rows_of(y));
    ctx.save_result(y);
    return y;
  }
  // dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor y = ctx.saved(0);
    if (grad_enabled())
      return {log ? dy - exp(y) * sum(dy, {1}, true) : y * (dy - sum(dy * y, {1}, true))};
    Tensor dx = ctx.like(0);
    ctx.run(kernels::softmax_grad, log, rows_of(y), rows_of(dy.contiguous()), rows_of(dx));
    return {dx};
  }
};

template <bool log>
Tensor softmax_over(const Tensor& x, int dim) {
  const Scope scope(Softmax<log>::info.name);
  if (x.rank() == 0) return reshape(softmax_over<log>(reshape(x, {1}), 0), {});
  const int d = wrap_dim(dim, x.rank());
  return lines_to(call<Softmax<log>>(lines_along(x, d)), x.shape(), d);
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_over<false>(x, dim); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_over<true>(x, dim); }

}  // namespace mixtape
