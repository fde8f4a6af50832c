#pragma once
// Losses as modules, called as loss(x, target). Weights among the options become buffers, which
// move with the module, but stay f32 in an f16 or bf16 model.

#include <utility>

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

// logits [n, classes, ...], target i64 [n, ...] or probabilities
struct CrossEntropyLoss : Module<CrossEntropyLoss> {
  Buffer weight;  // [classes], or none

  explicit CrossEntropyLoss(CrossEntropyOptions o = {})
      : weight(std::exchange(o.class_weights, {})), options_(std::move(o)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    CrossEntropyOptions o = options_;
    o.class_weights = weight;
    return cross_entropy(x, target, o);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight)

 private:
  CrossEntropyOptions options_;
};
// log-probabilities [n, classes, ...], target i64 [n, ...]
struct NLLLoss : Module<NLLLoss> {
  Buffer weight;  // [classes], or none

  explicit NLLLoss(NllOptions o = {})
      : weight(std::exchange(o.class_weights, {})), options_(std::move(o)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    NllOptions o = options_;
    o.class_weights = weight;
    return nll_loss(x, target, o);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight)

 private:
  NllOptions options_;
};
// (x - target)^2
struct MSELoss : Module<MSELoss> {
  explicit MSELoss(Reduction reduction = Reduction::Mean) : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return mse_loss(x, target, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  Reduction reduction_;
};
// |x - target|
struct L1Loss : Module<L1Loss> {
  explicit L1Loss(Reduction reduction = Reduction::Mean) : reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return l1_loss(x, target, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  Reduction reduction_;
};
// d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2
struct SmoothL1Loss : Module<SmoothL1Loss> {
  explicit SmoothL1Loss(double beta = 1, Reduction reduction = Reduction::Mean)
      : beta_(beta), reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return smooth_l1_loss(x, target, beta_, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  double beta_;
  Reduction reduction_;
};
// d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)
struct HuberLoss : Module<HuberLoss> {
  explicit HuberLoss(double delta = 1, Reduction reduction = Reduction::Mean)
      : delta_(delta), reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return huber_loss(x, target, delta_, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  double delta_;
  Reduction reduction_;
};
// x in [0, 1]
struct BCELoss : Module<BCELoss> {
  Buffer weight;  // broadcasts to the target, or none

  explicit BCELoss(BceOptions o = {})
      : weight(std::exchange(o.weight, {})), options_(std::move(o)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    BceOptions o = options_;
    o.weight = weight;
    return binary_cross_entropy(x, target, o);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight)

 private:
  BceOptions options_;
};
// x any number, which sigmoid would make a probability
struct BCEWithLogitsLoss : Module<BCEWithLogitsLoss> {
  Buffer weight;      // broadcasts to the target, or none
  Buffer pos_weight;  // likewise

  explicit BCEWithLogitsLoss(BceOptions o = {})
      : weight(std::exchange(o.weight, {})),
        pos_weight(std::exchange(o.pos_weight, {})),
        options_(std::move(o)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    BceOptions o = options_;
    o.weight = weight;
    o.pos_weight = pos_weight;
    return binary_cross_entropy_with_logits(x, target, o);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight, pos_weight)

 private:
  BceOptions options_;
};
// x log-probabilities, target probabilities
struct KLDivLoss : Module<KLDivLoss> {
  explicit KLDivLoss(const KlDivOptions& o = {}) : options_(o) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    return kl_div(x, target, options_);
  }
  MIXTAPE_FIELDS()

 private:
  KlDivOptions options_;
};
// Of an anchor, a positive and a negative [n, size]: the negative is to be farther by a margin.
struct TripletMarginLoss : Module<TripletMarginLoss> {
  explicit TripletMarginLoss(const TripletMarginOptions& o = {}) : options_(o) {}
  Tensor forward(const Tensor& anchor, const Tensor& positive, const Tensor& negative) const {
    return triplet_margin_loss(anchor, positive, negative, options_);
  }
  MIXTAPE_FIELDS()

 private:
  TripletMarginOptions options_;
};
// Of x and y [n, size] and a target [n]: 1 where they are to be alike, -1 where not.
struct CosineEmbeddingLoss : Module<CosineEmbeddingLoss> {
  explicit CosineEmbeddingLoss(double margin = 0, Reduction reduction = Reduction::Mean)
      : margin_(margin), reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& y, const Tensor& target) const {
    return cosine_embedding_loss(x, y, target, margin_, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  double margin_;
  Reduction reduction_;
};
// Of x, y and a target: 1 where x is to be larger, -1 where y is.
struct MarginRankingLoss : Module<MarginRankingLoss> {
  explicit MarginRankingLoss(double margin = 0, Reduction reduction = Reduction::Mean)
      : margin_(margin), reduction_(reduction) {}
  Tensor forward(const Tensor& x, const Tensor& y, const Tensor& target) const {
    return margin_ranking_loss(x, y, target, margin_, reduction_);
  }
  MIXTAPE_FIELDS()

 private:
  double margin_;
  Reduction reduction_;
};
// Along dim: a similarity, not a loss.
struct CosineSimilarity : Module<CosineSimilarity> {
  explicit CosineSimilarity(int dim = 1, double eps = 1e-8) : dim_(dim), eps_(eps) {}
  Tensor forward(const Tensor& x, const Tensor& y) const {
    return cosine_similarity(x, y, dim_, eps_);
  }
  MIXTAPE_FIELDS()

 private:
  int dim_;
  double eps_;
};

}  // namespace mixtape::nn
