#pragma once
// Adadelta: steps whose size follows from that of earlier steps.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdadeltaOptions {
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// p -= lr d, d = sqrt(u + eps) / sqrt(v + eps) g, where u and v are running means of d^2 and g^2
// (Zeiler 2012). Semantics and names are those of torch.optim.Adadelta.
class Adadelta : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit Adadelta(std::vector<Tensor> params, const AdadeltaOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdadeltaOptions& options);
  std::string_view name() const override { return "adadelta"; }
};

}  // namespace mixtape::optim
