// Normalisation. Statistics are f32 for any dtype of activations, and saved for backward.

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

Tensor like(const Ctx& ctx, size_t input) { return ctx.wants(input) ? ctx.like(input) : Tensor(); }

// (x - mean) rstd, by halves: the difference of two numbers may be beyond the largest one.
Tensor standard_score(const Tensor& x, const Tensor& mean, const Tensor& rstd) {
  return (x * 0.5 - mean * 0.5) * (rstd * 2.0);
}

// The normalised x and its statistics, recorded with ops, for double backward.
struct Normal {
  Tensor h, rstd;
  Dims dims = {};  // normalised over; empty if the statistics are constants
  bool centered = true;

  // h = (x - mean(x)) rstd over dims or, if not centered, x rstd with the second moment as
  // variance. (In f64, since a difference or a square may leave the range of f32.)
  static Normal of(const Tensor& x, const Dims& dims, double eps, bool centered = true) {
    const Tensor all = cast(x, f64), off = centered ? all - mean(all, dims, true) : all;
    const Tensor rstd = rsqrt(mean(square(off), dims, true) + eps);
    return {cast(off * rstd, x.dtype()), cast(rstd, x.dtype()), dims, centered};
  }
  // dx = rstd (g - mean(g) - h mean(g h)) for a gradient g of h; each mean only if it was taken.
  Tensor gradient(const Tensor& g) const {
    if (dims.empty()) return rstd * g;
    const Tensor slope = h * mean(g * h, dims, true);
    return rstd * ((centered ? g - mean(g, dims, true) : g) - slope);
  }
};

// The gradients of x, weight and bias in y = h w + b. Dimension 1 of `shape` is that of w and b.
Grads recorded(const Ctx& ctx, const Tensor& dy, const Shape& shape, const Normal& x) {
  const Tensor w = wide(ctx.saved(1)), g = reshape(wide(dy), shape);
  const auto dx = [&] {
    const Tensor dh = w ? g * unsqueeze(w, 1) : g;
    return reshape(x.gradient(reshape(dh, x.h.shape())), ctx.shape(0));
  };
  const auto total = [](const Tensor& t) { return sum(t, {0, 2}); };
  return ctx.grads(dx, [&] { return total(g * reshape(x.h, shape)); }, [&] { return total(g); });
}

template <bool centered>
struct RowNorm {  // x [..., n]; weight and bias [n] or none
  static constexpr OpInfo info{centered ? "layer_norm" : "rms_norm",
                               centered ? Precision::Full : Precision::Native,
                               {Role::Activation, Role::Parameter, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        double eps, std::optional<DType> rounded) {
    check_real(x);
    const DType stats = accumulate_dtype(x.dtype());
    const Shape rows{x.numel() / std::max<int64_t>(1, x.size(-1))};
    Tensor y = ctx.output(x.shape(), rounded.value_or(ctx.dtype())), rstd = ctx.output(rows, stats);
    const Tensor mean = centered ? ctx.output(rows, stats) : Tensor();
    ctx.run(kernels::layer_norm, x.contiguous(), dense(weight), dense(bias), eps, y, mean, rstd);
    ctx.save(x, weight);
    ctx.save_extra(rstd);
    if (centered) ctx.save_extra(mean);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, double eps, std::optional<DType>) {
    if (grad_enabled()) {
      const Shape rows{ctx.saved(2).numel(), dy.size(-1)};
      return recorded(ctx, dy, {rows[0], rows[1], 1},
                      Normal::of(reshape(wide(ctx.saved(0)), rows), {1}, eps, centered));
    }
    const Tensor sum = ctx.take_sum(0), dx = sum ? sum : like(ctx, 0), dw = like(ctx, 1),
                 db = like(ctx, 2);
    const Tensor x = ctx.saved(0).contiguous(), w = dense(ctx.saved(1)), dyc = dy.contiguous();
    const Tensor mean = centered ? ctx.saved(3) : Tensor();
    ctx.run(kernels::layer_norm_grad, x, w, mean, ctx.saved(2), dyc, sum, dx, dw, db);
    return {dx, dw, db};
  }
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n) {
    const Tensor g = reshape(wide(dy), {n, -1, dy.size(-1)});
    const auto of_rows = [n](const Tensor& t) { return reshape(t, {n, -1, 1}); };
    const auto h = [&] {
      const Tensor x = reshape(wide(ctx.saved(0)), g.shape());
      const Tensor rstd = of_rows(ctx.saved(2));
      return centered ? standard_score(x, of_rows(ctx.saved(3)), rstd) : x * rstd;
    };
    return ctx.grads([] { return Tensor(); }, [&] { return sum(g * h(), {1}); },
                     [&] { return sum(g, {1}); });
  }
};

template <bool instance>
struct GroupNorm {  // x [n, c, inner]; weight and bias [c] or none
  static constexpr OpInfo info{instance ? "instance_norm" : "group_norm",
                               Precision::Full,
                               {Role::Activation, Role::Parameter, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        int64_t groups, double eps) {
    check_real(x);
    const Shape rows{x.size(0) * groups};
    Tensor y = ctx.output(x.shape()), mean = ctx.output(rows, accumulate_dtype(x.dtype())),
           rstd = ctx.output(rows, mean.dtype());
    ctx.run(kernels::group_norm, x.contiguous(), groups, dense(weight), dense(bias), eps, y, mean,
            rstd);
    ctx.save(x, weight);
    ctx.save_extra(mean);
    ctx.save_extra(rstd);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int64_t groups, double eps) {
    if (grad_enabled()) {
      const Shape by_group{dy.size(0), groups, dy.size(1) / groups * dy.size(2)};
      return recorded(ctx, dy, dy.shape(),
                      Normal::of(reshape(wide(ctx.saved(0)), by_group), {2}, eps));
    }
    const Tensor dx = like(ctx, 0), dw = like(ctx, 1), db = like(ctx, 2);
    const Tensor x = ctx.saved(0).contiguous(), w = dense(ctx.saved(1)), dyc = dy.contiguous();
    ctx.run(kernels::group_norm_grad, x, groups, w, ctx.saved(2), ctx.saved(3), dyc, dx, dw, db);
    return {dx, dw, db};
  }
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, int64_t groups, double) {
    const Shape each{n, dy.size(0) / n, dy.size(1), dy.size(2)};
    const Tensor g = reshape(wide(dy), each);
    const auto of_groups = [&](const Tensor& t) { return reshape(t, {dy.size(0), groups, 1}); };
    const auto h = [&] {
      const Tensor x = reshape(wide(ctx.saved(0)), {dy.size(0), groups, -1});
      return reshape(standard_score(x, of_groups(ctx.saved(2)), of_groups(ctx.saved(3))), each);
    };
    return ctx.grads([] { return Tensor(); }, [&] { return sum(g * h(), {1, 3}); },
                     [&] { return sum(g, {1, 3}); });
  }
};

struct BatchNorm {  // x [n, c, inner]
  static constexpr OpInfo info{
      "batch_norm",
      Precision::Native,
      {Role::Activation, Role::Parameter, Role::Parameter, Role::Statistic, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& running_mean, const Tensor& running_var,
                        const BatchNormParams& params) {
    check_real(x);
    const DType stats = accumulate_dtype(x.dtype());
    Tensor y = ctx.output(x.shape()), mean, rstd;
    const Tensor xc = x.contiguous();
    if (params.training) {
      const Shape channels{x.size(1)};
      Tensor var = ctx.output(channels, stats);
      mean = ctx.output(channels, stats);
      rstd = ctx.output(channels, stats);
      ctx.run(kernels::batch_stats, xc, params.eps, mean, var, rstd);
      if (running_mean) {  // with the unbiased variance, as PyTorch does
        const double n = double(x.numel()) / double(std::max<int64_t>(1, x.size(1)));
        update_running(running_mean, mean, params.momentum);
        update_running(running_var, var * (n / std::max(1.0, n - 1)), params.momentum);
      }
    } else {
      mean = cast(running_mean, stats);
      rstd = rsqrt(cast(running_var, stats) + params.eps);
    }
    ctx.run(kernels::batch_norm, xc, mean, rstd, dense(weight), dense(bias), y);
    ctx.save(x, weight);
    ctx.save_extra(mean);
    ctx.save_extra(rstd);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const BatchNormParams& params) {
    if (grad_enabled()) {
      const Tensor x = wide(ctx.saved(0)), mean = unsqueeze(ctx.saved(2), 1),
                   rstd = unsqueeze(ctx.saved(3), 1);
      return recorded(ctx, dy, dy.shape(),
                      params.training ? Normal::of(x, {0, 2}, params.eps)
                                      : Normal{standard_score(x, mean, rstd), rstd});
    }
    const Tensor dx = like(ctx, 0), dw = like(ctx, 1), db = like(ctx, 2);
    const Tensor x = ctx.saved(0).contiguous(), w = dense(ctx.saved(1)), dyc = dy.contiguous();
    ctx.run(kernels::batch_norm_grad, x, ctx.saved(2), ctx.saved(3), w, dyc, !params.training, dx,
            dw, db);
    return {dx, dw, db};
  }
};

template <bool centered>
Tensor row_norm(const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                double eps, std::optional<DType> rounded = {}) {
  using Op = RowNorm<centered>;
  const Scope scope(Op::info.name);
  const int outer = x.rank() - shape.rank;
  check(shape.rank > 0 && outer >= 0, "the last dimensions must be {}, got an input of shape {}",
        shape, x.shape());
  for (int d = 0; d < shape.rank; ++d)
    check(x.size(outer + d) == shape[d], "the last dimensions must be {}, got an input of shape {}",
          shape, x.shape());
  check_shape(weight, "the weight", shape);
  check_shape(bias, "the bias", shape);
  const bool by_kernel =
      !rounded || *rounded == x.dtype() || (x.dtype() == f32 && is_half(*rounded));
  if (!by_kernel) return cast(row_norm<centered>(x, shape, weight, bias, eps), *rounded);
  const int64_t n = shape.size(), rows = x.numel() / std::max<int64_t>(1, n);
  const auto flat = [&](const Tensor& t) { return t && t.rank() > 1 ? reshape(t, {n}) : t; };
  const bool of_rows = shape.rank == 1 && x.is_contiguous();
  const Tensor y =
      call<Op>(of_rows ? x : reshape(x, {rows, n}), flat(weight), flat(bias), eps, rounded);
  // A separate cast would not round the gradient, so neither does this.
  if (rounded && y.grad_fn() && y.grad_fn()->ctx.dtype() == f32) y.grad_fn()->grad_dtype = f32;
  return of_rows ? y : reshape(y, x.shape());
}

// x [n, c, ...] as [n, c, inner]
Tensor by_channel(const Tensor& x) {
  const int64_t planes = std::max<int64_t>(1, x.size(0) * x.size(1));
  return reshape(x, {x.size(0), x.size(1), x.numel() / planes});
}

void check_channels(const Tensor& x, const Tensor& t, std::string_view what) {
  if (t)
    check(t.rank() == 1 && t.size(0) == x.size(1),
          "the input of shape {} has {} channels, {} is {}", x.shape(), x.size(1), what, t.shape());
}

template <class Op>
Tensor channel_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                    double eps) {
  const Scope scope(Op::info.name);
  check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
  const int64_t c = x.size(1);
  check(groups > 0 && c % groups == 0, "{} channels do not divide into {} groups", c, groups);
  check_channels(x, weight, "the weight");
  check_channels(x, bias, "the bias");
  return reshape(call<Op>(by_channel(x), weight, bias, groups, eps), x.shape());
}

}  // namespace

void ops::update_running(const Tensor& running, const Tensor& now, double momentum) {
  const Tensor moved = running * (1 - momentum) + cast(now, running.dtype()) * momentum;
  copy_(running, where(isfinite(moved), moved, running));
}

Tensor layer_norm(const Tensor& x, const Shape& shape, const Tensor& weight, const Tensor& bias,
                  double eps, std::optional<DType> rounded) {
  return row_norm<true>(x, shape, weight, bias, eps, rounded);
}
Tensor rms_norm(const Tensor& x, const Shape& shape, const Tensor& weight, double eps,
                std::optional<DType> rounded) {
  return row_norm<false>(x, shape, weight, {}, eps, rounded);
}
Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight, const Tensor& bias,
                  double eps) {
  return channel_norm<GroupNorm<false>>(x, groups, weight, bias, eps);
}
Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const Scope scope(GroupNorm<true>::info.name);
  check(x.rank() >= 3 && spliced(x.shape(), 0, 2, {}).size() != 1,
        "needs more than one value per channel: shape {}", x.shape());
  return channel_norm<GroupNorm<true>>(x, x.size(1), weight, bias, eps);
}

Tensor batch_norm(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                  const Tensor& weight, const Tensor& bias, const BatchNormOptions& o) {
  const Scope scope(BatchNorm::info.name);
  check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
  const int64_t c = x.size(1);
  check(o.training || (running_mean && running_var), "evaluation needs running statistics");
  check(bool(running_mean) == bool(running_var),
        "running mean and variance must be given together");
  check_channels(x, running_mean, "the running mean");
  check_channels(x, running_var, "the running variance");
  check_channels(x, weight, "the weight");
  check_channels(x, bias, "the bias");
  const int64_t per_channel = x.numel() / std::max<int64_t>(1, c);
  check(!o.training || per_channel > 1, "training needs more than one value per channel: shape {}",
        x.shape());
  const auto normed = [&](const Tensor& t) {
    return call<BatchNorm>(t, weight, bias, running_mean, running_var,
                           BatchNormParams{o.training, o.momentum, o.eps});
  };
  if (format_of(x.layout()) == MemoryFormat::Contiguous)
    return reshape(normed(by_channel(x)), x.shape());
  const Tensor pixels = permute(x, {0, 2, 3, 1});  // rows of channels
  return permute(reshape(normed(reshape(pixels, {per_channel, c, 1})), pixels.shape()),
                 {0, 3, 1, 2});
}

}  // namespace mixtape
