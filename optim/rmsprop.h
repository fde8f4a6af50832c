#pragma once
// RMSprop: the gradient over its root mean square.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct RMSpropOptions {
  static constexpr std::string_view name = "rmsprop";
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, momentum = 0, weight_decay = 0;
  bool centered = false;  // divides by an estimate of the standard deviation instead
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const RMSpropOptions& options);

// v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps) (Hinton 2012; centered: Graves 2013).
// Semantics and names are those of torch.optim.RMSprop.
using RMSprop = OptimizerOf<RMSpropOptions>;

}  // namespace mixtape::optim
