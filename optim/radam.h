#pragma once
// RAdam: Adam that needs no warm-up, since it divides by the mean square only when that is known.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct RAdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// Liu et al. 2020, algorithm 2. Semantics and names are those of torch.optim.RAdam.
class RAdam : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit RAdam(std::vector<Tensor> params, const RAdamOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const RAdamOptions& options);
  std::string_view name() const override { return "radam"; }
};

}  // namespace mixtape::optim
