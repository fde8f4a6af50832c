#pragma once
// Adagrad: the gradient over the root of the sum of all its squares.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdagradOptions {
  static constexpr std::string_view name = "adagrad";
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdagradOptions& options);

// s += g^2, p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011). Semantics and
// names are those of torch.optim.Adagrad.
using Adagrad = OptimizerOf<AdagradOptions>;

}  // namespace mixtape::optim
