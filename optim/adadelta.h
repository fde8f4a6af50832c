#pragma once
// Adadelta: steps whose size follows from that of earlier steps.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdadeltaOptions {
  static constexpr std::string_view name = "adadelta";
  double lr = 1, rho = 0.9, eps = 1e-6, weight_decay = 0;
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdadeltaOptions& options);

// p -= lr d, d = sqrt(u + eps) / sqrt(v + eps) g, where u and v are running means of d^2 and g^2
// (Zeiler 2012). Semantics and names are those of torch.optim.Adadelta.
using Adadelta = OptimizerOf<AdadeltaOptions>;

}  // namespace mixtape::optim
