#pragma once
// Stochastic gradient descent, plain or with momentum.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct SGDOptions {
  static constexpr std::string_view name = "sgd";
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const SGDOptions& options);

// buf = momentum buf + (1 - dampening) g, the first time g; p -= lr buf, where g includes
// weight_decay p. Semantics and names are those of torch.optim.SGD.
using SGD = OptimizerOf<SGDOptions>;

}  // namespace mixtape::optim
