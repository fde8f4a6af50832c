// A convolution and its gradients for the input (a transposed convolution) and for the weight:
// three ops, each linear in both operands, that differentiate into each other, to any order.

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Window;

// The CPU's kernels take images with channels last as they are and return results in that order,
// and so do tensor cores if all channels are one group. Other kernels take row-major images.
MemoryFormat order_of(const Tensor& x, const Window& w) {
  const bool tensor = is_half(x.dtype()) || (x.dtype() == f32 && Tf32::allowed());
  const bool takes_both = x.device().is_like_cpu() || (tensor && w.groups == 1);
  return takes_both ? ops::order_of(x) : MemoryFormat::Contiguous;
}
MemoryFormat order_of(const Tensor& x, const Tensor& y, const Window& w) {
  return std::max(order_of(x, w), order_of(y, w));
}

// Calls one of the three ops with a result dtype. The two that take a bias get an absent one.
template <class Op, class... Bias>
Tensor apply(const Tensor& x, const Tensor& y, const ConvGeometry& g, DType want,
             const Bias&... none) {
  const Factors f(x, y);
  return call<Op>(f.a, f.b, none..., g.linear(f.product(want)));
}

struct Conv2d {
  static constexpr OpInfo info{
      "conv2d",
      Precision::Low,
      {Role::Activation, Role::Parameter, Role::Statistic, Role::Statistic},
      Product::Convolution};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& w, const Tensor& bias,
                        const ConvGeometry& g, const Tensor& residual = {}) {
    check_real(x);
    const MemoryFormat order = order_of(x, g.window);
    Tensor y = image(ctx, g.output, order, dtype_with(ctx, residual)), before;
    if (ctx.recording() && needs_pre_activation(g.activation)) before = y.like(y.dtype());
    ctx.run(kernels::conv2d, x.contiguous(order), w.contiguous(),
            kernels::Epilogue{.bias = bias,
                              .residual = residual_like(residual, y),
                              .activation = g.activation,
                              .before = before},
            g.window, y);
    ctx.save(x, w);
    save_activation(ctx, g.activation, bias, residual, before, y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ConvGeometry& g);
  static Grads backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, const ConvGeometry& g);
  // Without a residual, the op has an input less, which is faster.
  static Tensor of(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                   const Tensor& residual) {
    return residual ? call<Conv2d>(x, w, bias, g, residual) : call<Conv2d>(x, w, bias, g);
  }
};

struct ConvTranspose2d {  // (dy, w) -> dx
  static constexpr OpInfo info{"conv_transpose2d",
                               Precision::Low,
                               {Role::Activation, Role::Parameter, Role::Statistic},
                               Product::Convolution};
  static Tensor forward(Ctx& ctx, const Tensor& dy, const Tensor& w, const Tensor& bias,
                        const ConvGeometry& g) {
    check_real(dy);
    const MemoryFormat order = order_of(dy, g.window);
    Tensor dx = image(ctx, g.input, order);
    ctx.run(kernels::conv2d_input, dy.contiguous(order), w.contiguous(), bias, g.window, dx);
    ctx.save(dy, w);
    return dx;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dx, const ConvGeometry& g);
  static Grads backward_each(const Ctx& ctx, const Tensor& dx, int64_t n, const ConvGeometry& g);
};

struct Conv2dWeight {  // (x, dy) -> dw
  static constexpr OpInfo info{"conv2d_weight", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& dy, const ConvGeometry& g) {
    Tensor dw = ctx.output(g.weight);
    const MemoryFormat order = order_of(x, dy, g.window);
    ctx.run(kernels::conv2d_weight, x.contiguous(order), dy.contiguous(order), g.window, dw,
            Tensor());
    ctx.save(x, dy);
    return dw;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dw, const ConvGeometry& g);
};

Grads Conv2d::backward(const Ctx& ctx, const Tensor& dy, const ConvGeometry& g) {
  const Tensor of_sums = pre_activation_gradient(ctx, g.activation, dy, [&] {
    return of(ctx.saved(0), ctx.saved(1), ctx.saved(2), g.linear(), ctx.saved(4));
  });
  const Tensor dz = of_product(ctx, of_sums);
  RoundedFactors q(ctx, dz);
  const auto dx = [&](const Tensor& of_y) {
    return apply<ConvTranspose2d>(of_y, ctx.saved(1), g, ctx.grad_dtype(0), Tensor());
  };
  // One pass over dz gives both.
  if (!grad_enabled() && ctx.wants(1) && ctx.wants(2) && !q.rounds()) {
    const Factors f(ctx.saved(0), dz);
    const Tensor dw(g.weight, f.product(ctx.grad_dtype(1)), dz.device()),
        db(ctx.shape(2), accumulate_dtype(f.b.dtype()), dz.device());
    const MemoryFormat order = order_of(f.a, f.b, g.window);
    const Tensor x = f.a.contiguous(order), dzc = f.b.contiguous(order);
    ctx.run(kernels::conv2d_weight, x, dzc, g.window, dw, db);
    return with_residual(
        ctx, ctx.grads([&] { return dx(dzc); }, [&] { return dw; }, [&] { return db; }), of_sums);
  }
  return with_residual(
      ctx,
      ctx.grads([&] { return dx(q.dz(0)); },
                [&] { return apply<Conv2dWeight>(ctx.saved(0), q.dz(0), g, ctx.grad_dtype(1)); },
                [&] { return bias_gradient(ctx, 2, dz, 0b1101); }),
      of_sums);
}
// The gradients of a weight for n examples, which become groups of channels side by side.
Tensor weight_each(const Tensor& x, const Tensor& dy, int64_t n, ConvGeometry g, DType want) {
  const auto beside = [&](const Tensor& t) {
    return reshape(transpose(by_example(t, n), 0, 1),
                   {t.size(0) / n, n * t.size(1), t.size(2), t.size(3)});
  };
  const Tensor xs = beside(x), dys = beside(dy);
  const Shape w = g.weight;
  g.window.groups *= n;
  g.input = xs.shape();
  g.output = dys.shape();
  g.weight[0] *= n;
  return reshape(apply<Conv2dWeight>(xs, dys, g, want), {n, w[0], w[1], w[2], w[3]});
}
Tensor bias_each(const Tensor& dy, int64_t n) { return sum(by_example(dy, n), {1, 3, 4}); }

Grads Conv2d::backward_each(const Ctx& ctx, const Tensor& dy, int64_t n, const ConvGeometry& g) {
  const Tensor dz =
      of_product(ctx, pre_activation_gradient(ctx, g.activation, dy, [] { return Tensor(); }));
  return ctx.grads([] { return Tensor(); },
                   [&] { return weight_each(ctx.saved(0), dz, n, g, ctx.grad_dtype(1)); },
                   [&] { return bias_each(dz, n); });
}
Grads ConvTranspose2d::backward(const Ctx& ctx, const Tensor& dx, const ConvGeometry& g) {
  RoundedFactors q(ctx, dx);
  return ctx.grads(
      [&] { return apply<Conv2d>(q.dz(0), ctx.saved(1), g, ctx.grad_dtype(0), Tensor()); },
      [&] { return apply<Conv2dWeight>(q.dz(0), ctx.saved(0), g, ctx.grad_dtype(1)); },
      [&] { return bias_gradient(ctx, 2, dx, 0b1101); });
}
Grads ConvTranspose2d::backward_each(const Ctx& ctx, const Tensor& dx, int64_t n,
                                     const ConvGeometry& g) {
  return ctx.grads([] { return Tensor(); },
                   [&] { return weight_each(dx, ctx.saved(0), n, g, ctx.grad_dtype(1)); },
                   [&] { return bias_each(dx, n); });
}
Grads Conv2dWeight::backward(const Ctx& ctx, const Tensor& dw, const ConvGeometry& g) {
  return ctx.grads(
      [&] { return apply<ConvTranspose2d>(ctx.saved(1), dw, g, ctx.grad_dtype(0), Tensor()); },
      [&] { return apply<Conv2d>(ctx.saved(0), dw, g, ctx.grad_dtype(1), Tensor()); });
}

// Options: Conv2dOptions or ConvTranspose2dOptions.
template <class Options>
Window make_window(const Shape& x, const Shape& weight, const Options& o) {
  Window w;
  w.groups = o.groups;
  for (int d = 0; d < 2; ++d) {
    w.size[d] = weight[2 + d];
    w.stride[d] = o.stride[d];
    w.padding[d] = o.padding[d];
    w.dilation[d] = o.dilation[d];
    check(w.size[d] > 0, "a weight of shape {} has no window", weight);
    check(w.stride[d] > 0 && w.dilation[d] > 0 &&
              countable({x[2 + d], w.size[d], w.stride[d], w.dilation[d], w.padding[d]}),
          "stride and dilation must be > 0, padding >= 0, all below 2^31, got stride {}, dilation "
          "{}, padding {} of a window of {} over {} elements",
          w.stride[d], w.dilation[d], w.padding[d], w.size[d], x[2 + d]);
  }
  return w;
}

Tensor convolve(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  check(o.groups > 0 && countable({o.groups, weight.size(1)}),
        "groups must be > 0 and below 2^31, got {} of {} channels", o.groups, weight.size(1));
  const int64_t outputs = weight.size(0), taken = weight.size(1) * o.groups;
  check(x.size(1) == taken, "the input has {} channels, the weight takes {} in {} groups",
        x.size(1), taken, o.groups);
  check(outputs % o.groups == 0, "{} outputs do not divide into {} groups", outputs, o.groups);
  check_shape(bias, "the bias", {outputs});
  const Window w = make_window(x.shape(), weight.shape(), o);
  for (int d = 0; d < 2; ++d)
    check(x.size(2 + d) + 2 * w.padding[d] > w.dilation[d] * (w.size[d] - 1),
          "a window of {} (dilation {}) does not fit into {} + 2 * {}", w.size[d], w.dilation[d],
          x.size(2 + d), w.padding[d]);
  const Shape y{x.size(0), outputs, w.count(x.size(2), 0), w.count(x.size(3), 1)};
  for (const Shape& planes : {x.shape(), y}) check_counted("planes", {planes[2], planes[3]});
  check_shape(o.residual, "the residual", y);
  return Conv2d::of(x, weight, bias, ConvGeometry{w, x.shape(), weight.shape(), y, o.activation},
                    o.residual);
}

// The options for a batch of one.
template <class Options>
Options of_one_image(Options o) {
  if (o.residual) o.residual = unsqueeze(o.residual, 0);
  return o;
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& o) {
  if (x.rank() == 2) return squeeze(conv1d(unsqueeze(x, 0), weight, bias, of_one_image(o)), 0);
  const Scope scope("conv1d");
  check(x.rank() == 3, "the input has shape {}, not [n, c, l] or [c, l]", x.shape());
  check(weight.rank() == 3, "the weight has shape {}, not [o, c/groups, k]", weight.shape());
  const Conv2dOptions rows{.stride = {1, o.stride},
                           .padding = {0, o.padding},
                           .dilation = {1, o.dilation},
                           .groups = o.groups,
                           .activation = o.activation,
                           .residual = o.residual ? unsqueeze(o.residual, 2) : Tensor()};
  return squeeze(convolve(unsqueeze(x, 2), unsqueeze(weight, 2), bias, rows), 2);
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  if (x.rank() == 3) return squeeze(conv2d(unsqueeze(x, 0), weight, bias, of_one_image(o)), 0);
  const Scope scope(Conv2d::info.name);
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w] or [c, h, w]", x.shape());
  check(weight.rank() == 4, "the weight has shape {}, not [o, c/groups, kh, kw]", weight.shape());
  return convolve(x, weight, bias, o);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& o) {
  if (x.rank() == 3) return squeeze(conv_transpose2d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope(ConvTranspose2d::info.name);
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w] or [c, h, w]", x.shape());
  check(weight.rank() == 4, "the weight has shape {}, not [c, o/groups, kh, kw]", weight.shape());
  check(x.size(1) == weight.size(0), "the input has {} channels, the weight takes {}", x.size(1),
        weight.size(0));
  check(o.groups > 0 && countable({o.groups, weight.size(1)}) && x.size(1) % o.groups == 0,
        "{} channels do not divide into {} groups", x.size(1), o.groups);
  const int64_t outputs = weight.size(1) * o.groups;
  check_shape(bias, "the bias", {outputs});
  const Window w = make_window(x.shape(), weight.shape(), o);
  Shape y{x.size(0), outputs, 0, 0};
  for (int d = 0; d < 2; ++d) {
    const int64_t more = o.output_padding[d];
    // A larger one cannot be the remainder of a division by the stride.
    check(more >= 0 && more < std::max(w.stride[d], w.dilation[d]),
          "an output padding of {} with stride {} and dilation {} (it must be below one of them)",
          more, w.stride[d], w.dilation[d]);
    const int64_t whole = (x.size(2 + d) - 1) * w.stride[d] + w.dilation[d] * (w.size[d] - 1) + 1;
    y[2 + d] = whole - 2 * w.padding[d] + more;
    check(y[2 + d] > 0, "padding {} leaves nothing of {}", w.padding[d], whole);
  }
  for (const Shape& planes : {x.shape(), y}) check_counted("planes", {planes[2], planes[3]});
  return call<ConvTranspose2d>(x, weight, bias, ConvGeometry{w, y, weight.shape(), x.shape()});
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& o) {
  if (x.rank() == 2) return squeeze(conv_transpose1d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope("conv_transpose1d");
  check(x.rank() == 3, "the input has shape {}, not [n, c, l] or [c, l]", x.shape());
  check(weight.rank() == 3, "the weight has shape {}, not [c, o/groups, k]", weight.shape());
  const ConvTranspose2dOptions rows{.stride = {1, o.stride},
                                    .padding = {0, o.padding},
                                    .output_padding = {0, o.output_padding},
                                    .dilation = {1, o.dilation},
                                    .groups = o.groups};
  return squeeze(conv_transpose2d(unsqueeze(x, 2), unsqueeze(weight, 2), bias, rows), 2);
}

}  // namespace mixtape
