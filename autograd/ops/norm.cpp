// Normalisation. Statistics are f32 whatever the activations are, and are kept for backward.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

DType statistics(DType x) { return x == f64 ? f64 : f32; }
Tensor like(const Ctx& ctx, size_t input) { return ctx.wants(input) ? ctx.like(input) : Tensor(); }
Tensor dense(const Tensor& t) { return t ? t.contiguous() : t; }

struct LayerNorm {  // x [rows, n]; weight and bias [n] or none
  static constexpr OpInfo info{
      "layer_norm", Precision::Full, {Role::Activation, Role::Parameter, Role::Parameter}};
  static constexpr bool first_order_only = true;

  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        double eps) {
    Tensor y = ctx.output(x.shape());
    Tensor mean = ctx.output({x.size(0)}, statistics(x.dtype())),
           rstd = ctx.output({x.size(0)}, mean.dtype());
    const Tensor xc = x.contiguous(), w = dense(weight), b = dense(bias);
    ctx.run(kernels::layer_norm, xc, w, b, eps, y, mean, rstd);
    ctx.save(x, weight);
    ctx.save_extra(mean);
    ctx.save_extra(rstd);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor dx = like(ctx, 0), dw = like(ctx, 1), db = like(ctx, 2);
    const Tensor x = ctx.saved(0).contiguous(), w = dense(ctx.saved(1)), dyc = dy.contiguous();
    ctx.run(kernels::layer_norm_grad, x, w, ctx.saved(2), ctx.saved(3), dyc, dx, dw, db);
    return {dx, dw, db};
  }
};

struct BatchNormRule {
  bool training;
  double momentum, eps;
};

struct BatchNorm {  // x [n, c, inner]
  static constexpr OpInfo info{
      "batch_norm",
      Precision::Native,
      {Role::Activation, Role::Parameter, Role::Parameter, Role::Statistic, Role::Statistic}};
  static constexpr bool first_order_only = true;

  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var,
                        const BatchNormRule& rule) {
    const DType stats = statistics(x.dtype());
    Tensor y = ctx.output(x.shape()), mean, rstd;
    const Tensor xc = x.contiguous(), w = dense(weight), b = dense(bias);
    if (rule.training) {
      const Shape channels{x.size(1)};
      Tensor var = ctx.output(channels, stats);
      mean = ctx.output(channels, stats);
      rstd = ctx.output(channels, stats);
      ctx.run(kernels::batch_stats, xc, rule.eps, mean, var, rstd);
      if (running_mean) {  // by the unbiased variance, as everyone does
        const double n = double(x.numel()) / double(std::max<int64_t>(1, x.size(1)));
        move(running_mean, mean, rule.momentum);
        move(running_var, var * (n / std::max(1.0, n - 1)), rule.momentum);
      }
    } else {
      mean = cast(running_mean, stats);
      rstd = rsqrt(cast(running_var, stats) + rule.eps);
    }
    ctx.run(kernels::batch_norm, xc, mean, rstd, w, b, y);
    ctx.save(x, weight);
    ctx.save_extra(mean);
    ctx.save_extra(rstd);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const BatchNormRule& rule) {
    const Tensor dx = like(ctx, 0), dw = like(ctx, 1), db = like(ctx, 2);
    const Tensor x = ctx.saved(0).contiguous(), w = dense(ctx.saved(1)), dyc = dy.contiguous();
    ctx.run(kernels::batch_norm_grad, x, ctx.saved(2), ctx.saved(3), w, dyc, !rule.training, dx, dw,
            db);
    return {dx, dw, db};
  }

 private:
  // running = (1 - momentum) * running + momentum * now
  static void move(const Tensor& running, const Tensor& now, double momentum) {
    copy_(running, running * (1 - momentum) + cast(now, running.dtype()) * momentum);
  }
};

void check_channels(const Tensor& t, std::string_view what, int64_t channels) {
  if (t)
    check(t.shape() == Shape{channels}, "{} has shape {} for {} channels", what, t.shape(),
          channels);
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                  double eps) {
  const Scope scope(LayerNorm::info.name);
  const int outer = x.rank() - shape.rank;
  check(shape.rank > 0 && outer >= 0, "normalising over {} of an input of shape {}", shape,
        x.shape());
  for (int d = 0; d < shape.rank; ++d)
    check(x.size(outer + d) == shape[d], "normalising over {} of an input of shape {}", shape,
          x.shape());
  check(!weight || weight.shape() == shape, "the weight has shape {}, not {}",
        weight ? weight.shape() : shape, shape);
  check(!bias || bias.shape() == shape, "the bias has shape {}, not {}",
        bias ? bias.shape() : shape, shape);
  const int64_t n = shape.size(), rows = x.numel() / std::max<int64_t>(1, n);
  const auto flat = [&](const Tensor& t) { return t ? reshape(t, {n}) : t; };
  return reshape(call<LayerNorm>(reshape(x, {rows, n}), flat(weight), flat(bias), eps), x.shape());
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, const BatchNormOptions& o) {
  const Scope scope(BatchNorm::info.name);
  check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
  const int64_t c = x.size(1);
  check(o.training || (running_mean && running_var), "evaluation needs running statistics");
  check(bool(running_mean) == bool(running_var), "one running statistic without the other");
  check_channels(running_mean, "the running mean", c);
  check_channels(running_var, "the running variance", c);
  check_channels(weight, "the weight", c);
  check_channels(bias, "the bias", c);
  const int64_t per_channel = x.numel() / std::max<int64_t>(1, c);
  check(!o.training || per_channel > 1, "training needs more than one value per channel: shape {}",
        x.shape());
  const Tensor x3 = reshape(x, {x.size(0), c, per_channel / std::max<int64_t>(1, x.size(0))});
  return reshape(call<BatchNorm>(x3, weight, bias, running_mean, running_var,
                                 BatchNormRule{o.training, o.momentum, o.eps}),
                 x.shape());
}

}  // namespace mixtape
