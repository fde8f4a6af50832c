#pragma once
// RMSprop: the gradient over its root mean square.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct RMSpropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, momentum = 0, weight_decay = 0;
  bool centered = false;  // divides by an estimate of the standard deviation instead
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// v = alpha v + (1 - alpha) g^2, p -= lr g / (sqrt(v) + eps) (Hinton 2012; centered: Graves 2013).
// Semantics and names are those of torch.optim.RMSprop.
class RMSprop : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit RMSprop(std::vector<Tensor> params, const RMSpropOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const RMSpropOptions& options);
  std::string_view name() const override { return "rmsprop"; }
};

}  // namespace mixtape::optim
