#pragma once
// Stochastic gradient descent, plain or with momentum.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// buf = momentum buf + (1 - dampening) g, the first time g; p -= lr buf, where g includes
// weight_decay p. Semantics and names are those of torch.optim.SGD.
class SGD : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit SGD(std::vector<Tensor> params, const SGDOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const SGDOptions& options);
  std::string_view name() const override { return "sgd"; }
};

}  // namespace mixtape::optim
