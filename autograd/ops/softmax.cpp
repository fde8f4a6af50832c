// Softmax, its logarithm, and classification losses made of them.

#include <fmt/format.h>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "kernels/common/softmax.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// p total - q, as in kernels/common/softmax.h.
Tensor logit_slope(const Tensor& log_p, const Tensor& q, const Tensor& total) {
  return where(gt(log_p, kernels::likely_log), expm1(log_p) * total + (total - q),
               exp(log_p) * total - q);
}

template <bool log>
struct Softmax {  // over dimension 1 of lines
  static constexpr OpInfo info{log ? "log_softmax" : "softmax", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    check_real(x);
    Tensor y(x.shape(), ctx.dtype(), x.device());
    ctx.run(kernels::softmax, log, rows_of(x.contiguous()), rows_of(y));
    if (is_half(y.dtype()))
      ctx.save(x);
    else
      ctx.save_result(y);
    return y;
  }
  // dx = y (dy - sum(dy y)), or dy - exp(y) sum(dy) for the logarithm. A y in f16 or bf16 is
  // computed again in f32, since the rounded probabilities do not add up to 1. (The dy of a class
  // that outweighs the others is subtracted from all, as in kernels/common/softmax.h.)
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor kept = ctx.saved(0);
    const bool is_input = is_half(kept.dtype());
    if (grad_enabled()) {
      const Tensor g = wide(dy), y = is_input ? call<Softmax>(wide(kept)) : kept;
      if (log) return {-logit_slope(y, g, sum(g, {1}, true))};
      const Tensor d = g - sum(masked_fill(g, le(y, kernels::likely_share), 0), {1}, true);
      return {y * (d - sum(d * y, {1}, true))};
    }
    Tensor dx = ctx.like(0);
    ctx.run(is_input ? kernels::softmax_input_grad : kernels::softmax_grad, log,
            rows_of(kept.contiguous()), rows_of(dy.contiguous()), rows_of(dx));
    return {dx};
  }
};

template <bool log>
Tensor softmax_over(const Tensor& x, int dim, std::optional<DType> dtype) {
  const Scope scope(Softmax<log>::info.name);
  const auto over = [](const Tensor& t, int d) {
    return lines_to(call<Softmax<log>>(lines_along(t, d)), t.shape(), d);
  };
  if (!dtype) return along_line(x, dim, over);
  return cast(along_line(cast(x, *dtype), dim, over), *dtype);  // whatever the policy
}

// --- losses ---

struct ClassParams {
  int64_t ignore;
  double smoothing = 0;
  bool wide = true;
};

// dx with 0, rather than NaN, where the target is ignored.
Tensor without_ignored(const Tensor& dx, const Tensor& target, const ClassParams& params) {
  return masked_fill(dx, unsqueeze(eq(target, double(params.ignore)), 1), 0);
}

// The class weights, broadcast over lines.
Tensor of_classes(const Tensor& weights, const Tensor& x, DType dtype) {
  return reshape(cast(weights, dtype), x.rank() == 3 ? Shape{x.size(1), 1} : weights.shape());
}
// The distribution that the logits x should have: the target, smoothed and weighted.
template <bool probabilities>
Tensor wanted(const Tensor& x, const Tensor& target, const Tensor& weights,
              const ClassParams& params, DType dtype) {
  Tensor q = cast(target, dtype);
  if constexpr (!probabilities) {
    q = one_hot_or_zeros(target, x.size(1), dtype);
    if (x.rank() == 3) q = transpose(q, 1, 2);
  }
  if (params.smoothing != 0) q = q * (1 - params.smoothing) + params.smoothing / double(x.size(1));
  return weights ? q * of_classes(weights, x, dtype) : q;
}
// The gradient of the logits, made of ops: (softmax(x) sum(q) - q) dloss, or 0 for ignored targets.
// (Masks the factors, not the product, since 0 times NaN has a gradient of NaN.)
template <bool probabilities>
Tensor logits_gradient(const Tensor& x, const Tensor& target, const Tensor& weights,
                       const ClassParams& params, const Tensor& dloss) {
  const DType dtype = accumulate_dtype(dloss.dtype());
  const auto counted = [&](const Tensor& t) {
    return probabilities ? t : without_ignored(t, target, params);
  };
  const Tensor q = wanted<probabilities>(x, target, weights, params, dtype);
  return logit_slope(log_softmax(counted(cast(x, dtype)), 1), q, sum(q, {1}, true)) *
         counted(unsqueeze(cast(dloss, dtype), 1));
}

// x as row kernels take it; padded rows are not copied.
Tensor in_lines(const Tensor& x) { return has_padded_rows(x) ? x : x.contiguous(); }

// The loss of each line of x. The target is a class per line, or probabilities of all classes.
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
           lse = ctx.output(with_size(x.shape(), 1, 4), accumulate_dtype(x.dtype()));
    ctx.run(kernels::cross_entropy, rows_of(in_lines(x)), rows_of(target.contiguous()),
            dense(weights), params.ignore, params.smoothing, loss, rows_of(lse));
    ctx.save(x, target, weights);
    ctx.save_extra(lse);
    return loss;
  }
  // dx = (softmax(x) sum(q) - q) dloss, where q is the smoothed and weighted target; 0 if ignored.
  // dtarget = -log_softmax(x) dq/dtarget dloss
  static Grads backward(const Ctx& ctx, const Tensor& dloss, const ClassParams& params) {
    const Tensor x = ctx.saved(0), target = ctx.saved(1), weights = ctx.saved(2);
    const DType dtype = accumulate_dtype(dloss.dtype());
    const auto of_logits = [&] {
      if (grad_enabled()) return logits_gradient<probabilities>(x, target, weights, params, dloss);
      const Tensor lines = in_lines(x);
      Tensor dx = lines.like(ctx.dtype(0));
      ctx.run(kernels::cross_entropy_grad, rows_of(lines), rows_of(target.contiguous()),
              dense(weights), rows_of(ctx.saved(3)), dloss.contiguous(), params.ignore,
              params.smoothing, rows_of(dx));
      return dx;
    };
    const auto of_target = [&] {
      const Tensor d = log_softmax(cast(x, dtype), 1) * unsqueeze(cast(dloss, dtype), 1) *
                       (params.smoothing - 1);
      return weights ? d * of_classes(weights, x, dtype) : d;
    };
    return ctx.grads(of_logits, of_target);
  }
};

struct ChunkParams : ClassParams {
  int64_t rows;  // of a chunk
};

// cross_entropy of linear(x, weight, bias), x [n, features], target [n]. Only the logits of one
// chunk of rows exist at a time, in f32, in one buffer; backward computes them again.
struct LinearCrossEntropy {
  static constexpr OpInfo info{
      "linear_cross_entropy",
      Precision::Low,
      {Role::Activation, Role::Parameter, Role::Statistic, Role::Index, Role::Statistic}};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& target, const Tensor& weights, const ChunkParams& params) {
    check_real(x);
    const DType wide = accumulate_dtype(x.dtype());
    const Tensor loss = ctx.output({x.size(0)}, wide), lse = ctx.output({x.size(0), 4}, wide),
                 table = in_dtype(weights, wide);
    const Chunks chunks(x, weight, bias, params.rows);
    chunks.each([&](const auto& part, const Tensor& logits) {
      ctx.run(kernels::cross_entropy, logits, part(target), table, params.ignore, params.smoothing,
              part(loss), part(lse));
    });
    ctx.save(x, weight, bias, target, weights);
    ctx.save_extra(lse);
    return loss;
  }
  // With dz for the logits, as in cross_entropy: dx = dz w, dw = dzT x, dbias = sums of dz.
  static Grads backward(const Ctx& ctx, const Tensor& dloss, const ChunkParams& params) {
    const Tensor x = ctx.saved(0), weight = ctx.saved(1), bias = ctx.saved(2),
                 target = ctx.saved(3), weights = ctx.saved(4);
    const DType wide = accumulate_dtype(x.dtype());
    if (grad_enabled()) {
      const Tensor sums = matmul(x, weight.t(), {.out = wide}),
                   z = bias ? sums + cast(bias, wide) : sums,
                   dz = logits_gradient<false>(z, target, weights, params, dloss);
      return ctx.grads([&] { return product(dz, weight, ctx.grad_dtype(0)); },
                       [&] { return product(dz.t(), x, ctx.grad_dtype(1)); },
                       [&] { return bias_gradient(ctx, 2, dz, 0b1); });
    }
    const Tensor lse = ctx.saved(5), d = dloss.contiguous(), table = in_dtype(weights, wide);
    // Sums over chunks are f32.
    Grads sums = ctx.grads([&] { return Tensor(x.shape(), ctx.grad_dtype(0), x.device()); },
                           [&] { return zeros(weight.shape(), wide, x.device()); },
                           [&] { return zeros(bias.shape(), wide, x.device()); });
    const Chunks chunks(x, weight, bias, params.rows);
    const Tensor narrow_dz = x.dtype() == wide
                                 ? Tensor()
                                 : with_padded_rows(chunks.buffer.shape(), x.dtype(), x.device());
    chunks.each([&](const auto& part, const Tensor& logits) {
      const Tensor dz = narrow_dz ? narrow(narrow_dz, 0, 0, logits.size(0)) : logits;
      ctx.run(kernels::cross_entropy_grad, logits, part(target), table, part(lse), part(d),
              params.ignore, params.smoothing, dz);
      if (sums[0]) ctx.run(kernels::gemm, dz, weight, kernels::Epilogue{}, part(sums[0]));
      if (sums[1]) add_product(ctx, dz.t(), part(x), sums[1]);
      if (sums[2]) add_(sums[2], reshape(sum_to(dz, {.dims = 0b1, .out = wide}), bias.shape()));
    });
    return sums;
  }

 private:
  static Tensor in_dtype(const Tensor& t, DType dtype) {
    return t ? cast(t, dtype).contiguous() : t;
  }
  static void add_product(const Ctx& ctx, const Tensor& a, const Tensor& b, const Tensor& c) {
    ctx.run(kernels::gemm, a, b, kernels::Epilogue{.bias = c}, c);
  }
  struct Chunks {
    const Tensor x, weight, bias, buffer;
    const int64_t rows;

    Chunks(const Tensor& x, const Tensor& weight, const Tensor& bias, int64_t rows)
        : x(x.contiguous()),
          weight(weight),
          bias(bias),
          buffer(with_padded_rows({std::min(rows, x.size(0)), weight.size(0)},
                                  accumulate_dtype(x.dtype()), x.device())),
          rows(rows) {}
    // Calls f(part, logits) for each chunk; part(t) is the chunk's part of a tensor with n rows.
    template <class F>
    void each(const F& f) const {
      for (int64_t first = 0; first < x.size(0); first += rows) {
        const int64_t count = std::min(rows, x.size(0) - first);
        const auto part = [&](const Tensor& t) { return narrow(t, 0, first, count); };
        const Tensor logits = narrow(buffer, 0, 0, count);
        kernels::gemm(x.device(), part(x), weight.t(), kernels::Epilogue{.bias = bias}, logits);
        f(part, logits);
      }
    }
  };
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
    check_targets(named, classes);
  }
  // The mean of wide losses divides by the weights of the targets (NaN if they are 0). It divides
  // means of both, since a sum may exceed f32.
  Tensor reduced(const Tensor& each, const Tensor& weights, Reduction reduction) const {
    if (reduction != Reduction::Mean) return reduce_losses(each, reduction);
    const DType dtype = each.dtype();
    Tensor counted = cast(counts, dtype);
    if (weights) {
      const Tensor table = reshape(cast(weights, dtype), {weights.numel(), 1});
      counted = squeeze(embedding(table, named), -1) * counted;
    }
    return mean(each) / mean(counted);
  }
};

void check_weights(const Tensor& weights, int64_t classes) {
  if (!weights) return;
  check(weights.shape() == Shape{classes}, "class weights must have shape {}, got {}",
        Shape{classes}, weights.shape());
  check(!weights.requires_grad(), "class weights must not require a gradient");
}
// Returns the dimension of the classes.
int check_classes(const Tensor& x, std::string_view what, const Tensor& weights) {
  check(x.rank() >= 1, "the {} have shape {}, not [n, classes, ...] or [classes]", what, x.shape());
  const int dim = x.rank() == 1 ? 0 : 1;
  check_weights(weights, x.size(dim));
  return dim;
}
void check_smoothing(double smoothing) {
  check(smoothing >= 0 && smoothing <= 1, "label_smoothing must be from 0 to 1, got {}", smoothing);
}
void check_named(const Tensor& x, std::string_view what, int dim, const Tensor& target) {
  if (const Shape wanted = without(x.shape(), dim); target.shape() != wanted)
    fail("{} of shape {} need targets of shape {}, a class each, got {}{}", what, x.shape(), wanted,
         target.shape(),
         target.shape() == with_size(x.shape(), dim, 1) ? fmt::format(" (squeeze(target, {}))", dim)
                                                        : "");
}

}  // namespace

Tensor softmax(const Tensor& x, int dim, std::optional<DType> dtype) {
  return softmax_over<false>(x, dim, dtype);
}
Tensor log_softmax(const Tensor& x, int dim, std::optional<DType> dtype) {
  return softmax_over<true>(x, dim, dtype);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyOptions& o) {
  const Scope scope(CrossEntropy<false>::info.name);
  const int dim = check_classes(logits, "logits", o.class_weights);
  check_smoothing(o.label_smoothing);
  const bool wide = o.reduction != Reduction::None || o.weight != 1;
  ClassParams params{o.ignore_index, o.label_smoothing, wide};
  const Tensor x = lines_along(logits, dim);
  Tensor loss;
  if (target.shape() == logits.shape()) {
    check(is_float(target.dtype()), "targets of the shape of the logits are probabilities, not {}",
          target.dtype());
    check(o.ignore_index < 0, "ignore_index {} needs class targets, got probabilities",
          o.ignore_index);
    const Tensor p = lines_like(x, target, dim);
    loss = reduce_losses(call<CrossEntropy<true>>(x, p, o.class_weights, params), o.reduction);
  } else {
    check_named(logits, "logits", dim, target);
    const Tensor t = reshape(as_index(target, "targets"), without(x.shape(), 1));
    const ClassTargets targets(t, o.ignore_index, x.size(1));
    loss = targets.reduced(call<CrossEntropy<false>>(x, t, o.class_weights, params),
                           o.class_weights, o.reduction);
  }
  if (o.reduction == Reduction::None) loss = reshape(loss, without(logits.shape(), dim));
  if (o.weight != 1) loss = loss * o.weight;
  if (!wide) return loss;
  params.wide = false;
  const int64_t classes = logits.size(dim);
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
  const int dim = check_classes(x, "log-probabilities", o.class_weights);
  check_named(x, "log-probabilities", dim, target);
  const int64_t n = dim == 0 ? 1 : x.size(0), classes = x.size(dim),
                inner = spliced(x.shape(), 0, 2, {}).size();
  const Tensor t = reshape(as_index(target, "targets"), {n, inner});
  const ClassTargets targets(t, o.ignore_index, classes);
  const bool wide = o.reduction != Reduction::None;
  const Tensor each = call<Nll>(reshape(x, {n, classes, inner}), t, o.class_weights,
                                ClassParams{.ignore = o.ignore_index, .wide = wide});
  const Tensor loss = targets.reduced(reshape(each, target.shape()), o.class_weights, o.reduction);
  if (!wide) return loss;
  return finished(loss, x, [&] {
    return call<Nll>(none_of(x, {0, classes, 1}), none_of(t, {0, 1}), o.class_weights,
                     ClassParams{.ignore = o.ignore_index, .wide = false});
  });
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyOptions& o) {
  const Scope scope(LinearCrossEntropy::info.name);
  check(x.rank() > 0, "the input has no dimensions");
  check_weight(x, weight, "[classes, features]");
  check(target.shape() == without(x.shape(), x.rank() - 1),
        "an input of shape {} needs targets of shape {}, a class each, got {}", x.shape(),
        without(x.shape(), x.rank() - 1), target.shape());
  check_smoothing(o.label_smoothing);
  check(o.rows >= 0, "rows must be >= 0, got {}", o.rows);
  const int64_t classes = weight.size(0), n = target.numel();
  check_shape(o.bias, "the bias", {classes});
  check_weights(o.class_weights, classes);
  const Tensor t = reshape(as_index(target, "targets"), {n}).contiguous();
  const ClassTargets targets(t, o.ignore_index, classes);
  // With fewer rows, a chunk's addition to the weight's gradient would be larger than its logits.
  const int64_t least = std::max<int64_t>(1024, 2 * x.size(-1));
  const ChunkParams params{{o.ignore_index, o.label_smoothing}, o.rows > 0 ? o.rows : least};
  const Tensor each = call<LinearCrossEntropy>(reshape(x, {n, x.size(-1)}), weight, o.bias, t,
                                               o.class_weights, params);
  Tensor loss = targets.reduced(each, o.class_weights, o.reduction);
  if (o.reduction == Reduction::None) loss = reshape(loss, target.shape());
  return finished(loss, x, [&] {
    return cross_entropy(none_of(x, {0, classes}), empty({0}, i64, x.device()), Reduction::None);
  });
}

}  // namespace mixtape
