// Losses. Kernels read half predictions and write f32 losses; the reduction is an op of its own,
// whose gradient is one number, expanded. Whatever the dtype of a loss, its terms are f32 until
// they are added: one of them may exceed f16 where the mean does not.

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "autograd/ops/checks.h"
#include "autograd/ops/expr.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "kernels/common/losses.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// --- classes ---

// The dtype of each loss: that of the op's result or, for a `wide` one that is not the end, f32.
DType dtype_of_each(const Ctx& ctx, bool wide) {
  return wide ? accumulate_dtype(ctx.dtype()) : ctx.dtype();
}

struct ClassParams {
  int64_t ignore;
  double smoothing = 0;
  bool wide = true;
};

// dx with 0, rather than NaN, where the target is ignored.
Tensor without_ignored(const Tensor& dx, const Tensor& target, const ClassParams& params) {
  return masked_fill(dx, unsqueeze(eq(target, double(params.ignore)), 1), 0);
}

// The loss of each of x's lines. The target is a class per line, or probabilities of all classes.
template <bool probabilities>
struct CrossEntropy {
  static constexpr OpInfo info{
      probabilities ? "cross_entropy_probabilities" : "cross_entropy",
      Precision::Full,
      {Role::Activation, probabilities ? Role::Parameter : Role::Index, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target, const Tensor& weights,
                        const ClassParams& params) {
    check_real(x);
    Tensor loss = ctx.output(without(x.shape(), 1), dtype_of_each(ctx, params.wide)),
           lse = ctx.output(with_size(x.shape(), 1, 3), accumulate_dtype(x.dtype()));
    ctx.run(kernels::cross_entropy, rows_of(x.contiguous()), rows_of(target.contiguous()),
            dense(weights), params.ignore, params.smoothing, loss, rows_of(lse));
    ctx.save(x, target, weights);
    ctx.save_extra(lse);
    return loss;
  }
  // dx = (softmax(x) sum(q) - q) dloss, q the smoothed and weighted target; nothing where ignored.
  // dtarget = -log_softmax(x) dq/dtarget dloss
  static Grads backward(const Ctx& ctx, const Tensor& dloss, const ClassParams& params) {
    const Tensor x = ctx.saved(0), target = ctx.saved(1), weights = ctx.saved(2);
    const DType dtype = accumulate_dtype(dloss.dtype());
    const auto each = [&] { return unsqueeze(cast(dloss, dtype), 1); };
    const auto of_logits = [&] {
      if (grad_enabled()) {
        // (Masks the factors, not the product: 0 times NaN has a gradient of NaN.)
        const auto counted = [&](const Tensor& t) {
          return probabilities ? t : without_ignored(t, target, params);
        };
        const Tensor q = wanted(x, target, weights, params, dtype);
        return (softmax(counted(cast(x, dtype)), 1) * sum(q, {1}, true) - q) * counted(each());
      }
      Tensor dx = ctx.like(0);
      ctx.run(kernels::cross_entropy_grad, rows_of(x.contiguous()), rows_of(target.contiguous()),
              dense(weights), rows_of(ctx.saved(3)), dloss.contiguous(), params.ignore,
              params.smoothing, rows_of(dx));
      return dx;
    };
    const auto of_target = [&] {
      const Tensor d = log_softmax(cast(x, dtype), 1) * each() * (params.smoothing - 1);
      return weights ? d * of_classes(weights, x, dtype) : d;
    };
    return ctx.grads(of_logits, of_target);
  }

 private:
  static Tensor wanted(const Tensor& x, const Tensor& target, const Tensor& weights,
                       const ClassParams& params, DType dtype) {
    Tensor q = cast(target, dtype);
    if constexpr (!probabilities) {
      q = one_hot_or_zeros(target, x.size(1), dtype);
      if (x.rank() == 3) q = transpose(q, 1, 2);
    }
    if (params.smoothing != 0)
      q = q * (1 - params.smoothing) + params.smoothing / double(x.size(1));
    return weights ? q * of_classes(weights, x, dtype) : q;
  }
  // The class weights, broadcast over lines.
  static Tensor of_classes(const Tensor& weights, const Tensor& x, DType dtype) {
    return reshape(cast(weights, dtype), x.rank() == 3 ? Shape{x.size(1), 1} : weights.shape());
  }
};

struct Nll {  // x [n, classes, inner], target [n, inner]
  static constexpr OpInfo info{
      "nll_loss", Precision::Full, {Role::Activation, Role::Index, Role::Parameter}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target, const Tensor& weights,
                        const ClassParams& params) {
    check_real(x);
    Tensor loss = ctx.output(target.shape(), dtype_of_each(ctx, params.wide));
    ctx.run(kernels::nll_loss, x, target.contiguous(), dense(weights), params.ignore, loss);
    ctx.save(target, weights);
    return loss;
  }
  // dx = -w dloss at the target
  static Grads backward(const Ctx& ctx, const Tensor& dloss, const ClassParams& params) {
    const Tensor target = ctx.saved(0), weights = ctx.saved(1);
    if (grad_enabled()) {
      const DType dtype = dloss.dtype();
      Tensor q = one_hot_or_zeros(target, ctx.shape(0)[1], dtype);
      if (weights) q = q * cast(weights, dtype);
      return {without_ignored(-transpose(q) * unsqueeze(dloss, 1), target, params)};
    }
    Tensor dx = ctx.like(0);
    ctx.run(kernels::nll_loss_grad, target.contiguous(), dense(weights), params.ignore,
            dloss.contiguous(), dx);
    return {dx};
  }
};

// The class of each target (0 if it is ignored), and a mask of those that count.
struct ClassTargets {
  Tensor named, counts;

  // Throws Error for targets out of range.
  ClassTargets(const Tensor& target, int64_t ignore, int64_t classes)
      : counts(ne(target, double(ignore))) {
    named = where(counts, target, zeros({}, i64, target.device()));
    check_range(named, 0, classes, [classes](int64_t target) {
      return fmt::format("target {} is out of range for {} classes", target, classes);
    });
  }
  // A mean of wide losses divides by the weights of the targets: NaN if they are 0.
  Tensor reduced(const Tensor& each, const Tensor& weights, Reduction reduction) const {
    if (reduction != Reduction::Mean) return reduce_losses(each, reduction);
    const DType dtype = each.dtype();
    const Tensor total = sum(each);
    if (!weights) return total / cast(sum(counts), dtype);
    const Tensor table = reshape(cast(weights, dtype), {weights.numel(), 1});
    return total / sum(squeeze(embedding(table, named), -1) * cast(counts, dtype));
  }
};

void check_classes(const Tensor& x, std::string_view what, const Tensor& weights) {
  check(x.rank() >= 2, "the {} have shape {}, not [n, classes, ...]", what, x.shape());
  if (!weights) return;
  check(weights.shape() == Shape{x.size(1)}, "class weights of shape {} for {} classes",
        weights.shape(), x.size(1));
  check(!weights.requires_grad(), "class weights must not require a gradient");
}
void check_named(const Tensor& x, std::string_view what, const Tensor& target) {
  if (const Shape wanted = without(x.shape(), 1); target.shape() != wanted)
    fail("{} of shape {} need targets of shape {}, a class each, got {}{}", what, x.shape(), wanted,
         target.shape(),
         target.shape() == with_size(x.shape(), 1, 1) ? " (squeeze(target, 1))" : "");
}

// --- elementwise ---

template <class F>
struct Elementwise {
  static constexpr OpInfo info = F::info;
  static constexpr int id = kernels::index_in<F>(kernels::Losses{});
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& target, double s, bool wide) {
    check_real(x);
    Tensor y = ctx.output(x.shape(), dtype_of_each(ctx, wide));
    ctx.run(kernels::elementwise_loss, id, x, target, s, y);
    ctx.save(x, target);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, double s, bool) {
    const Tensor x = ctx.saved(0), target = ctx.saved(1);
    if (grad_enabled()) {
      const Expr a(wide(x)), b(wide(target));
      return ctx.grads([&] { return F::dx(a, b, Expr(s)).times(wide(dy)); },
                       [&] { return F::dt(a, b, Expr(s)).times(wide(dy)); });
    }
    Grads d = ctx.grads([&] { return ctx.like(0); }, [&] { return ctx.like(1); });
    ctx.run(kernels::elementwise_loss_grad, id, x, target, s, dy, d[0], d[1]);
    return d;
  }
};

// Reduces each(wide, x...) * weight, and rounds once.
template <class Each, class... T>
Tensor reduced(const Tensor& weight, Reduction reduction, const Each& each, const Tensor& x,
               const T&... others) {
  if (!weight && reduction == Reduction::None) return each(false, x, others...);
  Tensor y = each(true, x, others...);
  if (weight) {
    const Factors f(y, expand(weight, y.shape()));
    y = f.a * f.b;
  }
  return finished(reduce_losses(y, reduction), x,
                  [&] { return each(false, none_of(x), none_of(others)...); });
}
void check_pair(const Tensor& x, const Tensor& target) {
  check(x.shape() == target.shape(), "input and target must have one shape, got {} and {}",
        x.shape(), target.shape());
}
template <class F>
Tensor elementwise(const Tensor& x, const Tensor& target, Reduction reduction, double s = 0,
                   const Tensor& weight = {}) {
  check_pair(x, target);
  const auto each = [s](bool wide, const Tensor& a, const Tensor& t) {
    return call<Elementwise<F>>(a, t, s, wide);
  };
  return reduced(weight, reduction, each, x, target);
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

struct CosineOptions {
  double eps;
  bool wide = false;
};

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
                 d = unsqueeze(cast(dcos, dtype), 1);
    const Parts p = grad_enabled() ? Parts(product(x, y), product(x, x), product(y, y), o.eps)
                                   : Parts(ctx.saved(2), o.eps);
    const Tensor cosine = cast(p.cosine, dtype);
    const auto rule = [&](size_t i, const Tensor& a, const Tensor& a_length, const Tensor& a_free,
                          const Tensor& b, const Tensor& b_length) {
      const Tensor size = cast(a_length, dtype), along = a / size * (cosine * cast(a_free, dtype));
      return within_range((b / cast(b_length, dtype) - along) * (d / size), logical_not(a_free),
                          ctx.source_grad_dtype(i));
    };
    return ctx.grads([&] { return rule(0, x, p.x, p.x_free, y, p.y); },
                     [&] { return rule(1, y, p.y, p.y_free, x, p.x); });
  }

 private:
  struct Parts {            // [rows, 1], in f64: squares of f32 numbers leave the range of f32
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

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  const Scope scope(CrossEntropy<false>::info.name);
  check_classes(logits, "logits", o.class_weights);
  check(o.label_smoothing >= 0 && o.label_smoothing <= 1,
        "label_smoothing must be from 0 to 1, got {}", o.label_smoothing);
  const bool wide = o.reduction != Reduction::None || o.weight != 1;
  ClassParams params{o.ignore_index, o.label_smoothing, wide};
  const Tensor x = lines_along(logits, 1);
  Tensor loss;
  if (target.shape() == logits.shape()) {
    check(is_float(target.dtype()), "targets of the shape of the logits are probabilities, not {}",
          target.dtype());
    check(o.ignore_index < 0, "ignore_index {} needs class targets, got probabilities",
          o.ignore_index);
    const Tensor p = lines_like(x, target, 1);
    loss = reduce_losses(call<CrossEntropy<true>>(x, p, o.class_weights, params), o.reduction);
  } else {
    check_named(logits, "logits", target);
    const Tensor t = reshape(as_index(target, "targets"), without(x.shape(), 1));
    const ClassTargets targets(t, o.ignore_index, x.size(1));
    loss = targets.reduced(call<CrossEntropy<false>>(x, t, o.class_weights, params),
                           o.class_weights, o.reduction);
  }
  if (o.reduction == Reduction::None) loss = reshape(loss, without(logits.shape(), 1));
  if (o.weight != 1) loss = loss * o.weight;
  if (!wide) return loss;
  params.wide = false;
  const int64_t classes = logits.size(1);
  return finished(loss, logits, [&] {
    const Tensor none = none_of(logits, {0, classes});
    if (target.shape() == logits.shape())
      return call<CrossEntropy<true>>(none, none_of(target, {0, classes}), o.class_weights, params);
    return call<CrossEntropy<false>>(none, empty({0}, i64, x.device()), o.class_weights, params);
  });
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& target, const NllOptions& o) {
  const Scope scope(Nll::info.name);
  const Tensor& x = log_probabilities;
  check_classes(x, "log-probabilities", o.class_weights);
  check_named(x, "log-probabilities", target);
  int64_t inner = 1;
  for (int d = 2; d < x.rank(); ++d) inner *= x.size(d);
  const Tensor t = reshape(as_index(target, "targets"), {x.size(0), inner});
  const ClassTargets targets(t, o.ignore_index, x.size(1));
  const bool wide = o.reduction != Reduction::None;
  const Tensor each = call<Nll>(reshape(x, {x.size(0), x.size(1), inner}), t, o.class_weights,
                                ClassParams{.ignore = o.ignore_index, .wide = wide});
  const Tensor loss = targets.reduced(reshape(each, target.shape()), o.class_weights, o.reduction);
  if (!wide) return loss;
  return finished(loss, x, [&] {
    return call<Nll>(none_of(x, {0, x.size(1), 1}), none_of(t, {0, 1}), o.class_weights,
                     ClassParams{.ignore = o.ignore_index, .wide = false});
  });
}

Tensor mse_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope(kernels::SquaredError::info.name);
  return elementwise<kernels::SquaredError>(x, target, o.reduction);
}
Tensor l1_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope(kernels::AbsoluteError::info.name);
  return elementwise<kernels::AbsoluteError>(x, target, o.reduction);
}
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1Options& o) {
  const Scope scope(kernels::SmoothL1::info.name);
  check(o.beta >= 0, "beta must be >= 0, got {}", o.beta);
  if (o.beta == 0) return l1_loss(x, target, o.reduction);
  return elementwise<kernels::SmoothL1>(x, target, o.reduction, o.beta);
}
Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberOptions& o) {
  const Scope scope(kernels::Huber::info.name);
  check(o.delta > 0, "delta must be > 0, got {}", o.delta);
  return elementwise<kernels::Huber>(x, target, o.reduction, o.delta);
}

Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BceOptions& o) {
  const Scope scope(kernels::BinaryCrossEntropy::info.name);
  check(!is_half(x.dtype()),
        "{} probabilities are too coarse for their logarithms: leave out the sigmoid and use "
        "binary_cross_entropy_with_logits",
        x.dtype());
  check(!o.pos_weight, "pos_weight is an option of binary_cross_entropy_with_logits alone");
  check_probabilities(x, true);  // NaN passes into the loss
  return elementwise<kernels::BinaryCrossEntropy>(x, target, o.reduction, 0, o.weight);
}
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BceOptions& o) {
  using Loss = kernels::BinaryCrossEntropyWithLogits;
  const Scope scope(Loss::info.name);
  if (!o.pos_weight) return elementwise<Loss>(x, target, o.reduction, 0, o.weight);
  check_pair(x, target);
  const Tensor weight = expand(o.pos_weight, x.shape());
  const auto each = [](bool wide, const Tensor& a, const Tensor& t, const Tensor& p) {
    return call<PositivesWeighted>(a, t, p, wide);
  };
  return reduced(o.weight, o.reduction, each, x, target, weight);
}

Tensor kl_div(const Tensor& x, const Tensor& target, const KlDivOptions& o) {
  const Scope scope(kernels::KlDiv::info.name);
  check(!o.batch_mean || o.reduction == Reduction::Mean, "batch_mean needs Reduction::Mean");
  const auto each = [&](bool wide, const Tensor& a, const Tensor& t) {
    return o.log_target ? call<Elementwise<kernels::KlDivOfLogarithms>>(a, t, 0.0, wide)
                        : call<Elementwise<kernels::KlDiv>>(a, t, 0.0, wide);
  };
  check_pair(x, target);
  if (!o.batch_mean) return reduced({}, o.reduction, each, x, target);
  return finished(sum(each(true, x, target)) / double(x.rank() == 0 ? 1 : x.size(0)), x,
                  [&] { return each(false, none_of(x), none_of(target)); });
}

Tensor soft_margin_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  const Scope scope("soft_margin_loss");
  check_shape(target, "the target", x.shape());
  return in_f32(
      [&](const Tensor& a) {
        return reduce_losses(softplus(a * -cast(target, a.dtype())), o.reduction);
      },
      x);
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
    const Tensor each = 0.5 * (log(v) + square(a - b) / v);
    return reduce_losses(o.full ? each + 0.5 * std::log(2 * std::numbers::pi) : each, o.reduction);
  };
  return in_f32(loss, x, target, given);
}

Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNllOptions& o) {
  const Scope scope("poisson_nll_loss");
  check_shape(target, "the target", x.shape());
  const auto loss = [&](const Tensor& a) {
    const Tensor count = cast(target, a.dtype());
    Tensor each = o.log_input ? exp(a) - count * a : a - count * log(a + o.eps);
    if (o.full) {
      const Tensor t = clamp(count, 1, {});  // (log(1!) and log(0!) are exactly 0)
      const Tensor stirling = t * log(t) - t + 0.5 * log(2 * std::numbers::pi * t);
      each = each + masked_fill(stirling, le(count, 1), 0);
    }
    return reduce_losses(each, o.reduction);
  };
  return in_f32(loss, x);
}

Tensor ops::cosine(const Tensor& x, const Tensor& y, int dim, double eps, bool wide) {
  const Shape shape = broadcast(x.shape(), y.shape());
  const int d = wrap_dim(dim, shape.rank);
  const Tensor cosine = call<CosineSimilarity>(
      rows_along(expand(x, shape), d), rows_along(expand(y, shape), d), CosineOptions{eps, wide});
  return reshape(cosine, without(shape, d));
}
Tensor cosine_similarity(const Tensor& x, const Tensor& y, int dim, double eps) {
  const Scope scope(CosineSimilarity::info.name);
  return cosine(x, y, dim, eps, false);
}

}  // namespace mixtape
