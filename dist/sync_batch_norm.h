#pragma once
// SyncBatchNorm: batch norm by the statistics of all ranks.

#include "nn/norm.h"

namespace mixtape::dist {

// A guard on its thread: in training, nn::BatchNorm1d and 2d normalise by the mean and variance of
// all ranks' batches, or of the chunks that ranks have at a time. All ranks pass the same layers in
// one order, and use the same parameters. With one chunk a rank, other numbers of ranks agree to
// rounding.
class SyncBatchNorm {
 public:
  [[nodiscard]] SyncBatchNorm();

 private:
  const ScopedValue<&nn::BatchNormState::in_training> on_;
};

}  // namespace mixtape::dist
