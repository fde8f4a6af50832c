// Adam's options and state; its arithmetic is the kernel's.
#include "optim/adam.h"

#include "core/check.h"
#include "core/op.h"

namespace mixtape::optim {
namespace {

void check_rule(const kernels::AdamRule& rule) {
  check(rule.lr >= 0, "lr is {}, not a number from 0", rule.lr);
  check(0 <= rule.beta1 && rule.beta1 < 1, "beta1 is {}, not in [0, 1)", rule.beta1);
  check(0 <= rule.beta2 && rule.beta2 < 1, "beta2 is {}, not in [0, 1)", rule.beta2);
  check(rule.eps >= 0, "eps is {}, not a number from 0", rule.eps);
  check(rule.weight_decay >= 0, "weight_decay is {}, not a number from 0", rule.weight_decay);
}

}  // namespace

void Adam::add_rule(std::vector<Tensor> params, const kernels::AdamRule& rule,
                    bool multi_precision) {
  const Scope scope(name());
  check_rule(rule);
  append_group(std::move(params), multi_precision);
  rules_.push_back(rule);
}

Adam::Options Adam::options(size_t group) {
  kernels::AdamRule& r = rules_[group];
  return {{"lr", &r.lr},
          {"beta1", &r.beta1},
          {"beta2", &r.beta2},
          {"eps", &r.eps},
          {"weight_decay", &r.weight_decay}};
}

void Adam::check_options(size_t group) const { check_rule(rules_[group]); }

std::span<const std::string_view> Adam::state_names() const {
  static constexpr std::string_view names[] = {"exp_avg", "exp_avg_sq"};
  return names;
}

void Adam::update(size_t group, kernels::Launch& launch, std::span<const kernels::Update> updates,
                  const StepControl& control) {
  kernels::adam(launch, updates, rules_[group], control);
}

}  // namespace mixtape::optim
