// Matrix products. Weight gradients are asked for in the dtype that the weight wants, so under
// autocast they leave the f32 accumulators unrounded.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/operands.h"
#include "autograd/ops/reduce.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

Tensor product(const Tensor& a, const Tensor& b, DType want) {
  const Factors f(a, b);
  return matmul(f.a, f.b, {.out = f.product(want)});
}

struct Matmul {  // leading dimensions are equal
  static constexpr OpInfo info{"matmul", Precision::Low};

  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, const MatmulOptions& options) {
    check(is_float(a.dtype()), "of {} elements (convert them to a float dtype)", a.dtype());
    check(a.size(-1) == b.size(-2), "inner dimensions differ: {} and {} (of {} and {})", a.size(-1),
          b.size(-2), a.shape(), b.shape());
    check(!options.out || *options.out == a.dtype() || *options.out == f32,
          "a result in {} from inputs in {}", options.out.value_or(f32), a.dtype());
    Shape shape = a.shape();
    shape[-1] = b.size(-1);
    Tensor c = ctx.output(shape);
    ctx.run(kernels::gemm, a, b, View{}, c);
    ctx.save(a, b);
    return c;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dc) {
    return ctx.grads([&] { return product(dc, ctx.saved(1).t(), ctx.grad_dtype(0)); },   // dc bT
                     [&] { return product(ctx.saved(0).t(), dc, ctx.grad_dtype(1)); });  // aT dc
  }
};

struct Linear {  // x [rows, in]
  static constexpr OpInfo info{
      "linear", Precision::Low, {Role::Activation, Role::Parameter, Role::Statistic}};

  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    check(weight.rank() == 2, "the weight has shape {}, not [out, in]", weight.shape());
    check(x.size(-1) == weight.size(1), "the input has {} features, the weight {} takes {}",
          x.size(-1), weight.shape(), weight.size(1));
    check(!bias || bias.shape() == Shape{weight.size(0)}, "the bias has shape {} for {} outputs",
          bias ? bias.shape() : Shape{}, weight.size(0));
    Tensor y = ctx.output({x.size(0), weight.size(0)});
    ctx.run(kernels::gemm, x, weight.t(), bias, y);
    ctx.save(x, weight);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return ctx.grads(
        [&] { return product(dy, ctx.saved(1), ctx.grad_dtype(0)); },      // dy w
        [&] { return product(dy.t(), ctx.saved(0), ctx.grad_dtype(1)); },  // dyT x
        [&] { return reshape(sum_to(dy, {.dims = 1, .out = ctx.grad_dtype(2)}), ctx.shape(2)); });
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  const Scope scope(Matmul::info.name);
  check(a.rank() > 0 && b.rank() > 0, "of shapes {} and {}: both need at least one dimension",
        a.shape(), b.shape());
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b, options), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1), options), -1);
  const auto batch = [](const Tensor& x) {
    return Shape(std::span(x.shape().begin(), size_t(x.rank() - 2)));
  };
  if (batch(a) == batch(b)) return call<Matmul>(a, b, options);
  const Shape common = broadcast(batch(a), batch(b));
  const auto expanded = [&](const Tensor& x) {
    Shape shape = common;
    shape.push_back(x.size(-2));
    shape.push_back(x.size(-1));
    return expand(x, shape);
  };
  return call<Matmul>(expanded(a), expanded(b), options);
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const Scope scope(Linear::info.name);
  check(x.rank() > 0, "the input has no dimensions");
  if (x.rank() == 2) return call<Linear>(x, weight, bias);
  Shape shape = x.shape();
  const Tensor y = call<Linear>(
      reshape(x, {x.numel() / std::max<int64_t>(1, x.size(-1)), x.size(-1)}), weight, bias);
  shape[-1] = y.size(-1);
  return reshape(y, shape);
}

}  // namespace mixtape
