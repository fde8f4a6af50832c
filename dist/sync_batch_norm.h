#pragma once
// SyncBatchNorm: batch norm by the statistics of all ranks.

#include "nn/norm.h"

namespace mixtape::dist {

// A guard on its thread: in training, nn::BatchNorm1d and 2d normalise by the mean and variance of
// all ranks' batches, or of the chunks that ranks process at a time. All ranks must run the same
// layers in the same order with the same parameters. A checkpoint() runs layers again in
// backward(), which must then be inside, too. With one chunk per rank, results with other numbers
// of ranks agree up to rounding.
class SyncBatchNorm {
 public:
  [[nodiscard]] SyncBatchNorm();

 private:
  const ScopedValue<&nn::BatchNormState::in_training> on_;
};

}  // namespace mixtape::dist
