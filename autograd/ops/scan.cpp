// Scans: y_i = a_i y_(i-1) + b_i along one dimension. With a = 1 it is a running sum, with b = 0
// (and 1 before the first) a running product. The gradient goes through the transposed recurrence,
// w_i = a_(i+1) w_(i+1) + dy_i: db_i = w_i and da_i = w_i y_(i-1). So these ops are closed under
// differentiation, to any order, and nothing divides.

#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace ops;
namespace {

Tensor scan(Ctx& ctx, bool transposed, int dim, const Tensor& a, const Tensor& b) {
  const Tensor& x = a ? a : b;
  const Tensor y = ctx.output(x.shape(), is_float(x.dtype()) ? ctx.dtype() : i64);
  ctx.run(kernels::scan, transposed, dim, a, b, y);
  return y;
}

// x_(i-1), with `first` in front.
Tensor shifted(const Tensor& x, int dim, double first) {
  const int64_t n = x.size(dim);
  if (n == 0) return x;
  return cat({full_like(narrow(x, dim, 0, 1), first), narrow(x, dim, 0, n - 1)}, dim);
}

struct Cumsum {
  static constexpr OpInfo info{"cumsum", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim, bool transposed) {
    return scan(ctx, transposed, dim, {}, x);
  }
  static Grads backward(const Ctx&, const Tensor& dy, int dim, bool transposed) {
    return {call<Cumsum>(dy, dim, !transposed)};
  }
};

struct Recurrence {
  static constexpr OpInfo info{"recurrence", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& a, const Tensor& b, int dim, bool transposed) {
    const Tensor y = scan(ctx, transposed, dim, a, b);
    ctx.save(a);
    ctx.save_result(y);
    return y;
  }
  // One of y and w is the plain recurrence, the other the transposed one.
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim, bool transposed) {
    const Tensor a = wide(ctx.saved(0)), y = wide(ctx.saved(1)),
                 w = call<Recurrence>(a, wide(dy), dim, !transposed);
    return ctx.grads([&] { return transposed ? shifted(w, dim, 0) * y : shifted(y, dim, 0) * w; },
                     [&] { return w; });
  }
};

// Transposed: the product of all later elements.
struct Cumprod {
  static constexpr OpInfo info{"cumprod", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim, bool transposed) {
    const Tensor y = scan(ctx, transposed, dim, x, {});
    ctx.save(x);
    ctx.save_result(y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim, bool transposed) {
    const Tensor x = wide(ctx.saved(0)), y = wide(ctx.saved(1)),
                 w = call<Recurrence>(x, wide(dy), dim, !transposed);
    return {transposed ? shifted(w, dim, 0) * y : shifted(y, dim, 1) * w};
  }
};

}  // namespace

namespace ops {

Tensor product_of_others(const Tensor& x, int dim) {
  return shifted(call<Cumprod>(x, dim, false), dim, 1) * call<Cumprod>(x, dim, true);
}

}  // namespace ops

Tensor cumsum(const Tensor& x, int dim) {
  const Scope scope("cumsum");
  return call<Cumsum>(x, wrap_dim(dim, x.rank()), false);
}
Tensor cumprod(const Tensor& x, int dim) {
  const Scope scope("cumprod");
  return call<Cumprod>(x, wrap_dim(dim, x.rank()), false);
}

}  // namespace mixtape
