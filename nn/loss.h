#pragma once
// Losses as modules, called as loss(x, target). Reduction::Sum may stand for {.reduction = ...}.
// Weights among the options become buffers, which move with the module but stay f32 in an f16 or
// bf16 model.

#include <utility>

#include "autograd/ops.h"
#include "nn/op_module.h"

namespace mixtape::nn {

// The weights among its options are a buffer.
template <class Derived, auto op, class Options, Tensor Options::* member>
struct WeightedLoss : Module<Derived> {
  Buffer weight;  // [classes], or for BCELoss what broadcasts to the target; or none

  explicit WeightedLoss(Options o) : weight(std::exchange(o.*member, {})), options_(std::move(o)) {}
  Tensor forward(const Tensor& x, const Tensor& target) const {
    Options o = options_;
    o.*member = weight;
    return op(x, target, o);
  }
  bool keeps_f32() const override { return true; }
  MIXTAPE_FIELDS(weight)

 private:
  Options options_;
};

// logits [n, classes, ...], target i64 [n, ...] or probabilities
struct CrossEntropyLoss : WeightedLoss<CrossEntropyLoss, cross_entropy, CrossEntropyOptions,
                                       &CrossEntropyOptions::class_weights> {
  explicit CrossEntropyLoss(CrossEntropyOptions o = {}) : WeightedLoss(std::move(o)) {}
};
// log-probabilities [n, classes, ...], target i64 [n, ...]
struct NLLLoss : WeightedLoss<NLLLoss, nll_loss, NllOptions, &NllOptions::class_weights> {
  explicit NLLLoss(NllOptions o = {}) : WeightedLoss(std::move(o)) {}
};
// (x - target)^2
struct MSELoss : OpModule<MSELoss, mse_loss, LossOptions> {
  explicit MSELoss(const LossOptions& o = {}) : OpModule(o) {}
};
// |x - target|
struct L1Loss : OpModule<L1Loss, l1_loss, LossOptions> {
  explicit L1Loss(const LossOptions& o = {}) : OpModule(o) {}
};
// d^2 / (2 beta) where d = |x - target| < beta, else d - beta / 2
struct SmoothL1Loss : OpModule<SmoothL1Loss, smooth_l1_loss, SmoothL1Options> {
  explicit SmoothL1Loss(const SmoothL1Options& o = {}) : OpModule(o) {}
};
// d^2 / 2 where d = |x - target| < delta, else delta (d - delta / 2)
struct HuberLoss : OpModule<HuberLoss, huber_loss, HuberOptions> {
  explicit HuberLoss(const HuberOptions& o = {}) : OpModule(o) {}
};
// x in [0, 1]
struct BCELoss : WeightedLoss<BCELoss, binary_cross_entropy, BceOptions, &BceOptions::weight> {
  explicit BCELoss(BceOptions o = {}) : WeightedLoss(std::move(o)) {}
};
// x logits: sigmoid(x) is the probability
struct BCEWithLogitsLoss : Module<BCEWithLogitsLoss> {
  Buffer weight;      // broadcasts to the target, or none
  Buffer pos_weight;  // broadcasts to the target, or none

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
struct KLDivLoss : OpModule<KLDivLoss, kl_div, KlDivOptions> {
  explicit KLDivLoss(const KlDivOptions& o = {}) : OpModule(o) {}
};
// anchor, positive and negative [n, size]: the negative should be farther by a margin
struct TripletMarginLoss : OpModule<TripletMarginLoss, triplet_margin_loss, TripletMarginOptions> {
  explicit TripletMarginLoss(const TripletMarginOptions& o = {}) : OpModule(o) {}
};
// x and y [n, size], target [n]: 1 where they should be alike, -1 where not
struct CosineEmbeddingLoss : OpModule<CosineEmbeddingLoss, cosine_embedding_loss, MarginOptions> {
  explicit CosineEmbeddingLoss(const MarginOptions& o = {}) : OpModule(o) {}
};
// target 1 where x should be larger than y, -1 where smaller
struct MarginRankingLoss : OpModule<MarginRankingLoss, margin_ranking_loss, MarginOptions> {
  explicit MarginRankingLoss(const MarginOptions& o = {}) : OpModule(o) {}
};
// x and var the predicted mean and variance of the target
struct GaussianNLLLoss : OpModule<GaussianNLLLoss, gaussian_nll_loss, GaussianNllOptions> {
  explicit GaussianNLLLoss(const GaussianNllOptions& o = {}) : OpModule(o) {}
};
// x the logarithm of an expected count, target the count
struct PoissonNLLLoss : OpModule<PoissonNLLLoss, poisson_nll_loss, PoissonNllOptions> {
  explicit PoissonNLLLoss(const PoissonNllOptions& o = {}) : OpModule(o) {}
};
// x distances, target 1 where they should be small, -1 where large
struct HingeEmbeddingLoss
    : OpModule<HingeEmbeddingLoss, hinge_embedding_loss, HingeEmbeddingOptions> {
  explicit HingeEmbeddingLoss(const HingeEmbeddingOptions& o = {}) : OpModule(o) {}
};
// log(1 + exp(-target x)), target 1 or -1
struct SoftMarginLoss : OpModule<SoftMarginLoss, soft_margin_loss, LossOptions> {
  explicit SoftMarginLoss(const LossOptions& o = {}) : OpModule(o) {}
};
// not a loss, but the similarity along dim
struct CosineSimilarity : OpModule<CosineSimilarity, cosine_similarity, int, double> {
  explicit CosineSimilarity(int dim = 1, double eps = 1e-8) : OpModule(dim, eps) {}
};

}  // namespace mixtape::nn
