#pragma once
// Adam and AdamW: steps in units of the learning rate, from running means of the gradient and its
// square.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool amsgrad = false;  // divides by the largest mean square so far (Reddi et al. 2018)
  bool maximize = false;
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// Kingma & Ba 2015, algorithm 1. Semantics and names are those of torch.optim.Adam.
class Adam : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdamOptions& options);
  std::string_view name() const override { return "adam"; }
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;  // as Adam's
  // Of all optimizers (CommonOptions).
  bool multi_precision = false, flat_master = false;
  std::optional<DType> shadow = {};
  double rescale_grad = 1;
};

// Adam whose decay acts on the weights and not through the gradient (Loshchilov & Hutter 2019).
class AdamW : public Optimizer {
 public:
  explicit AdamW(std::vector<Tensor> params, const AdamWOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdamWOptions& options);
  std::string_view name() const override { return "adamw"; }
};

// The rule of both, for optimizers that treat some of their parameters so.
std::unique_ptr<Rule> adam_rule(const AdamOptions& options);
std::unique_ptr<Rule> adam_rule(const AdamWOptions& options);

}  // namespace mixtape::optim
