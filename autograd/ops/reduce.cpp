// Reductions over any dimensions. The ops keep the reduced dimensions with size 1, so that their
// rules are plain broadcasting; the functions drop them where asked.

#include <cmath>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/reduce.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace {

using kernels::Reduce;

bool reduces(const ReduceOptions& o, int dim) { return (o.dims >> dim) & 1u; }

Shape reduced(const Shape& shape, const ReduceOptions& o) {
  Shape y = shape;
  for (int d = 0; d < shape.rank; ++d)
    if (reduces(o, d)) y[d] = 1;
  return y;
}

struct Sum {
  static constexpr OpInfo info{"sum", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    Tensor y = ctx.output(reduced(x.shape(), o), is_float(x.dtype()) ? ctx.dtype() : i64);
    ctx.run(kernels::reduce, Reduce::Sum, x, y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return ctx.grads([&] { return expand(cast(dy, ctx.grad_dtype(0)), ctx.shape(0)); });
  }
};

struct Mean {
  static constexpr OpInfo info{"mean", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    check(is_float(x.dtype()), "the mean of {} numbers (convert them to a float dtype)", x.dtype());
    Tensor y = ctx.output(reduced(x.shape(), o));
    ctx.run(kernels::reduce, Reduce::Mean, x, y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const double n = double(ctx.shape(0).size()) / double(dy.numel());
    return ctx.grads([&] { return expand(cast(dy * (1 / n), ctx.grad_dtype(0)), ctx.shape(0)); });
  }
};

template <Reduce op>
struct Extremum {
  static constexpr OpInfo info{op == Reduce::Max ? "max" : "min", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    const Shape shape = reduced(x.shape(), o);
    check(x.numel() > 0 || shape.size() == 0, "no largest or smallest of zero elements: shape {}",
          x.shape());
    Tensor y = ctx.output(shape);
    ctx.run(kernels::reduce, op, x, y);
    ctx.save(x);
    ctx.save_result(y);
    return y;
  }
  // Winners share the gradient.
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ReduceOptions& o) {
    return ctx.grads([&] {
      const Tensor winner = cast(eq(ctx.saved(0), ctx.saved(1)), dy.dtype());
      return winner * (dy / sum_to(winner, o));
    });
  }
};

template <Reduce op>
struct ArgExtremum {
  static constexpr OpInfo info{op == Reduce::Max ? "argmax" : "argmin", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim) {
    check(x.size(dim) > 0, "no largest or smallest of zero elements: shape {}", x.shape());
    Shape shape = x.shape();
    shape[dim] = 1;
    Tensor y = ctx.output(shape, i64);
    ctx.run(kernels::arg_reduce, op, dim, x, y);
    return y;
  }
};

template <class Op>
Tensor over(const Tensor& x, const Dims& dims, bool keepdim) {
  const ReduceOptions o = reduce_options(dims, x.rank());
  const Tensor y = call<Op>(x, o);
  if (keepdim) return y;
  Shape kept;
  for (int d = 0; d < x.rank(); ++d)
    if (!reduces(o, d)) kept.push_back(x.size(d));
  return reshape(y, kept);
}

template <Reduce op>
Tensor arg(const Tensor& x, int dim, bool keepdim) {
  const int d = wrap_dim(dim, x.rank());
  const Tensor y = call<ArgExtremum<op>>(x, d);
  return keepdim ? y : squeeze(y, d);
}

}  // namespace

ReduceOptions reduce_options(const Dims& dims, int rank) {
  ReduceOptions o;
  for (int d : dims) {
    const uint32_t bit = 1u << wrap_dim(d, rank);
    check(!(o.dims & bit), "dimension {} is named twice", d);
    o.dims |= bit;
  }
  if (dims.empty()) o.dims = (1u << rank) - 1;
  return o;
}
Tensor sum_to(const Tensor& x, const ReduceOptions& options) { return call<Sum>(x, options); }

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) { return over<Sum>(x, dims, keepdim); }
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Mean>(x, dims, keepdim);
}
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Extremum<Reduce::Max>>(x, dims, keepdim);
}
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Extremum<Reduce::Min>>(x, dims, keepdim);
}
Tensor argmax(const Tensor& x, int dim, bool keepdim) { return arg<Reduce::Max>(x, dim, keepdim); }
Tensor argmin(const Tensor& x, int dim, bool keepdim) { return arg<Reduce::Min>(x, dim, keepdim); }

// Two passes, so that a large mean costs no precision.
Tensor var(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  const Tensor total = sum(square(x - mean(x, dims, true)), dims, keepdim);
  const double n = double(x.numel()) / double(std::max<int64_t>(1, total.numel()));
  return total / std::max(0.0, n - correction);
}
Tensor stddev(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  // Of equal elements there is no derivative: PyTorch gives zero, not 0 / 0.
  const Tensor v = var(x, dims, keepdim, correction), flat = eq(v, 0);
  return masked_fill(sqrt(masked_fill(v, flat, 1)), flat, 0);
}

}  // namespace mixtape
