#pragma once
// MixUp and CutMix: callbacks that train on mixtures of two images, with class probabilities as
// targets, which cross_entropy() takes. Each image is mixed with the one before it in the batch (or
// chunk), so shuffle the data. A batch or chunk of one image stays as it is, with a warning.
//
//   learner.add(std::make_shared<MixUp>(MixOptions{.classes = 10}));

#include "train/callback.h"

namespace mixtape::train {

struct MixOptions {
  int64_t classes;         // targets are labels below this, or probabilities already
  double alpha = 1;        // shares are drawn from Beta(alpha, alpha); if small, few are mixtures
  double probability = 1;  // that a batch is mixed
};

// The base of both. Draws from generator(), one share for each batch.
class Mixing : public Callback {
 public:
  explicit Mixing(const MixOptions& options);   // throws Error if an option is out of range
  int order() const override { return -30; }    // before MixedPrecision rounds the inputs
  void on_batch_begin(Learner& learner) final;  // mixes state.x and state.y

 private:
  // Mixes x with `other`; returns the share of x.
  virtual double mix(Tensor& x, const Tensor& other, double share) const = 0;
  const MixOptions options_;
};

// share x + (1 - share) other (Zhang et al. 2017, arXiv 1710.09412). Throws Error unless inputs are
// floats.
class MixUp final : public Mixing {
 public:
  using Mixing::Mixing;

 private:
  double mix(Tensor& x, const Tensor& other, double share) const override;
};

// Takes a rectangle of images [n, ..., height, width] from the other image; probabilities are by
// area (Yun et al. 2019, arXiv 1905.04899).
class CutMix final : public Mixing {
 public:
  using Mixing::Mixing;

 private:
  double mix(Tensor& x, const Tensor& other, double share) const override;
};

}  // namespace mixtape::train
