#pragma once
// NAdam: Adam with a momentum that looks ahead, and grows.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct NAdamOptions {
  double lr = 2e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// Dozat 2016, algorithm 2. Semantics and names are those of torch.optim.NAdam, but for the product
// of the momenta so far, which follows from the number of steps and the present options.
class NAdam : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit NAdam(std::vector<Tensor> params, const NAdamOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const NAdamOptions& options);
  std::string_view name() const override { return "nadam"; }
};

}  // namespace mixtape::optim
