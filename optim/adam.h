#pragma once
// Adam and AdamW: steps in units of the learning rate, from running means of the gradient and its
// square.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdamOptions {
  static constexpr std::string_view name = "adam";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;  // divides by the largest mean square so far (Reddi et al. 2018)
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdamOptions& options);

// Kingma & Ba 2015, algorithm 1. Semantics and names are those of torch.optim.Adam.
using Adam = OptimizerOf<AdamOptions>;

struct AdamWOptions {
  static constexpr std::string_view name = "adamw";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;  // as Adam's
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};
std::unique_ptr<Rule> make_rule(const AdamWOptions& options);

// Adam whose decay acts on the weights and not through the gradient (Loshchilov & Hutter 2019).
using AdamW = OptimizerOf<AdamWOptions>;

}  // namespace mixtape::optim
