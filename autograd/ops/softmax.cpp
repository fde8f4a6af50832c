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
    const Tensor y = run(x, ctx.dtype());
    if (is_half(y.dtype()))
      ctx.save(x);
    else
      ctx.save_result(y);
    return y;
  }
  // dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm. A y in f16 or bf16 is
  // computed again in f32: rounded, it would give probabilities whose sum is not 1.
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor kept = ctx.saved(0), g = wide(dy);
    const bool again = is_half(kept.dtype());
    if (grad_enabled()) {
      const Tensor y = again ? call<Softmax>(wide(kept)) : kept;
      return {log ? g - exp(y) * sum(g, {1}, true) : y * (g - sum(g * y, {1}, true))};
    }
    const Tensor y = again ? run(kept, f32) : kept;
    Tensor dx = ctx.like(0);
    ctx.run(kernels::softmax_grad, log, rows_of(y), rows_of(g.contiguous()), rows_of(dx));
    return {dx};
  }

 private:
  static Tensor run(const Tensor& x, DType dtype) {
    Tensor y(x.shape(), dtype, x.device());
    kernels::softmax(x.device(), log, rows_of(x.contiguous()), rows_of(y));
    return y;
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
