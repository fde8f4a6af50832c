#pragma once
// SyncBatchNorm: batch norm by the statistics of all ranks.

#include "nn/norm.h"

namespace mixtape::dist {

// A guard on its thread: in training, nn::BatchNorm1d and 2d normalise by the mean and variance of
// all ranks' batches, or of their chunks of one number, which all of them pass together. The sums
// are f32, in one order, but over ranks: other numbers of ranks agree to rounding.
class SyncBatchNorm {
 public:
  [[nodiscard]] SyncBatchNorm();

 private:
  const ScopedValue<&nn::BatchNormState::in_training> on_;
};

}  // namespace mixtape::dist
