#pragma once
// RAdam: Adam that needs no warm-up, since it divides by the mean square only when that is known.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct RAdamOptions {
  static constexpr std::string_view name = "radam";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const RAdamOptions& options);

// Liu et al. 2020, algorithm 2. Semantics and names are those of torch.optim.RAdam.
using RAdam = OptimizerOf<RAdamOptions>;

}  // namespace mixtape::optim
