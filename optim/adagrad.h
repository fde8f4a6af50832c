#pragma once
// Adagrad: the gradient over the root of the sum of all its squares.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// s += g^2, p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(s) + eps) (Duchi et al. 2011). Semantics and
// names are those of torch.optim.Adagrad.
class Adagrad : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit Adagrad(std::vector<Tensor> params, const AdagradOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdagradOptions& options);
  std::string_view name() const override { return "adagrad"; }
};

}  // namespace mixtape::optim
