#pragma once
// Optimizers without a momentum of Adam's kind: plain steps, and those over the root of mean
// squares.

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
