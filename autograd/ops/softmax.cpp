// Softmax and the losses. Their kernels read narrow logits and write f32 results.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

template <bool log>
struct Softmax {  // over the last dimension of x [rows, n]
  static constexpr OpInfo info{log ? "log_softmax" : "softmax", Precision::Full};

  static Tensor forward(Ctx& ctx, const Tensor& x) {
    Tensor y = ctx.output(x.shape());
    const Tensor xc = x.contiguous();
    ctx.run(kernels::softmax, log, xc, y);
    ctx.save_result(y);
    return y;
  }
  // dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor y = ctx.saved(0);
    if (grad_enabled())
      return {log ? dy - exp(y) * sum(dy, {-1}, true) : y * (dy - sum(dy * y, {-1}, true))};
    Tensor dx = ctx.like(0);
    const Tensor dyc = dy.contiguous();
    ctx.run(kernels::softmax_grad, log, y, dyc, dx);
    return {dx};
  }
};

template <bool log>
Tensor softmax_over(const Tensor& x, int dim) {
  const Scope scope(Softmax<log>::info.name);
  if (x.rank() == 0) return reshape(softmax_over<log>(reshape(x, {1}), 0), {});
  const int d = wrap_dim(dim, x.rank());
  if (d != x.rank() - 1) return transpose(softmax_over<log>(transpose(x, d, -1), -1), d, -1);
  const Tensor rows = reshape(x, {x.numel() / std::max<int64_t>(1, x.size(-1)), x.size(-1)});
  return reshape(call<Softmax<log>>(rows), x.shape());
}

struct CrossEntropy {  // the loss of each row
  static constexpr OpInfo info{"cross_entropy", Precision::Full, {Role::Activation, Role::Index}};

  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target,
                        const CrossEntropyOptions& o) {
    Tensor loss = ctx.output({x.size(0)}),
           lse = ctx.output({x.size(0), 2}, x.dtype() == f64 ? f64 : f32);
    const Tensor xc = x.contiguous(), tc = target.contiguous();
    ctx.run(kernels::cross_entropy, xc, tc, o.ignore_index, o.label_smoothing, loss, lse);
    ctx.save(x, target);
    ctx.save_extra(lse);
    return loss;
  }
  // dx = (softmax(x) - q) dloss, q the smoothed target; nothing where ignored
  static Grads backward(const Ctx& ctx, const Tensor& dloss, const CrossEntropyOptions& o) {
    const Tensor x = ctx.saved(0), target = ctx.saved(1);
    if (grad_enabled()) {
      const int64_t n = x.size(1);
      const Tensor q = one_hot(target, n, dloss.dtype()) * (1 - o.label_smoothing) +
                       o.label_smoothing / double(n);
      const Tensor counted = dloss * cast(ne(target, double(o.ignore_index)), dloss.dtype());
      return ctx.grads(
          [&] { return (softmax(cast(x, dloss.dtype())) - q) * unsqueeze(counted, 1); });
    }
    Tensor dx = ctx.like(0);
    const Tensor xc = x.contiguous(), tc = target.contiguous(), dl = dloss.contiguous();
    ctx.run(kernels::cross_entropy_grad, xc, tc, ctx.saved(2), dl, o.ignore_index,
            o.label_smoothing, dx);
    return {dx};
  }
};

struct SquaredError {  // of each element; f32 from narrow inputs
  static constexpr OpInfo info{"mse_loss", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target) {
    ctx.save(x, target);
    return square(cast(x, ctx.dtype()) - cast(target, ctx.dtype()));
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor dx = (cast(ctx.saved(0), dy.dtype()) - cast(ctx.saved(1), dy.dtype())) * dy * 2;
    return ctx.grads([&] { return dx; }, [&] { return -dx; });
  }
};

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_over<false>(x, dim); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_over<true>(x, dim); }

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  const Scope scope(CrossEntropy::info.name);
  check(logits.rank() == 2, "the logits have shape {}, not [rows, classes]", logits.shape());
  check(target.shape() == Shape{logits.size(0)}, "{} targets of shape {} for logits of shape {}",
        target.numel(), target.shape(), logits.shape());
  check(target.dtype() == i64, "the targets are {}, not i64", target.dtype());
  check(o.label_smoothing >= 0 && o.label_smoothing <= 1, "label smoothing of {}",
        o.label_smoothing);
  const Tensor valid = ne(target, double(o.ignore_index));
  const IndexRange range = index_range(where(valid, target, zeros({}, i64, target.device())));
  check(range.low >= 0 && range.high < logits.size(1), "targets from {} to {} for {} classes",
        range.low, range.high, logits.size(1));
  Tensor loss = call<CrossEntropy>(logits, target, o);
  if (o.reduction != Reduction::None) loss = sum(loss);
  if (o.reduction == Reduction::Mean) loss = div(loss, cast(sum(valid), loss.dtype()));
  return o.weight == 1 ? loss : loss * o.weight;
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) {
  const Scope scope(SquaredError::info.name);
  check(x.shape() == target.shape(), "an input of shape {} and a target of shape {}", x.shape(),
        target.shape());
  const Tensor error = call<SquaredError>(x, target);
  return reduction == Reduction::None  ? error
         : reduction == Reduction::Sum ? sum(error)
                                       : mean(error);
}

}  // namespace mixtape
