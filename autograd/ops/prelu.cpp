// A leaky ReLU with learned slopes. It is one op so that the weight's gradient is summed in f32,
// not f16.

#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

struct Prelu {  // weight broadcasts to x; in a vmap that shares it, its rank is lower
  using F = kernels::Prelu;
  static constexpr OpInfo info{
      F::info.name, F::info.precision, {Role::Activation, Role::Parameter}};
  static constexpr int id = kernels::index_in<F>(kernels::BinaryOps{});
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight) {
    check_real(x);
    ctx.save(x, weight);
    Tensor y = x.like(ctx.dtype());
    ctx.run(kernels::binary, id, cast(x, y.dtype()), slopes(weight, y), y);
    return y;
  }
  // dx = dy or w dy, dw = sum of x dy where x is not positive
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor x = cast(ctx.saved(0), dy.dtype()), w = slopes(ctx.saved(1), dy);
    return ctx.grads([&] { return by_x(ctx, x, w, dy); },
                     [&] {
                       const Shape& shape = ctx.shape(1);
                       const int more = w.rank() - shape.rank;
                       uint32_t dims = 0;
                       for (int d = 0; d < w.rank(); ++d)
                         dims |= uint32_t(d < more || shape[d - more] == 1) << d;
                       const Tensor terms = by_slope(ctx, x, dy, accumulate_dtype(x.dtype()));
                       return bias_gradient(ctx, 1, terms, dims);
                     });
  }

 private:
  static Tensor slopes(const Tensor& weight, const Tensor& beside) {
    return expand(cast(weight, beside.dtype()), beside.shape());
  }
  static Tensor by_x(const Ctx& ctx, const Tensor& x, const Tensor& w, const Tensor& dy) {
    if (grad_enabled()) return passed<F>(dy, F::da(Expr(x), Expr(w), Expr(0)));
    Tensor dx = x.like(dy.dtype());
    const Tensor none;
    ctx.run(kernels::binary_grad, id, x, w, none, dy, dx, none);
    return dx;
  }
  static Tensor by_slope(const Ctx& ctx, const Tensor& x, const Tensor& dy, DType dtype) {
    if (grad_enabled())
      return passed<F>(cast(dy, dtype), F::db(Expr(cast(x, dtype)), Expr(0), Expr(0)));
    Tensor terms = ctx.output(x.shape(), dtype);
    const Tensor none;
    ctx.run(kernels::binary_grad, id, x, none, none, dy, none, terms);
    return terms;
  }
};

}  // namespace

Tensor prelu(const Tensor& x, const Tensor& weight) {
  const Scope scope(Prelu::info.name);
  const int64_t n = weight.numel();
  check(weight.rank() <= 1 && (n == 1 || (x.rank() > 1 && n == x.size(1))),
        "a weight of shape {} for an input of shape {}: one number, or one per channel",
        weight.shape(), x.shape());
  Shape shape;
  for (int d = 0; d < x.rank(); ++d) shape.push_back(d == 1 ? n : 1);
  return call<Prelu>(x, reshape(weight, shape));
}

}  // namespace mixtape
