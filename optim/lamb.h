#pragma once
// LAMB: Adam's direction, with steps in proportion to the norm of each parameter. For large
// batches.

#include <limits>

#include "optim/optimizer.h"

namespace mixtape::optim {

struct LambOptions {
  static constexpr std::string_view name = "lamb";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-6, weight_decay = 0;
  // Limits of |p| (phi in the paper), and of the trust ratio. Both trust limits at 1: AdamW, for
  // groups of biases and norms.
  double min_norm = 0, max_norm = std::numeric_limits<double>::infinity();
  double min_trust = 0, max_trust = std::numeric_limits<double>::infinity();
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const LambOptions& options);

// p -= lr trust (r + weight_decay p), trust = |p| / |r + weight_decay p|, where r is Adam's step
// with both corrections for bias (You et al. 2020, algorithm 2). Where a norm is 0, trust is 1.
using Lamb = OptimizerOf<LambOptions>;

}  // namespace mixtape::optim
