#pragma once
// Adam and AdamW: steps in units of the learning rate, from running means of the gradient and its
// square.

#include "optim/optimizer.h"

namespace mixtape::optim {

struct AdamOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  bool maximize = false;
  // Keeps an f32 copy of each f16 or bf16 parameter, updates that, and rounds it.
  bool multi_precision = false;
};

// Kingma & Ba 2015, algorithm 1. Semantics and names are those of torch.optim.Adam.
class Adam : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit Adam(std::vector<Tensor> params, const AdamOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdamOptions& options) {
    add_rule(std::move(params), rule_of(options, false), options.multi_precision);
  }

  std::string_view name() const override { return "adam"; }
  std::string_view momentum_name() const override { return "beta1"; }

 protected:
  Adam() = default;
  template <class O>
  static kernels::AdamRule rule_of(const O& o, bool decoupled) {
    return {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, decoupled, o.maximize};
  }
  void add_rule(std::vector<Tensor> params, const kernels::AdamRule& rule, bool multi_precision);

  Options options(size_t group) override;
  void check_options(size_t group) const override;
  std::span<const std::string_view> state_names() const override;
  bool has_state(size_t) const override { return true; }
  void update(size_t group, kernels::Launch& launch, std::span<const kernels::Update> updates,
              const StepControl& control) override;

 private:
  std::vector<kernels::AdamRule> rules_;  // of each group
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool maximize = false;
  bool multi_precision = false;
};

// Adam whose decay acts on the weights and not through the gradient (Loshchilov & Hutter 2019).
class AdamW : public Adam {
 public:
  explicit AdamW(std::vector<Tensor> params, const AdamWOptions& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const AdamWOptions& options) {
    add_rule(std::move(params), rule_of(options, true), options.multi_precision);
  }
  std::string_view name() const override { return "adamw"; }
};

}  // namespace mixtape::optim
