// Reductions over any dimensions, and scans along one. Reductions keep the reduced dimensions with
// size 1, so that their backward rules only broadcast; the functions drop them on request.

#include <bit>
#include <cmath>
#include <limits>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Reduce;

constexpr double infinity = std::numeric_limits<double>::infinity();

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
    const Tensor part = cast(dy, accumulate_dtype(dy.dtype())) * (1 / n);
    return ctx.grads([&] { return expand(cast(part, ctx.grad_dtype(0)), ctx.shape(0)); });
  }
};

template <Reduce op>
struct Extremum {
  static constexpr OpInfo info{op == Reduce::Max ? "max" : "min", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    const Shape shape = reduced(x.shape(), o);
    check(x.numel() > 0 || shape.size() == 0, "no maximum or minimum of zero elements: shape {}",
          x.shape());
    Tensor y = ctx.output(shape);
    ctx.run(kernels::reduce, op, x, y);
    ctx.save(x);
    ctx.save_result(y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ReduceOptions& o) {
    return ctx.grads([&] { return share_among(dy, eq(ctx.saved(0), ctx.saved(1)), o); });
  }
};

template <Reduce op>
struct ArgExtremum {
  static constexpr OpInfo info{op == Reduce::Max ? "argmax" : "argmin", Precision::Any};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim) {
    check(x.size(dim) > 0, "no maximum or minimum of zero elements: shape {}", x.shape());
    Tensor y = ctx.output(with_size(x.shape(), dim, 1), i64);
    ctx.run(kernels::arg_reduce, op, dim, x, y);
    return y;
  }
};

// The kept dimensions, then the reduced ones.
Dims kept_first(int rank, const ReduceOptions& o) {
  Dims order;
  for (const bool reduced : {false, true})
    for (int d = 0; d < rank; ++d)
      if (reduces(o, d) == reduced) order.push_back(d);
  return order;
}
// x as [results, elements of each].
Tensor as_rows(const Tensor& x, const ReduceOptions& o) {
  const int64_t rows = reduced(x.shape(), o).size();
  return reshape(permute(x, kept_first(x.rank(), o)),
                 {rows, x.numel() / std::max<int64_t>(1, rows)});
}
// f(x, dim) of the elements of each result, which keeps the shape: along the only dimension that is
// reduced, or of rows.
template <class F>
Tensor over_rows(const Tensor& x, const ReduceOptions& o, F f) {
  if (std::has_single_bit(o.dims)) return f(x, std::countr_zero(o.dims));
  return permute_back(f(as_rows(x, o), 1), x.shape(), kept_first(x.rank(), o));
}

// True if any element is not zero, or if all are not.
template <Reduce op>
struct Logical {
  static constexpr OpInfo info{op == Reduce::Max ? "any" : "all"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    const Tensor y = ctx.output(reduced(x.shape(), o), boolean);
    ctx.run(kernels::reduce, op, x.dtype() == boolean ? x : ne(x, 0), y);
    return y;
  }
};

struct LogSumExp {
  static constexpr OpInfo info{"logsumexp", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    check_real(x);
    const Tensor y = ctx.output(reduced(x.shape(), o));
    const Tensor lines = (one(o) ? lines_along(x, first(o)) : as_rows(x, o)).contiguous();
    ctx.run(kernels::logsumexp, rows_of(lines), y);
    ctx.save(x);
    ctx.save_result(y);
    return y;
  }
  // dx = softmax(x) dy, and 0 where all x are -inf. (y is rounded: exp(x - y) would lose digits.)
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ReduceOptions& o) {
    const Tensor none = eq(ctx.saved(1), -infinity),
                 x = masked_fill(cast(ctx.saved(0), dy.dtype()), none, 0);
    const auto shares = [](const Tensor& t, int dim) { return softmax(t, dim); };
    return {over_rows(x, o, shares) * masked_fill(dy, none, 0)};
  }

 private:
  static bool one(const ReduceOptions& o) { return std::has_single_bit(o.dims); }
  static int first(const ReduceOptions& o) { return std::countr_zero(o.dims); }
};

// At a kink, and where all x are zero, the gradient is 0.
struct Norm {
  static constexpr OpInfo info{"norm", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const NormOptions& o) {
    check_real(x);
    const Tensor y = length_of(ctx, x, o);
    ctx.save(x);
    ctx.save_extra(y);
    return cast(y, ctx.dtype());
  }
  // The gradient does not change if x and its length are divided by the same number, which keeps
  // both in range.
  static Grads backward(const Ctx& ctx, const Tensor& dy, const NormOptions& o) {
    const DType t = accumulate_dtype(dy.dtype());  // below 1, small elements have large slopes
    const Tensor dz = cast(dy, o.p < 1 ? f64 : t), whole = cast(ctx.saved(0), dz.dtype());
    if (o.p == 1) return {norm_gradient(whole, whole, dz, o)};  // signs alone
    const Tensor length = ctx.saved(1), scale = scale_near(length, dz.dtype()), x = whole / scale;
    const Tensor y = grad_enabled() ? call<Norm>(x, o) : cast(length / cast(scale, f64), x.dtype());
    return {cast(norm_gradient(x, y, dz, o), t)};
  }
};

// The power of two below each number, or 1 for 0, infinity and NaN. (The logarithm of the largest
// numbers would round up to that of infinity.)
Tensor power_below(const Tensor& x) {
  const Tensor ordinary = logical_and(gt(x, 0), isfinite(x));
  return clamp(exp2(floor(log2(where(ordinary, x, 1)))), {},
               std::exp2(std::ilogb(largest(x.dtype()))));
}

// --- scans: y_i = a_i y_(i-1) + b_i ---
// With a = 1 this is a running sum, with b = 0 (and 1 before the first) a running product.
// Gradients go through the transposed recurrence, w_i = a_(i+1) w_(i+1) + dy_i: db_i = w_i, da_i =
// w_i y_(i-1). So these ops are closed under differentiation, to any order, without divisions.

Tensor scan(Ctx& ctx, bool transposed, int dim, const Tensor& a, const Tensor& b) {
  const Tensor& x = a ? a : b;
  const Tensor y = ctx.output(x.shape(), is_float(x.dtype()) ? ctx.dtype() : i64);
  ctx.run(kernels::scan, transposed, dim, a, b, y);
  return y;
}

// x shifted by one: x_(i-1), with `first` in front.
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
    return y;
  }
  // In f64, as forward, since products may exceed y's range although a gradient does not.
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim, bool transposed) {
    const Tensor x = cast(ctx.saved(0), f64), y = call<Cumprod>(x, dim, transposed),
                 w = call<Recurrence>(x, cast(dy, f64), dim, !transposed);
    return {transposed ? shifted(w, dim, 0) * y : shifted(y, dim, 1) * w};
  }
};

template <Reduce op>
struct RunningExtremum {  // its position
  static constexpr OpInfo info{op == Reduce::Max ? "cummax" : "cummin"};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim) {
    const Tensor y = ctx.output(x.shape(), i64);
    ctx.run(kernels::arg_scan, op, dim, x, y);
    return y;
  }
};

struct LogCumsumExp {
  static constexpr OpInfo info{"logcumsumexp", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, int dim) {
    check_real(x);
    const Tensor y = ctx.output(x.shape());
    ctx.run(kernels::log_cumsum_exp, dim, x, y);
    ctx.save(x);
    return y;
  }
  // dx_i = exp(x_i - y_i) w_i with w_i = dy_i + exp(y_i - y_(i+1)) w_(i+1), where no factor exceeds
  // 1. In f64, as forward, since y is rounded. 0 where all x so far are -inf.
  static Grads backward(const Ctx& ctx, const Tensor& dy, int dim) {
    const Tensor x = cast(ctx.saved(0), f64), y = call<LogCumsumExp>(x, dim);
    const auto ratio = [](const Tensor& a, const Tensor& b) {  // of equal infinities 1
      return exp(masked_fill(a - b, logical_and(eq(a, b), isinf(a)), 0));
    };
    const Tensor w =
        call<Recurrence>(ratio(shifted(y, dim, -infinity), y), cast(dy, f64), dim, true);
    return {masked_fill(ratio(x, y), eq(y, -infinity), 0) * w};
  }
};

template <Reduce op>
Sorted running_extremum(const Tensor& x, int dim) {
  const Scope scope(RunningExtremum<op>::info.name);
  return along_line(x, dim, [](const Tensor& t, int d) {
    const Tensor indices = call<RunningExtremum<op>>(t, d);
    return Sorted{gather_unchecked(t, d, indices), indices};
  });
}

// For each element the product of all others along dim, exact even if some are zero.
Tensor product_of_others(const Tensor& x, int dim) {
  return shifted(call<Cumprod>(x, dim, false), dim, 1) * call<Cumprod>(x, dim, true);
}

struct Prod {
  static constexpr OpInfo info{"prod", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const ReduceOptions& o) {
    const Tensor y = ctx.output(reduced(x.shape(), o), is_float(x.dtype()) ? ctx.dtype() : i64);
    ctx.run(kernels::reduce, Reduce::Prod, x, y);
    ctx.save(x);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const ReduceOptions& o) {
    const Tensor x = cast(ctx.saved(0), f64), others = over_rows(x, o, &product_of_others);
    return {others * cast(dy, f64)};
  }
};

// The dimensions that are not reduced.
Shape kept(const Shape& shape, const ReduceOptions& o) {
  Shape kept;
  for (int d = 0; d < shape.rank; ++d)
    if (!reduces(o, d)) kept.push_back(shape[d]);
  return kept;
}
template <class Op, class Options>
Tensor over(const Tensor& x, const Options& o, bool keepdim) {
  const Tensor y = call<Op>(x, o);
  return keepdim ? y : reshape(y, kept(x.shape(), o));
}
template <class Op>
Tensor over(const Tensor& x, const Dims& dims, bool keepdim) {
  const Scope scope(Op::info.name);
  return over<Op>(x, reduce_options(dims, x.rank()), keepdim);
}

template <Reduce op>
Tensor arg(const Tensor& x, int dim, bool keepdim) {
  const Scope scope(ArgExtremum<op>::info.name);
  return along_line(x, dim, [=](const Tensor& t, int d) {
    const Tensor y = call<ArgExtremum<op>>(t, d);
    return keepdim ? y : squeeze(y, d);
  });
}

// The variance of x or its root, in two passes, so that a large mean costs no precision. x is first
// divided by a power of two, so that neither differences nor squares leave the range. Gradients are
// multiplied and then divided by it, for a variance twice: there, to keep a mean of squares in
// range, the root of their number is enough.
Tensor spread(const Tensor& x, const Dims& dims, bool keepdim, int correction, bool root) {
  const ReduceOptions over = reduce_options(dims, x.rank());
  const Tensor scale = root ? moderate_scale_of(x, over) : clamp(scale_of(x, over), 1, 0x1p16);
  const double n = double(x.numel()) / double(std::max<int64_t>(1, scale.numel()));
  const Tensor scaled = x / scale, center = mean(scaled, dims, true);
  // Without degrees of freedom slopes are infinite, and their mean cannot be subtracted.
  const Tensor apart = scaled - (n > correction ? center : center.detach());
  Tensor v = sum(square(apart), dims, true);
  const auto moved = [&] {  // by the mean's rounding error, a constant, kept finite
    const NoGrad off;
    const Tensor by = minimum(square(sum(apart, dims, true)) / std::max(1.0, n), v);
    return clamp(
        by, {},
        x.dtype() == f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max());
  };
  v = (v - moved()) / std::max(0.0, n - correction);
  if (root) {  // Equal elements have no derivative; as in PyTorch it is 0, not 0 / 0.
    const Tensor flat = eq(v, 0);
    v = masked_fill(sqrt(masked_fill(v, flat, 1)), flat, 0);
  }
  v = root ? v * scale : v * scale * scale;
  return keepdim ? v : reshape(v, kept(x.shape(), reduce_options(dims, x.rank())));
}

}  // namespace

ReduceOptions ops::reduce_options(const Dims& dims, int rank) {
  ReduceOptions o;
  for (int d : dims) {
    const uint32_t bit = 1u << wrap_line(d, rank);
    check(!(o.dims & bit), "dimension {} is named twice", d);
    o.dims |= bit;
  }
  if (dims.empty() || rank == 0) o.dims = (1u << rank) - 1;
  return o;
}
Tensor ops::sum_to(const Tensor& x, const ReduceOptions& o) {
  const DType wide = is_float(x.dtype()) && o.out == f64 ? f64 : accumulate_dtype(x.dtype());
  if (!o.out || *o.out == x.dtype() || *o.out == wide) return call<Sum>(x, o);  // by a kernel
  return cast(call<Sum>(x, ReduceOptions{o.dims, wide}), *o.out);
}
Tensor ops::by_example(const Tensor& rows, int64_t n) {
  check(rows.size(0) % n == 0, "{} rows, of shape {}, do not belong to {} examples", rows.size(0),
        rows.shape(), n);
  return reshape(rows, spliced(rows.shape(), 0, 1, {n, rows.size(0) / n}));
}
Tensor ops::in_own_rows(const Tensor& g, int64_t n) {
  const Tensor each = by_example(g, n);
  const Tensor all = zeros(joined({n}, each.shape()), g.dtype(), g.device());  // [n, n, rows, ...]
  copy_(diagonal(all, 0, 0, 1), movedim(each, {0}, {-1}));
  return flatten(all, 1, 2);
}
Tensor ops::bias_gradient(const Ctx& ctx, size_t i, const Tensor& dy, uint32_t dims) {
  return reshape(sum_to(dy, {.dims = dims, .out = ctx.grad_dtype(i)}), ctx.shape(i));
}
Tensor ops::reduce_losses(const Tensor& each, Reduction reduction) {
  return reduction == Reduction::None ? each : reduction == Reduction::Sum ? sum(each) : mean(each);
}
Tensor ops::norm_of(const Tensor& x, const NormOptions& o) {
  const Scope scope(Norm::info.name);
  check(!std::isnan(o.p), "the order must be a number, got {}", o.p);
  return call<Norm>(x, o);
}
Tensor ops::scale_of(const Tensor& x, const ReduceOptions& o) {
  const NoGrad off;
  return power_below(call<Norm>(x.detach(), NormOptions{o, infinity}));
}
Tensor ops::moderate_scale_of(const Tensor& x, const ReduceOptions& o) {
  const double most = x.dtype() == f64 ? 0x1p960 : 0x1p100;
  return clamp(scale_of(x, o), 1 / most, most);
}
Tensor ops::scale_near(const Tensor& length, DType dtype) {
  const NoGrad off;
  return cast(clamp(power_below(length), {}, dtype == f64 ? 0x1p1023 : 0x1p127), dtype);
}
Tensor ops::length_of(Ctx& ctx, const Tensor& x, const NormOptions& o) {
  const auto total = [&](Reduce op, const Tensor& of, DType dtype) {
    const Tensor y = ctx.output(reduced(x.shape(), o), dtype);
    ctx.run(kernels::reduce, op, of, y);
    return y;
  };
  const DType wide = accumulate_dtype(x.dtype());
  if (o.p == infinity) return cast(total(Reduce::MaxAbs, x, wide), f64);
  if (o.p == 1) return total(Reduce::SumAbs, x, f64);
  if (o.p == 0) return cast(sum_to(ne(x, 0), o), f64);
  if (o.p == 2 && x.dtype() != f64) return total(Reduce::Norm, x, f64);
  if (o.p == 2) {
    const Tensor scale = scale_of(x, o);
    return total(Reduce::Norm, x / scale, f64) * scale;
  }
  // The largest |x| decides the range of the powers, or the smallest if p < 0.
  const Tensor size = abs(cast(x, wide)),
               bound = total(o.p > 0 ? Reduce::Max : Reduce::Min, size, wide);
  if (o.p == -infinity) return cast(bound, f64);
  const Tensor ordinary = logical_and(gt(bound, 0), isfinite(bound)),
               scale = where(ordinary, bound, 1);
  return cast(scale, f64) * cast(pow(sum_to(pow(size / scale, o.p), o), 1 / o.p), f64);
}
Tensor ops::share_among(const Tensor& dy, const Tensor& winner, const ReduceOptions& o) {
  const DType wide = accumulate_dtype(dy.dtype());
  const Tensor part = cast(dy, wide) / cast(sum_to(winner, o), wide);
  return cast(winner, dy.dtype()) * cast(part, dy.dtype());
}
Tensor ops::norm_gradient(const Tensor& x, const Tensor& y, const Tensor& dy,
                          const NormOptions& o) {
  if (o.p == 0) return zeros_like(x);
  if (o.p == 1) return sign(x.detach()) * dy;
  const Tensor none = eq(y, 0), divisor = masked_fill(y, none, 1), dz = masked_fill(dy, none, 0);
  if (o.p == 2) return x / divisor * dz;
  if (std::isinf(o.p)) return sign(x.detach()) * share_among(dy, eq(abs(x), y), o);
  const Tensor zero = logical_or(eq(x, 0), none);
  return sign(x.detach()) * pow(masked_fill(abs(x) / divisor, zero, 1), o.p - 1) * dz;
}

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) { return over<Sum>(x, dims, keepdim); }
Tensor mean(const Tensor& x, const Dims& dims, bool keep) { return over<Mean>(x, dims, keep); }
Tensor max(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Extremum<Reduce::Max>>(x, dims, keepdim);
}
Tensor min(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Extremum<Reduce::Min>>(x, dims, keepdim);
}
Tensor argmax(const Tensor& x, int dim, bool keepdim) { return arg<Reduce::Max>(x, dim, keepdim); }
Tensor argmin(const Tensor& x, int dim, bool keepdim) { return arg<Reduce::Min>(x, dim, keepdim); }
Tensor argmax(const Tensor& x) { return argmax(flatten(x), 0); }
Tensor argmin(const Tensor& x) { return argmin(flatten(x), 0); }

Tensor prod(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<Prod>(x, dims, keepdim);
}
BoolTensor any(const Tensor& x, const Dims& dims, bool keepdim) {
  return BoolTensor(over<Logical<Reduce::Max>>(x, dims, keepdim));
}
BoolTensor all(const Tensor& x, const Dims& dims, bool keepdim) {
  return BoolTensor(over<Logical<Reduce::Min>>(x, dims, keepdim));
}
Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  return over<LogSumExp>(x, dims, keepdim);
}
Tensor cumsum(const Tensor& x, int dim) {
  const Scope scope("cumsum");
  return along_line(x, dim, [](const Tensor& t, int d) { return call<Cumsum>(t, d, false); });
}
Tensor cumprod(const Tensor& x, int dim) {
  const Scope scope("cumprod");
  return along_line(x, dim, [](const Tensor& t, int d) { return call<Cumprod>(t, d, false); });
}
Tensor logcumsumexp(const Tensor& x, int dim) {
  const Scope scope(LogCumsumExp::info.name);
  return along_line(x, dim, [](const Tensor& t, int d) { return call<LogCumsumExp>(t, d); });
}
Sorted cummax(const Tensor& x, int dim) { return running_extremum<Reduce::Max>(x, dim); }
Sorted cummin(const Tensor& x, int dim) { return running_extremum<Reduce::Min>(x, dim); }
Tensor norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  const Scope scope(Norm::info.name);
  const NormOptions o{reduce_options(dims, x.rank()), p};
  const Tensor y = norm_of(x, o);
  return keepdim ? y : reshape(y, kept(x.shape(), o));
}
Tensor norm(const Tensor& x, std::initializer_list<int> dims, bool keepdim) {
  return norm(x, 2, dims, keepdim);
}

Tensor var(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  const Scope scope("var");
  check_real(x);
  return in_f32([&](const Tensor& w) { return spread(w, dims, keepdim, correction, false); }, x);
}
Tensor stddev(const Tensor& x, const Dims& dims, bool keepdim, int correction) {
  const Scope scope("stddev");
  check_real(x);
  return in_f32([&](const Tensor& w) { return spread(w, dims, keepdim, correction, true); }, x);
}

}  // namespace mixtape
