// Convolution and pooling. A convolution and its two gradients are three ops, each of which is
// linear in both operands and whose rules are the other two: so they can be differentiated for
// ever.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "autograd/ops/reduce.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

using kernels::Window;

// What all three ops share: the window, the shapes that cannot be told from the operands, and the
// dtype of the result.
struct Geometry {
  Window window;
  Shape input, weight;
  std::optional<DType> out = {};

  Shape output() const {
    return {input[0], weight[0], window.count(input[2], 0), window.count(input[3], 1)};
  }
  Geometry with(DType dtype) const {
    Geometry g = *this;
    g.out = dtype;
    return g;
  }
};

// One of the three with the result in the wanted dtype; Conv2d takes an absent bias besides.
template <class Op, class... Bias>
Tensor apply(const Tensor& x, const Tensor& y, const Geometry& g, DType want, const Bias&... none) {
  const Factors f(x, y);
  return call<Op>(f.a, f.b, none..., g.with(f.product(want)));
}

struct Conv2dInput;   // (dy, w) -> dx
struct Conv2dWeight;  // (x, dy) -> dw

struct Conv2d {
  static constexpr OpInfo info{
      "conv2d", Precision::Low, {Role::Activation, Role::Parameter, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& w, const Tensor& bias,
                        const Geometry& g) {
    Tensor y = ctx.output(g.output());
    const Tensor xc = x.contiguous(), wc = w.contiguous();
    ctx.run(kernels::conv2d, xc, wc, bias, g.window, y);
    ctx.save(x, w);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Geometry& g);
};

struct Conv2dInput {
  static constexpr OpInfo info{"conv2d_input", Precision::Low, {Role::Activation, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& dy, const Tensor& w, const Geometry& g) {
    Tensor dx = ctx.output(g.input);
    const Tensor dyc = dy.contiguous(), wc = w.contiguous();
    ctx.run(kernels::conv2d_input, dyc, wc, g.window, dx);
    ctx.save(dy, w);
    return dx;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dx, const Geometry& g);
};

struct Conv2dWeight {
  static constexpr OpInfo info{"conv2d_weight", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& dy, const Geometry& g) {
    Tensor dw = ctx.output(g.weight);
    const Tensor xc = x.contiguous(), dyc = dy.contiguous();
    ctx.run(kernels::conv2d_weight, xc, dyc, g.window, dw);
    ctx.save(x, dy);
    return dw;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dw, const Geometry& g);
};

Grads Conv2d::backward(const Ctx& ctx, const Tensor& dy, const Geometry& g) {
  return ctx.grads([&] { return apply<Conv2dInput>(dy, ctx.saved(1), g, ctx.grad_dtype(0)); },
                   [&] { return apply<Conv2dWeight>(ctx.saved(0), dy, g, ctx.grad_dtype(1)); },
                   [&] {
                     return reshape(sum_to(dy, {.dims = 0b1101, .out = ctx.grad_dtype(2)}),
                                    ctx.shape(2));
                   });
}
Grads Conv2dInput::backward(const Ctx& ctx, const Tensor& dx, const Geometry& g) {
  return ctx.grads([&] { return apply<Conv2d>(dx, ctx.saved(1), g, ctx.grad_dtype(0), Tensor()); },
                   [&] { return apply<Conv2dWeight>(dx, ctx.saved(0), g, ctx.grad_dtype(1)); });
}
Grads Conv2dWeight::backward(const Ctx& ctx, const Tensor& dw, const Geometry& g) {
  return ctx.grads([&] { return apply<Conv2dInput>(ctx.saved(1), dw, g, ctx.grad_dtype(0)); },
                   [&] { return apply<Conv2d>(ctx.saved(0), dw, g, ctx.grad_dtype(1), Tensor()); });
}

struct MaxPool2d {
  static constexpr OpInfo info{"max_pool2d", Precision::Any};
  static constexpr bool first_order_only = true;
  static Tensor forward(Ctx& ctx, const Tensor& x, const Window& w) {
    Tensor y = ctx.output({x.size(0), x.size(1), w.count(x.size(2), 0), w.count(x.size(3), 1)});
    Tensor index = ctx.output(y.shape(), i32);
    const Tensor xc = x.contiguous();
    ctx.run(kernels::max_pool2d, xc, w, y, index);
    ctx.save_extra(index);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    Tensor dx = ctx.like(0);
    const Tensor dyc = cast(dy, dx.dtype()).contiguous();
    ctx.run(kernels::max_pool2d_grad, dyc, ctx.saved(0), dx);
    return {dx};
  }
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  const Scope scope(Conv2d::info.name);
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
  check(weight.rank() == 4, "the weight has shape {}, not [o, c/groups, kh, kw]", weight.shape());
  check(o.groups > 0 && x.size(1) == weight.size(1) * o.groups,
        "the input has {} channels, the weight {} takes {} in {} groups", x.size(1), weight.shape(),
        weight.size(1) * o.groups, o.groups);
  check(weight.size(0) % o.groups == 0, "{} outputs in {} groups", weight.size(0), o.groups);
  check(!bias || bias.shape() == Shape{weight.size(0)}, "the bias has shape {} for {} outputs",
        bias ? bias.shape() : Shape{}, weight.size(0));
  Geometry g{.window = {}, .input = x.shape(), .weight = weight.shape()};
  g.window.groups = o.groups;
  for (int d = 0; d < 2; ++d) {
    check(o.stride[d] > 0 && o.dilation[d] > 0 && o.padding[d] >= 0,
          "stride {}, dilation {}, padding {}", o.stride[d], o.dilation[d], o.padding[d]);
    g.window.size[d] = weight.size(2 + d);
    g.window.stride[d] = o.stride[d];
    g.window.padding[d] = o.padding[d];
    g.window.dilation[d] = o.dilation[d];
    check(x.size(2 + d) + 2 * o.padding[d] > o.dilation[d] * (weight.size(2 + d) - 1),
          "a window of {} (dilation {}) does not fit into {} + 2 * {}", weight.size(2 + d),
          o.dilation[d], x.size(2 + d), o.padding[d]);
  }
  return call<Conv2d>(x, weight, bias, g);
}

Tensor max_pool2d(const Tensor& x, std::array<int64_t, 2> size, const PoolOptions& o) {
  const Scope scope(MaxPool2d::info.name);
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
  Window w;
  for (int d = 0; d < 2; ++d) {
    w.size[d] = size[d];
    w.stride[d] = o.stride[d] ? o.stride[d] : size[d];
    w.padding[d] = o.padding[d];
    check(size[d] > 0 && w.stride[d] > 0, "a window of {} with stride {}", size[d], w.stride[d]);
    check(o.padding[d] >= 0 && 2 * o.padding[d] <= size[d],
          "padding {} of a window of {} (at most half)", o.padding[d], size[d]);
    check(x.size(2 + d) + 2 * o.padding[d] >= size[d],
          "a window of {} does not fit into {} + 2 * {}", size[d], x.size(2 + d), o.padding[d]);
  }
  return call<MaxPool2d>(x, w);
}

}  // namespace mixtape
