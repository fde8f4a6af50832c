// Norms, distances and losses of embeddings that compare them, all composed of other ops.

#include <algorithm>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;

Tensor normalize(const Tensor& x, double p, int dim, double eps) {
  const Scope scope("normalize");
  const Tensor length = norm(x, p, {dim}, true);
  return x / clamp(length, representable_eps(length.dtype(), eps), {});
}

Tensor pairwise_distance(const Tensor& x, const Tensor& y, double p, double eps, bool keepdim) {
  const Scope scope("pairwise_distance");
  return norm(x - y + eps, p, {-1}, keepdim);
}

Tensor cdist(const Tensor& x, const Tensor& y, double p) {
  const Scope scope("cdist");
  check_real(x);
  check_real(y);
  check(x.rank() >= 2 && y.rank() >= 2 && x.size(-1) == y.size(-1),
        "points of shapes {} and {}, not [..., n, size] and [..., m, size]", x.shape(), y.shape());
  check(p >= 0, "of order {}", p);
  const Tensor a = cast(x, accumulate_dtype(x.dtype())), b = cast(y, accumulate_dtype(y.dtype()));
  if (p != 2 || std::max(x.size(-2), y.size(-2)) <= 25)
    return norm(unsqueeze(a, -2) - unsqueeze(b, -3), p, {-1});
  const auto squares = [](const Tensor& t) { return sum(square(t), {-1}, true); };
  const Tensor products = matmul(a, transpose(b), {.out = a.dtype()});
  const Tensor squared = squares(a) + transpose(squares(b)) - 2 * products;
  const Tensor none = le(squared, 0);  // no gradient at 0; rounding may give < 0
  return masked_fill(sqrt(masked_fill(squared, none, 1)), none, 0);
}

// max(0, x) with gradient 1 at 0, so that pairs exactly at the margin still move.
static Tensor hinge(const Tensor& x) { return clamp(x, 0, {}); }

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginOptions& o) {
  const Scope scope("triplet_margin_loss");
  check(anchor.shape() == positive.shape() && anchor.shape() == negative.shape(),
        "an anchor of shape {}, a positive of shape {} and a negative of shape {}", anchor.shape(),
        positive.shape(), negative.shape());
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    return pairwise_distance(a, b, o.p, o.eps);
  };
  Tensor apart = distance(anchor, negative);
  if (o.swap) apart = minimum(apart, distance(positive, negative));
  return reduce_losses(hinge(distance(anchor, positive) - apart + o.margin), o.reduction);
}

Tensor cosine_embedding_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                             const MarginOptions& o) {
  const Scope scope("cosine_embedding_loss");
  const Tensor cosine = cosine_similarity(x, y, -1);
  check(target.shape() == cosine.shape(), "pairs of shape {} and a target of shape {}",
        cosine.shape(), target.shape());
  return reduce_losses(where(gt(target, 0), 1.0 - cosine, hinge(cosine - o.margin)), o.reduction);
}

Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, const HingeEmbeddingOptions& o) {
  const Scope scope("hinge_embedding_loss");
  check_shape(target, "the target", x.shape());
  return reduce_losses(where(gt(target, 0), x, hinge(o.margin - x)), o.reduction);
}

Tensor margin_ranking_loss(const Tensor& x, const Tensor& y, const Tensor& target,
                           const MarginOptions& o) {
  const Scope scope("margin_ranking_loss");
  check(x.shape() == y.shape() && x.shape() == target.shape(),
        "inputs of shapes {} and {} and a target of shape {}", x.shape(), y.shape(),
        target.shape());
  return reduce_losses(hinge(cast(target, x.dtype()) * (y - x) + o.margin), o.reduction);
}

}  // namespace mixtape
