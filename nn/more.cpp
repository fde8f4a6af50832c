#include "nn/more.h"

#include <cmath>

#include "core/format.h"
#include "nn/init.h"

namespace mixtape::nn {
using namespace internal;

Tensor Softmax2d::forward(const Tensor& x) const {
  check(x.rank() == 3 || x.rank() == 4, "needs images [n, c, h, w] or [c, h, w], got {}",
        x.shape());
  return softmax(x, -3);
}

Tensor AlphaDropout::forward(const Tensor& x) const {
  if (!is_training() || p_ == 0) return x;
  if (p_ == 1) return x * 0;
  constexpr double limit = -1.7580993408473766;  // of selu(x), -scale alpha
  const double scale = 1 / std::sqrt((1 - p_) * (1 + p_ * limit * limit));
  const Tensor kept = gt(dropout(ones(x.shape(), f32, x.device()), p_), 0);
  return where(kept, x, limit) * scale - scale * p_ * limit;
}

Bilinear::Bilinear(int64_t in1, int64_t in2, int64_t out, bool with_bias) {
  const Scope scope("Bilinear");
  check(in1 > 0 && in2 > 0 && out > 0, "sizes must be positive: in1 {}, in2 {}, out {}", in1, in2,
        out);
  const double bound = 1 / std::sqrt(double(in1));
  weight = parameter(init::uniform_(empty({out, in1, in2}), -bound, bound));
  if (with_bias) bias = parameter(init::uniform_(empty({out}), -bound, bound));
}

Transformer::Transformer(int64_t size, int64_t heads, const TransformerOptions& o)
    : encoder(TransformerEncoderLayer(size, heads, o.layer), o.encoder_layers,
              LayerNorm(size, {.eps = o.layer.layer_norm_eps})),
      decoder(TransformerDecoderLayer(size, heads, o.layer), o.decoder_layers,
              LayerNorm(size, {.eps = o.layer.layer_norm_eps})) {
  for (const Tensor& p : parameters())
    if (p.rank() > 1) init::xavier_uniform_(p);
}

AdaptiveLogSoftmaxWithLoss::AdaptiveLogSoftmaxWithLoss(int64_t in, int64_t classes,
                                                       std::vector<int64_t> cutoffs,
                                                       const Options& o)
    : head(1, 1), ends_(std::move(cutoffs)) {
  const Scope scope("AdaptiveLogSoftmaxWithLoss");
  ends_.push_back(classes);
  int64_t least = 1;
  for (const int64_t end : ends_) {
    check(end >= least, "cutoffs must increase from 1 to below {} classes, got {} after {}",
          classes, end, least - 1);
    least = end + 1;
  }
  check(o.div_value >= 1, "div_value must be >= 1, got {}", o.div_value);
  const auto clusters = static_cast<int64_t>(ends_.size()) - 1;
  check(clusters > 0, "there must be one cutoff at least, got none");
  head = Linear(in, common() + clusters, {.bias = o.head_bias});
  double width = static_cast<double>(in);
  for (size_t i = 1; i < ends_.size(); ++i) {
    width /= o.div_value;
    check(width >= 1, "cluster {} of {} features would have none (div_value {})", i - 1, in,
          o.div_value);
    const auto hidden = static_cast<int64_t>(width);
    tail.push_back(Sequential(Linear(in, hidden, {.bias = false}),
                              Linear(hidden, ends_[i] - ends_[i - 1], {.bias = false})));
  }
}

AdaptiveLogSoftmaxOutput AdaptiveLogSoftmaxWithLoss::forward(const Tensor& x,
                                                             const Tensor& target) const {
  check(x.rank() == 2 && target.shape() == Shape{x.size(0)},
        "needs inputs [n, features] and targets [n], got {} and {}", x.shape(), target.shape());
  const Tensor classes_of = target.to(i64);
  if (target.numel() > 0) {
    const auto least = min(classes_of).item<int64_t>(), most = max(classes_of).item<int64_t>();
    check(least >= 0 && most < classes(), "targets must be from 0 to {}, got {} to {}",
          classes() - 1, least, most);
  }
  Tensor in_head = classes_of;  // the class in the head, which may stand for a cluster
  std::vector<Tensor> members;
  for (size_t i = 1; i < ends_.size(); ++i) {
    const Tensor here = ge(classes_of, double(ends_[i - 1]));
    in_head = where(here, full_like(in_head, double(common()) + double(i - 1)), in_head);
    members.push_back(i + 1 == ends_.size() ? here
                                            : logical_and(here, lt(classes_of, double(ends_[i]))));
  }
  Tensor output = -nll_loss(log_softmax(head(x)), in_head, {.reduction = Reduction::None});
  for (size_t i = 0; i < tail.size(); ++i) {
    const Tensor rows = flatten(nonzero(members[i]));
    if (rows.numel() == 0) continue;
    const Tensor local = index_select(classes_of, 0, rows) - double(ends_[i]),
                 scores = log_softmax(tail[i](index_select(x, 0, rows)));
    output = index_add(output, 0, rows, -nll_loss(scores, local, {.reduction = Reduction::None}));
  }
  return {output, -mean(output)};
}

Tensor AdaptiveLogSoftmaxWithLoss::log_prob(const Tensor& x) const {
  const Tensor first = log_softmax(head(x));
  std::vector<Tensor> parts{narrow(first, 1, 0, common())};
  for (size_t i = 0; i < tail.size(); ++i)
    parts.push_back(log_softmax(tail[i](x)) + narrow(first, 1, common() + int64_t(i), 1));
  return cat(parts, 1);
}

Tensor AdaptiveLogSoftmaxWithLoss::predict(const Tensor& x) const {
  const NoGrad off;
  const Tensor likeliest = argmax(head(x), 1),
               rows = flatten(nonzero(ge(likeliest, double(common()))));
  if (rows.numel() == 0) return likeliest;
  return index_put(likeliest, {rows}, argmax(log_prob(index_select(x, 0, rows)), 1));
}

}  // namespace mixtape::nn
