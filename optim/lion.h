#pragma once
// Lion: the sign of the momentum, so that all steps have one size.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct LionOptions {
  static constexpr std::string_view name = "lion";
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const LionOptions& options);

// p -= lr (sign(beta1 m + (1 - beta1) g) + weight_decay p), then m = beta2 m + (1 - beta2) g (Chen
// et al. 2023, algorithm 2). Wants a rate 3 to 10 times smaller than AdamW's, and more decay.
using Lion = OptimizerOf<LionOptions>;

}  // namespace mixtape::optim
