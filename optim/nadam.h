#pragma once
// NAdam: Adam with a momentum that looks ahead, and grows.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct NAdamOptions {
  static constexpr std::string_view name = "nadam";
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const NAdamOptions& options);

// Dozat 2016, algorithm 2. Semantics and names are those of torch.optim.NAdam, but for the product
// of the momenta so far, which follows from the number of steps and the present options.
using NAdam = OptimizerOf<NAdamOptions>;

}  // namespace mixtape::optim
