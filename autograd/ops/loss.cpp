// Losses. Kernels read half predictions and write f32 losses; the reduction is a separate op, whose
// gradient is one number, expanded. Terms stay f32 until they are added, whatever the dtype of the
// loss, since a single term may exceed f16 although the mean does not.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "kernels/common/losses.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// --- elementwise ---

template <class F>
struct Elementwise {
  static constexpr OpInfo info = F::info;
  static constexpr int id = kernels::index_in<F>(kernels::Losses{});
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target, double s, double w,
                        bool wide) {
    check_real(x);
    const DType dtype = wide ? kernels::loss_dtype<F>(ctx.dtype()) : ctx.dtype();
    Tensor y = ctx.output(x.shape(), dtype);
    ctx.run(kernels::elementwise_loss, id, x, target, s, w, y);
    ctx.save(x, target);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, double s, double w, bool) {
    const Tensor x = ctx.saved(0), target = ctx.saved(1);
    if (grad_enabled()) {
      const Tensor d = wide(dy);
      const Expr a(cast(x, d.dtype())), b(cast(target, d.dtype()));
      return ctx.grads([&] { return F::dx(a, b, Expr(s), Expr(w)).times(d); },
                       [&] { return F::dt(a, b, Expr(s), Expr(w)).times(d); });
    }
    Grads d = ctx.grads([&] { return ctx.like(0); }, [&] { return ctx.like(1); });
    ctx.run(kernels::elementwise_loss_grad, id, x, target, s, w, dy, d[0], d[1]);
    return d;
  }
};

// Reduces each(wide, x...) * weight, times a factor, and rounds once.
template <class Each, class... T>
Tensor reduced(const Tensor& weight, double factor, Reduction reduction, const Each& each,
               const Tensor& x, const T&... others) {
  if (!weight && reduction == Reduction::None) return each(false, x, others...);
  Tensor y = each(true, x, others...);
  if (weight) {
    const Factors f(y, expand(weight, y.shape()));
    y = f.a * f.b;
  }
  y = reduce_losses(y, reduction);
  return finished(factor == 1 ? y : y * factor, x,
                  [&] { return each(false, none_of(x), none_of(others)...); });
}
void check_pair(const Tensor& x, const Tensor& target) {
  check(x.shape() == target.shape(), "input and target must have one shape, got {} and {}",
        x.shape(), target.shape());
}
template <class F>
Tensor elementwise(const Tensor& x, const Tensor& target, Reduction reduction,
                   const Tensor& weight) {
  check_pair(x, target);
  const auto each = [](bool wide, const Tensor& a, const Tensor& t) {
    return call<Elementwise<F>>(a, t, 0.0, 1.0, wide);
  };
  return reduced(weight, 1, reduction, each, x, target);
}
// A loss of the kind Wide, of x and the target in one dtype.
template <class F>
Tensor wide_terms(const Tensor& x, const Tensor& target, double s = 0) {
  return call<Elementwise<F>>(x, target, s, 1.0, true);
}
// f(x, target), rounded once. A target that counts in another dtype keeps its numbers; one that f
// reads in several ops is converted first, so that its gradient is rounded once, too.
template <class F>
Tensor of_pair(const F& f, const Tensor& x, const Tensor& target, bool reads_once = true) {
  check_shape(target, "the target", x.shape());
  check_real(x);
  if (reads_once && x.dtype() == target.dtype() && !is_half(x.dtype()))
    return cast(f(x, target), dtype_of_sum(x));
  return in_wider([&](const Tensor& a) { return f(a, cast(target, a.dtype())); }, x);
}
// A loss of the difference, whose slope is at most `slope`. A mean may be in range although a pair
// that is twice the largest number apart is not. So the terms of a mean are divided before they are
// summed: by a power of two, which rounds none of them, or by their number.
template <class F>
Tensor of_difference(const Tensor& x, const Tensor& target, Reduction reduction, double slope,
                     double s = 0) {
  check_pair(x, target);
  const DType dtype = x.dtype();
  const double n = double(x.numel()),
               most = 2 * slope * (largest(dtype) / largest(accumulate_dtype(dtype))),
               parts = std::exp2(std::ceil(std::log2(std::max(1.0, most))));
  const auto with = [&](double w, double factor, Reduction how) {
    const auto each = [s, w](bool wide, const Tensor& a, const Tensor& t) {
      return call<Elementwise<F>>(a, t, s, w, wide);
    };
    return reduced({}, factor, how, each, x, target);
  };
  if (reduction != Reduction::Mean || n == 0) return with(1, 1, reduction);
  return n <= parts ? with(1 / n, 1, Reduction::Sum) : with(1 / parts, parts, Reduction::Mean);
}

// p t softplus(-x) + (1 - t) softplus(x)
struct PositivesWeighted {
  static constexpr OpInfo info{"binary_cross_entropy_with_pos_weight",
                               Precision::Full,
                               {Role::Activation, Role::Activation, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target, const Tensor& weight,
                        bool wide) {
    ctx.save(x, target, weight);
    const DType dtype = accumulate_dtype(ctx.dtype());
    const Tensor a = cast(x, dtype), t = cast(target, dtype), p = cast(weight, dtype);
    return cast(p * t * softplus(-a) + (1 - t) * softplus(a), dtype_of_each(ctx, wide));
  }
  // dx = ((1 - t) s(x) - p t s(-x)) dy, s the sigmoid; dt = (p softplus(-x) - softplus(x)) dy;
  // dp = t softplus(-x) dy
  static Grads backward(const Ctx& ctx, const Tensor& dy, bool) {
    const DType dtype = accumulate_dtype(dy.dtype());
    const Tensor x = cast(ctx.saved(0), dtype), t = cast(ctx.saved(1), dtype),
                 p = cast(ctx.saved(2), dtype), d = cast(dy, dtype);
    return ctx.grads([&] { return ((1 - t) * sigmoid(x) - p * t * sigmoid(-x)) * d; },
                     [&] { return (p * softplus(-x) - softplus(x)) * d; },
                     [&] { return t * softplus(-x) * d; });
  }
};

// --- by rows ---

struct CosineSimilarity {  // of the rows of x and y [rows, n]
  static constexpr OpInfo info{"cosine_similarity", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& y, const CosineOptions& o) {
    check_real(x);
    const Tensor products = ctx.output({x.size(0), 3}, f64);
    ctx.run(kernels::row_products, x.contiguous(), y.contiguous(), products);
    ctx.save(x, y);
    ctx.save_extra(products);
    return cast(squeeze(Parts(products, o.eps).cosine, 1), dtype_of_each(ctx, o.wide));
  }
  // dx = (y / |y| - cos x / |x|) dcos / |x|, without the second term where |x| < eps
  static Grads backward(const Ctx& ctx, const Tensor& dcos, const CosineOptions& o) {
    const DType dtype = accumulate_dtype(dcos.dtype());
    const Tensor x = cast(ctx.saved(0), dtype), y = cast(ctx.saved(1), dtype),
                 d = unsqueeze(cast(dcos, f64), 1);
    const Parts p = grad_enabled() ? Parts(product(x, y), product(x, x), product(y, y), o.eps)
                                   : Parts(ctx.saved(2), o.eps);
    // A length may exceed the dtype's range, so vectors are divided by a number in range, and a
    // number per row by the rest.
    const auto of_rows = [dtype](const Tensor& t) { return cast(t, dtype); };
    const auto size = [dtype](const Tensor& length) { return clamp(length, {}, largest(dtype)); };
    const Tensor x_size = size(p.x), y_size = size(p.y), unit_x = x / of_rows(x_size),
                 unit_y = y / of_rows(y_size);
    const Tensor x_cut = p.x / x_size, y_cut = p.y / y_size;
    const auto rule = [&](size_t i, const Tensor& a, const Tensor& length, const Tensor& free,
                          const Tensor& cut, const Tensor& b, const Tensor& b_cut) {
      const Tensor bound = logical_not(free),
                   along = a * of_rows(masked_fill(p.cosine, bound, 0) * (b_cut / cut));
      return within_range((b - along) * of_rows(d / (length * b_cut)), bound,
                          ctx.source_grad_dtype(i));
    };
    return ctx.grads([&] { return rule(0, unit_x, p.x, p.x_free, x_cut, unit_y, y_cut); },
                     [&] { return rule(1, unit_y, p.y, p.y_free, y_cut, unit_x, x_cut); });
  }

 private:
  struct Parts {            // [rows, 1], in f64, since squares may leave the range of f32
    Tensor x, y;            // lengths, at least eps
    Tensor x_free, y_free;  // false where eps replaced them
    Tensor cosine;

    Parts(const Tensor& xy, const Tensor& xx, const Tensor& yy, double eps)
        : x_free(gt(xx, eps * eps)), y_free(gt(yy, eps * eps)) {
      const auto length = [eps](const Tensor& square, const Tensor& free) {
        return where(free, sqrt(where(free, square, 1)), eps);
      };
      x = length(xx, x_free);
      y = length(yy, y_free);
      cosine = xy / x / y;
    }
    Parts(const Tensor& products, double eps)
        : Parts(narrow(products, 1, 0, 1), narrow(products, 1, 1, 1), narrow(products, 1, 2, 1),
                eps) {}
  };
  static Tensor product(const Tensor& a, const Tensor& b) {
    return sum(cast(a, f64) * cast(b, f64), {1}, true);
  }
};

}  // namespace

Tensor mse_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope(kernels::SquaredError::info.name);
  constexpr double any = std::numeric_limits<double>::infinity();
  return of_difference<kernels::SquaredError>(x, target, o.reduction, any);
}
Tensor l1_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope(kernels::AbsoluteError::info.name);
  return of_difference<kernels::AbsoluteError>(x, target, o.reduction, 1);
}
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1Options& o) {
  const Scope scope(kernels::SmoothL1::info.name);
  const double most = largest(accumulate_dtype(x.dtype()));
  check(o.beta >= 0, "beta must be >= 0, got {}", o.beta);
  check(o.beta <= most, "beta must be <= {}, got {}", most, o.beta);
  if (o.beta == 0) return l1_loss(x, target, o.reduction);
  return of_difference<kernels::SmoothL1>(x, target, o.reduction, 1, o.beta);
}
Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberOptions& o) {
  const Scope scope(kernels::Huber::info.name);
  check(o.delta > 0, "delta must be > 0, got {}", o.delta);
  return of_difference<kernels::Huber>(x, target, o.reduction, o.delta, o.delta);
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BceOptions& o) {
  const Scope scope(kernels::BinaryCrossEntropy::info.name);
  check(!is_half(x.dtype()),
        "{} probabilities are too coarse for their logarithms: leave out the sigmoid and use "
        "binary_cross_entropy_with_logits",
        x.dtype());
  check(!o.pos_weight, "pos_weight is an option of binary_cross_entropy_with_logits alone");
  check_probabilities(x, true);  // NaN passes into the loss
  return elementwise<kernels::BinaryCrossEntropy>(x, target, o.reduction, o.weight);
}
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BceOptions& o) {
  using Loss = kernels::BinaryCrossEntropyWithLogits;
  const Scope scope(Loss::info.name);
  if (!o.pos_weight) return elementwise<Loss>(x, target, o.reduction, o.weight);
  check_pair(x, target);
  const Tensor weight = expand(o.pos_weight, x.shape());
  const auto each = [](bool wide, const Tensor& a, const Tensor& t, const Tensor& p) {
    return call<PositivesWeighted>(a, t, p, wide);
  };
  return reduced(o.weight, 1, o.reduction, each, x, target, weight);
}

Tensor kl_div(const Tensor& x, const Tensor& target, const KlDivOptions& o) {
  const Scope scope(kernels::KlDiv::info.name);
  check(!o.batch_mean || o.reduction == Reduction::Mean, "batch_mean needs Reduction::Mean");
  const auto each = [&](bool wide, const Tensor& a, const Tensor& t) {
    return o.log_target ? call<Elementwise<kernels::KlDivOfLogarithms>>(a, t, 0.0, 1.0, wide)
                        : call<Elementwise<kernels::KlDiv>>(a, t, 0.0, 1.0, wide);
  };
  check_pair(x, target);
  if (!o.batch_mean) return reduced({}, 1, o.reduction, each, x, target);
  return finished(sum(mean(each(true, x, target), {0})), x,
                  [&] { return each(false, none_of(x), none_of(target)); });
}

Tensor soft_margin_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope(kernels::SoftMargin::info.name);
  const auto loss = [&](const Tensor& a, const Tensor& t) {
    return reduce_losses(wide_terms<kernels::SoftMargin>(a, t), o.reduction);
  };
  return of_pair(loss, x, target);
}

Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& var,
                         const GaussianNllOptions& o) {
  const Scope scope("gaussian_nll_loss");
  check_shape(target, "the target", x.shape());
  check(o.eps > 0, "eps must be > 0, got {}", o.eps);
  const bool has_rows = x.rank() > 0;
  const bool flat = has_rows && var.shape() == without(x.shape(), x.rank() - 1);
  const Tensor given = flat ? unsqueeze(var, -1) : var;
  check(given.shape() == x.shape() || (has_rows && given.shape() == with_size(x.shape(), -1, 1)),
        "variances of shape {} for an input of {}: one for each element, or for each row",
        var.shape(), x.shape());
  const auto loss = [&](const Tensor& a, const Tensor& b, const Tensor& w) {
    const Tensor low = lt(w.detach(), o.eps), v = where(low, w - w.detach() + o.eps, w);
    const Tensor d = a - b, each = 0.5 * (log(v) + d * (d / v));
    return reduce_losses(o.full ? each + 0.5 * std::log(2 * std::numbers::pi) : each, o.reduction);
  };
  return in_wider(loss, x, target, given);
}

Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNllOptions& o) {
  const Scope scope(kernels::PoissonNll::info.name);
  const auto loss = [&](const Tensor& a, const Tensor& count) {
    Tensor each = o.log_input ? wide_terms<kernels::PoissonNll>(a, count)
                              : wide_terms<kernels::PoissonRateNll>(a, count, o.eps);
    if (o.full) {
      const Tensor n = cast(count, each.dtype()),
                   t = clamp(n, 1, {});  // (log(1!) and log(0!) are exactly 0)
      const Tensor stirling = t * log(t) - t + 0.5 * log(2 * std::numbers::pi * t);
      each = each + masked_fill(stirling, le(n, 1), 0);
    }
    return reduce_losses(each, o.reduction);
  };
  return of_pair(loss, x, target, !o.full);
}

Tensor ops::cosine(const Tensor& x, const Tensor& y, int dim, double eps, bool wide) {
  const Shape both = broadcast(x.shape(), y.shape()), shape = both.rank == 0 ? Shape{1} : both;
  const int d = wrap_line(dim, both.rank);
  const Tensor cosine = call<CosineSimilarity>(
      rows_along(expand(x, shape), d), rows_along(expand(y, shape), d), CosineOptions{eps, wide});
  return reshape(cosine, without(shape, d));
}
Tensor cosine_similarity(const Tensor& x, const Tensor& y, int dim, double eps) {
  const Scope scope(CosineSimilarity::info.name);
  return cosine(x, y, dim, eps, false);
}

}  // namespace mixtape
