// Unit vectors, distances, and losses that compare embeddings, composed of other ops.

#include <algorithm>
#include <cmath>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;

namespace {

struct Normalize {
  static constexpr OpInfo info{"normalize", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x, const NormalizeAttributes& o) {
    check_real(x);
    const Tensor length = length_of(ctx, x, o.norm), m = clamp(length, o.eps, {}), w = wide(x),
                 scale = scale_near(m, w.dtype());
    ctx.save(x);
    ctx.save_extra(length);
    return cast(w / scale / cast(m / cast(scale, f64), w.dtype()), ctx.dtype());
  }
  // y = x / m with m = max(|x|, eps): dx = dy / m - sum(dy y) / m d|x|, where the second term needs
  // |x| >= eps. x and m are divided by the same number, so that they stay in range.
  static Grads backward(const Ctx& ctx, const Tensor& dy, const NormalizeAttributes& o) {
    const Tensor d = wide(dy), length = ctx.saved(1), below = lt(length, o.eps),
                 scale = scale_near(clamp(length, o.eps, {}), d.dtype());
    const Tensor x = cast(ctx.saved(0), d.dtype()) / scale,
                 size = grad_enabled() ? norm_of(x, o.norm)
                                       : cast(length / cast(scale, f64), d.dtype()),
                 m = where(below, o.eps / scale, size), direct = d / m / scale;
    const Tensor along = sum_to(direct * (x / m), {.dims = o.norm.dims});
    return {within_range(direct, below, ctx.source_grad_dtype(0)) -
            norm_gradient(x, size, masked_fill(along, below, 0), o.norm)};
  }
};

}  // namespace

Tensor normalize(const Tensor& x, double p, int dim, double eps) {
  const Scope scope(Normalize::info.name);
  return call<Normalize>(x, NormalizeAttributes{{reduce_options({dim}, x.rank()), p}, eps});
}

Tensor renorm(const Tensor& given, double p, int dim, double maxnorm) {
  const Scope scope("renorm");
  check(given.rank() >= 2, "the input must have at least 2 dimensions, got shape {}",
        given.shape());
  check(p > 0 && maxnorm >= 0, "p must be > 0 and maxnorm >= 0, got {} and {}", p, maxnorm);
  Dims others;
  for (int d = 0; d < given.rank(); ++d)
    if (d != wrap_dim(dim, given.rank())) others.push_back(d);
  const auto shortened = [&](const Tensor& x) {
    const Tensor length = norm(x, p, others, true);
    return x * where(gt(length, maxnorm), maxnorm / (length + 1e-7), 1);  // as PyTorch
  };
  return in_wider(shortened, given);
}

Tensor ops::within_range(const Tensor& dx, const Tensor& rows, DType dtype) {
  if (dtype != f16) return dx;
  const double most = largest(f16);
  return where(logical_and(rows, isfinite(dx)), clamp(dx, -most, most), dx);
}

Tensor vector_norm(const Tensor& x, double ord, const Dims& dims, bool keepdim) {
  return norm(x, ord, dims, keepdim);
}

Tensor pairwise_distance(const Tensor& x, const Tensor& y, double p, double eps, bool keepdim) {
  const Scope scope("pairwise_distance");
  return in_wider(
      [&](const Tensor& a, const Tensor& b) { return norm(a - b + eps, p, {-1}, keepdim); }, x, y);
}

Tensor cdist(const Tensor& x, const Tensor& y, double p) {
  const Scope scope("cdist");
  check_real(x);
  check_real(y);
  check(x.rank() >= 2 && y.rank() >= 2 && x.size(-1) == y.size(-1),
        "points must be [..., n, size] and [..., m, size], got {} and {}", x.shape(), y.shape());
  check(p >= 0, "the order must be >= 0, got {}", p);
  if (const Shape batch = broadcast(leading(x), leading(y)); batch.rank > 5) {
    // Merges batch dimensions, since differences have one dimension more than x.
    const auto flat = [&](const Tensor& t) {
      return reshape(expand_leading(t, batch), {batch.size(), t.size(-2), t.size(-1)});
    };
    return reshape(cdist(flat(x), flat(y), p), joined(batch, {x.size(-2), y.size(-2)}));
  }
  const Tensor a = wide(x), b = wide(y);
  const auto largest = [](const Tensor& t) { return norm(t.detach(), INFINITY); };
  const Tensor unit = moderate_scale_of(stack({largest(a), largest(b)}), reduce_options({}, 1));
  if (p != 2 || std::max(x.size(-2), y.size(-2)) <= 25) {
    // Halves of numbers at both ends of f32 have a difference; small numbers stay whole, since half
    // a subnormal loses its last bit. (Order 0 counts differences.)
    const Tensor scale = clamp(unit, 1, p == 0 ? 1 : 2), u = a / scale,
                 v = unsqueeze(b / scale, -3);
    constexpr int64_t most = int64_t{1} << 18;  // differences at a time, which stay in a cache
    const int64_t n = u.size(-2),
                  rows = std::max<int64_t>(1, most / std::max<int64_t>(1, v.numel()));
    std::vector<Tensor> parts;
    for (int64_t i = 0; i == 0 || i < n; i += rows)
      parts.push_back(norm(unsqueeze(narrow(u, -2, i, std::min(rows, n - i)), -2) - v, p, {-1}));
    return (parts.size() == 1 ? parts[0] : cat(parts, -2)) * scale;
  }
  const Tensor u = a / unit, v = b / unit;
  const auto squares = [](const Tensor& t) { return sum(square(t), {-1}, true); };
  const Tensor products = matmul(u, transpose(v), {.out = a.dtype(), .alpha = -2});
  const Tensor squared = squares(u) + transpose(squares(v)) + products;
  const Tensor none = le(squared, 0);  // no gradient there; rounding may make it < 0
  return masked_fill(sqrt(masked_fill(squared, none, 1)), none, 0) * unit;
}

Tensor pdist(const Tensor& x, double p) {
  const Scope scope("pdist");
  check(x.rank() == 2, "points must be [n, size], got {}", x.shape());
  check(p >= 0, "the order must be >= 0, got {}", p);
  const std::vector<Tensor> pair = triu_indices(x.size(0), x.size(0), 1, x.device()).unbind();
  return in_wider(
      [&](const Tensor& w) {
        return norm(index_select_unchecked(w, 0, pair[0]) - index_select_unchecked(w, 0, pair[1]),
                    p, {1});
      },
      x);
}

// max(0, x) with gradient 1 at 0, so that pairs exactly at the margin still move.
static Tensor hinge(const Tensor& x) { return clamp(x, 0, {}); }

template <class F>
static auto triplet_loss(const TripletMarginOptions& o, const F& distance) {
  return [&](const Tensor& anchor, const Tensor& positive, const Tensor& negative) {
    check(anchor.shape() == positive.shape() && anchor.shape() == negative.shape(),
          "anchor, positive and negative must have one shape, got {}, {} and {}", anchor.shape(),
          positive.shape(), negative.shape());
    Tensor apart = distance(anchor, negative);
    if (o.swap) apart = minimum(apart, distance(positive, negative));
    return reduce_losses(hinge(distance(anchor, positive) - apart + o.margin), o.reduction);
  };
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& o) {
  const Scope scope("triplet_margin_loss");
  const auto distance = [&](const Tensor& u, const Tensor& v) {
    return pairwise_distance(u, v, o.p, o.eps);
  };
  return in_wider(triplet_loss(o, distance), anchor, positive, negative);
}

Tensor triplet_margin_with_distance_loss(const Tensor& anchor, const Tensor& positive,
                                         const Tensor& negative,
                                         Tensor (*distance)(const Tensor&, const Tensor&),
                                         const TripletMarginOptions& o) {
  const Scope scope("triplet_margin_with_distance_loss");
  check(distance != nullptr, "the distance must be a function");
  return in_f32(triplet_loss(o, distance), anchor, positive, negative);
}

Tensor multi_margin_loss(const Tensor& x, const Tensor& target, const MultiMarginOptions& o) {
  if (x.rank() == 1) return reshape(multi_margin_loss(unsqueeze(x, 0), as_line(target), o), {});
  const Scope scope("multi_margin_loss");
  check(x.rank() == 2 && target.shape() == Shape{x.size(0)},
        "an input of shape {} and a target of {}, not [n, classes] and [n]", x.shape(),
        target.shape());
  check(o.p == 1 || o.p == 2, "p must be 1 or 2, got {}", o.p);
  check_shape(o.class_weights, "class_weights", {x.size(1)});
  const Tensor named = as_index(target, "targets"), own = one_hot_or_zeros(named, x.size(1), f32);
  check_targets(named, x.size(1));
  const auto loss = [&](const Tensor& a) {
    const Tensor scored = gather(a, 1, unsqueeze(named, 1));
    Tensor each = relu(o.margin - scored + a);  // gradient 0 at the margin
    if (o.p == 2) each = square(each);
    if (o.class_weights)
      each = each * unsqueeze(gather(cast(o.class_weights, a.dtype()), 0, named), 1);
    const Tensor others = sum(masked_fill(each, gt(own, 0), 0), {1}) / double(x.size(1));
    return reduce_losses(others, o.reduction);
  };
  return in_wider(loss, x);
}

Tensor multilabel_margin_loss(const Tensor& x, const Tensor& target, const LossOptions& o) {
  if (x.rank() == 1)
    return reshape(multilabel_margin_loss(unsqueeze(x, 0), unsqueeze(target, 0), o), {});
  const Scope scope("multilabel_margin_loss");
  check(x.rank() == 2 && target.shape() == x.shape(),
        "an input of shape {} and a target of {}, not [n, classes] for both", x.shape(),
        target.shape());
  const int64_t n = x.size(1);
  const Tensor named = as_index(target, "targets"), none = gt(cumsum(lt(named, 0), 1), 0),
               label = masked_fill(named, none, 0);
  check_targets(label, n);
  const Tensor own = sum(masked_fill(one_hot_or_zeros(label, n, f32), unsqueeze(none, 2), 0), {1});
  const Tensor left_out = logical_or(unsqueeze(none, 2), unsqueeze(gt(own, 0), 1));
  const auto loss = [&](const Tensor& a) {
    const Tensor each = relu(1 - unsqueeze(gather(a, 1, label), 2) + unsqueeze(a, 1));
    return reduce_losses(sum(masked_fill(each, left_out, 0), {1, 2}) / double(n), o.reduction);
  };
  return in_wider(loss, x);
}

Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target,
                                   const MultiLabelSoftMarginOptions& o) {
  const Scope scope("multilabel_soft_margin_loss");
  check(x.rank() > 0 && target.shape() == x.shape(),
        "an input of shape {} and a target of {}, not [..., classes] for both", x.shape(),
        target.shape());
  check_shape(o.class_weights, "class_weights", {x.size(-1)});
  const auto loss = [&](const Tensor& a) {
    const Tensor each = binary_cross_entropy_with_logits(
        a, cast(target, a.dtype()), {.reduction = Reduction::None, .weight = o.class_weights});
    return reduce_losses(mean(each, {-1}), o.reduction);
  };
  return in_wider(loss, x);
}

Tensor cosine_embedding_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                             const MarginOptions& o) {
  const Scope scope("cosine_embedding_loss");
  const Tensor c = cosine(x, y, -1, 1e-8, true);
  check(target.shape() == c.shape(), "pairs of shape {} need a target of the same shape, got {}",
        c.shape(), target.shape());
  const Tensor loss =
      reduce_losses(where(gt(target, 0), 1.0 - c, hinge(c - o.margin)), o.reduction);
  return finished(loss, x,
                  [&] { return cosine(none_of(x, {0, 1}), none_of(y, {0, 1}), 1, 1e-8, false); });
}

Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, const HingeEmbeddingOptions& o) {
  const Scope scope("hinge_embedding_loss");
  check_shape(target, "the target", x.shape());
  return in_wider(
      [&](const Tensor& a) {
        return reduce_losses(where(gt(target, 0), a, hinge(o.margin - a)), o.reduction);
      },
      x);
}

Tensor margin_ranking_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                           const MarginOptions& o) {
  const Scope scope("margin_ranking_loss");
  check(x.shape() == y.shape() && x.shape() == target.shape(),
        "both inputs and the target must have one shape, got {}, {} and {}", x.shape(), y.shape(),
        target.shape());
  return in_wider(
      [&](const Tensor& a, const Tensor& b) {
        return reduce_losses(hinge(cast(target, a.dtype()) * (b - a) + o.margin), o.reduction);
      },
      x, y);
}

}  // namespace mixtape
