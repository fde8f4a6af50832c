// A convolution and its gradients for the input (a transposed convolution) and for the weight:
// three ops, each linear in both operands, that differentiate into each other, to any order. Those
// of volumes are sums of those of images, one for each plane of the kernel.

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

// The geometry of the images that one plane of the kernel meets, with a result of that dtype.
ConvGeometry of_plane(ConvGeometry g, DType dtype) {
  const int64_t images = g.output[0] * g.output[2];
  for (Shape* const s : {&g.input, &g.weight, &g.output}) *s = {(*s)[0], (*s)[1], (*s)[3], (*s)[4]};
  g.input[0] = g.output[0] = images;
  g.out = dtype;
  return g;
}
// The planes of x [n, c, d, h, w] as images, with padding along d: [n, d, c, h, w], dense.
Tensor planes_of(const Tensor& x, int64_t padding = 0) {
  const Tensor planes = contiguous(permute(x, {0, 2, 1, 3, 4}));
  return padding == 0 ? planes : pad(planes, {0, 0, 0, 0, 0, 0, padding, padding});
}
// A view of those planes that plane k of the kernel meets, one for each plane of the output.
Tensor met_by(int64_t k, const Tensor& planes, const ConvGeometry& g) {
  const int64_t first = k * g.depth.dilation, last = first + (g.output[2] - 1) * g.depth.stride;
  return slice(planes, 1, first, last + 1, g.depth.stride);
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
    if (g.of_volumes()) return of_volumes(ctx, x, w, bias, g);
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
  static Tensor of_volumes(Ctx& ctx, const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g) {
    ctx.save(x, w);
    const Unobserved aside;
    const int64_t n = g.output[0], depth = g.output[2];
    const DType wide = accumulate_dtype(ctx.dtype());
    const ConvGeometry of_images = of_plane(g, g.weight[2] > 1 ? wide : ctx.dtype());
    const Tensor planes = planes_of(x, g.depth.padding);
    Tensor y;
    for (int64_t k = 0; k < g.weight[2]; ++k)
      y = of(flatten(met_by(k, planes, g), 0, 1), select(w, 2, k), k == 0 ? bias : Tensor(),
             of_images, y);
    y = reshape(cast(y, ctx.dtype()), {n, depth, g.output[1], g.output[3], g.output[4]});
    return permute(y, {0, 2, 1, 3, 4});
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
    if (g.of_volumes()) return of_volumes(ctx, dy, w, bias, g);
    const MemoryFormat order = order_of(dy, g.window);
    Tensor dx = image(ctx, g.input, order);
    ctx.run(kernels::conv2d_input, dy.contiguous(order), w.contiguous(), bias, g.window, dx);
    ctx.save(dy, w);
    return dx;
  }
  static Tensor of_volumes(Ctx& ctx, const Tensor& dy, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g) {
    ctx.save(dy, w);
    const Unobserved aside;
    const Shape& x = g.input;
    const DType wide = accumulate_dtype(ctx.dtype());
    const Tensor images = flatten(planes_of(dy), 0, 1),
                 planes =
                     zeros({x[0], x[2] + 2 * g.depth.padding, x[1], x[3], x[4]}, wide, dy.device());
    for (int64_t k = 0; k < g.weight[2]; ++k) {
      const Tensor to = met_by(k, planes, g);
      const Tensor part =
          call<ConvTranspose2d>(images, select(w, 2, k), Tensor(), of_plane(g, wide));
      detail::accumulate(reshape(part, to.shape()), to);
    }
    Tensor dx = permute(narrow(planes, 1, g.depth.padding, x[2]), {0, 2, 1, 3, 4});
    if (bias) dx = dx + cast(reshape(bias, {x[1], 1, 1, 1}), wide);
    return cast(dx, ctx.dtype());
  }
  static Grads backward(const Ctx& ctx, const Tensor& dx, const ConvGeometry& g);
  static Grads backward_each(const Ctx& ctx, const Tensor& dx, int64_t n, const ConvGeometry& g);
};

struct Conv2dWeight {  // (x, dy) -> dw
  static constexpr OpInfo info{"conv2d_weight", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& dy, const ConvGeometry& g) {
    Tensor dw = ctx.output(g.weight);
    ctx.save(x, dy);
    if (g.of_volumes()) return of_volumes(ctx, x, dy, g, dw);
    const MemoryFormat order = order_of(x, dy, g.window);
    ctx.run(kernels::conv2d_weight, x.contiguous(order), dy.contiguous(order), g.window, dw,
            Tensor());
    return dw;
  }
  static Tensor of_volumes(Ctx& ctx, const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                           const Tensor& dw) {
    const Unobserved aside;
    const Tensor planes = planes_of(x, g.depth.padding), images = flatten(planes_of(dy), 0, 1);
    for (int64_t k = 0; k < g.weight[2]; ++k) {
      const Tensor met = flatten(met_by(k, planes, g), 0, 1);
      ctx.run(kernels::convert, call<Conv2dWeight>(met, images, of_plane(g, ctx.dtype())),
              select(dw, 2, k));
    }
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
  if (!grad_enabled() && ctx.wants(1) && ctx.wants(2) && !q.rounds() && !g.of_volumes()) {
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
                [&] { return bias_gradient(ctx, 2, dz, 0b11101); }),
      of_sums);
}
// The gradients of a weight for n examples, which become groups of channels side by side.
Tensor weight_each(const Tensor& x, const Tensor& dy, int64_t n, ConvGeometry g, DType want) {
  const auto beside = [&](const Tensor& t) {
    return flatten(transpose(by_example(t, n), 0, 1), 1, 2);
  };
  const Tensor xs = beside(x), dys = beside(dy);
  g.window.groups *= n;
  g.input = xs.shape();
  g.output = dys.shape();
  g.weight[0] *= n;
  return by_example(apply<Conv2dWeight>(xs, dys, g, want), n);
}

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
      [&] { return bias_gradient(ctx, 2, dx, 0b11101); });
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

// The window of a weight over x. Options: those of images or of volumes.
template <class Options>
ConvGeometry with_window(const Shape& x, const Shape& weight, const Tensor& bias, int64_t outputs,
                         const Options& o) {
  check_shape(bias, "the bias", {outputs});
  ConvGeometry g;
  g.weight = weight;
  g.window.groups = o.groups;
  for (int d = 0; d < x.rank - 2; ++d) {
    const int64_t size = weight[2 + d], stride = o.stride[d], padding = o.padding[d],
                  dilation = o.dilation[d];
    check(size > 0, "a weight of shape {} has no window", weight);
    check(stride > 0 && dilation > 0 && countable({x[2 + d], size, stride, dilation, padding}),
          "stride and dilation must be > 0, padding >= 0, all below 2^31, got stride {}, dilation "
          "{}, padding {} of a window of {} over {} elements",
          stride, dilation, padding, size, x[2 + d]);
    const int in_plane = d - (x.rank - 4);
    if (in_plane < 0) {
      g.depth = {stride, padding, dilation};
      continue;
    }
    g.window.size[in_plane] = size;
    g.window.stride[in_plane] = stride;
    g.window.padding[in_plane] = padding;
    g.window.dilation[in_plane] = dilation;
  }
  return g;
}
ConvGeometry checked(const ConvGeometry& g) {
  for (const Shape& s : {g.input, g.output}) check_counted("planes", {s[-2], s[-1]});
  return g;
}

// The geometry of x [n, c, ..] and a weight [o, c/groups, ..].
template <class Options>
ConvGeometry geometry_of(const Shape& x, const Shape& weight, const Tensor& bias,
                         const Options& o) {
  check(o.groups > 0 && countable({o.groups, weight[1]}),
        "groups must be > 0 and below 2^31, got {} of {} channels", o.groups, weight[1]);
  const int64_t outputs = weight[0], taken = weight[1] * o.groups;
  check(x[1] == taken, "the input has {} channels, the weight takes {} in {} groups", x[1], taken,
        o.groups);
  check(outputs % o.groups == 0, "{} outputs do not divide into {} groups", outputs, o.groups);
  ConvGeometry g = with_window(x, weight, bias, outputs, o);
  g.input = x;
  g.output = {x[0], outputs};
  for (int d = 0; d < x.rank - 2; ++d) {
    const int64_t reach = o.dilation[d] * (weight[2 + d] - 1),
                  space = x[2 + d] + 2 * o.padding[d] - reach;
    check(space > 0, "a window of {} (dilation {}) does not fit into {} + 2 * {}", weight[2 + d],
          o.dilation[d], x[2 + d], o.padding[d]);
    g.output.push_back((space - 1) / o.stride[d] + 1);
  }
  return checked(g);
}
Tensor convolve(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  ConvGeometry g = geometry_of(x.shape(), weight.shape(), bias, o);
  g.activation = o.activation;
  check_shape(o.residual, "the residual", g.output);
  return Conv2d::of(x, weight, bias, g, o.residual);
}

// A transposed convolution of x [n, c, ..] by a weight [c, o/groups, ..].
template <class Options>
Tensor transposed(const Tensor& y, const Tensor& weight, const Tensor& bias, const Options& o) {
  const Shape &x = y.shape(), &w = weight.shape();
  check(x[1] == w[0], "the input has {} channels, the weight takes {}", x[1], w[0]);
  check(o.groups > 0 && countable({o.groups, w[1]}) && x[1] % o.groups == 0,
        "{} channels do not divide into {} groups", x[1], o.groups);
  const int64_t outputs = w[1] * o.groups;
  ConvGeometry g = with_window(x, w, bias, outputs, o);
  g.output = x;
  g.input = {x[0], outputs};
  for (int d = 0; d < x.rank - 2; ++d) {
    const int64_t more = o.output_padding[d];
    // A larger one cannot be the remainder of a division by the stride.
    check(more >= 0 && more < std::max(o.stride[d], o.dilation[d]),
          "an output padding of {} with stride {} and dilation {} (it must be below one of them)",
          more, o.stride[d], o.dilation[d]);
    const int64_t whole = (x[2 + d] - 1) * o.stride[d] + o.dilation[d] * (w[2 + d] - 1) + 1,
                  left = whole - 2 * o.padding[d] + more;
    check(left > 0, "padding {} leaves nothing of {}", o.padding[d], whole);
    g.input.push_back(left);
  }
  return call<ConvTranspose2d>(y, weight, bias, checked(g));
}

void check_operands(const Tensor& x, const Tensor& weight, int rank, std::string_view channels) {
  constexpr std::string_view windows[] = {"k", "kh, kw", "kd, kh, kw"};
  check_batch(x, rank);
  check(weight.rank() == rank, "the weight has shape {}, not [{}, {}]", weight.shape(), channels,
        windows[rank - 3]);
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
  check_operands(x, weight, 3, "o, c/groups");
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
  check_operands(x, weight, 4, "o, c/groups");
  return convolve(x, weight, bias, o);
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& o) {
  if (x.rank() == 3) return squeeze(conv_transpose2d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope(ConvTranspose2d::info.name);
  check_operands(x, weight, 4, "c, o/groups");
  return transposed(x, weight, bias, o);
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& o) {
  if (x.rank() == 2) return squeeze(conv_transpose1d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope("conv_transpose1d");
  check_operands(x, weight, 3, "c, o/groups");
  const ConvTranspose2dOptions rows{.stride = {1, o.stride},
                                    .padding = {0, o.padding},
                                    .output_padding = {0, o.output_padding},
                                    .dilation = {1, o.dilation},
                                    .groups = o.groups};
  return squeeze(conv_transpose2d(unsqueeze(x, 2), unsqueeze(weight, 2), bias, rows), 2);
}

Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dOptions& o) {
  if (x.rank() == 4) return squeeze(conv3d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope("conv3d");
  check_operands(x, weight, 5, "o, c/groups");
  return call<Conv2d>(x, weight, bias, geometry_of(x.shape(), weight.shape(), bias, o));
}

Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose3dOptions& o) {
  if (x.rank() == 4) return squeeze(conv_transpose3d(unsqueeze(x, 0), weight, bias, o), 0);
  const Scope scope("conv_transpose3d");
  check_operands(x, weight, 5, "c, o/groups");
  return transposed(x, weight, bias, o);
}

}  // namespace mixtape
