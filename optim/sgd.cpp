// SGD's options and state; its arithmetic is the kernel's.
#include "optim/sgd.h"

#include "core/check.h"
#include "core/op.h"

namespace mixtape::optim {
namespace {

void check_rule(const kernels::SgdRule& rule) {
  check(rule.lr >= 0, "lr is {}, not a number from 0", rule.lr);
  check(rule.momentum >= 0, "momentum is {}, not a number from 0", rule.momentum);
  check(rule.weight_decay >= 0, "weight_decay is {}, not a number from 0", rule.weight_decay);
  check(!rule.nesterov || (rule.momentum > 0 && rule.dampening == 0),
        "nesterov needs momentum and no dampening, not {} and {}", rule.momentum, rule.dampening);
}

}  // namespace

void SGD::add_group(std::vector<Tensor> params, const SGDOptions& o) {
  const Scope scope(name());
  const kernels::SgdRule rule{o.lr,           o.momentum, o.dampening,
                              o.weight_decay, o.nesterov, o.maximize};
  check_rule(rule);
  append_group(std::move(params), o.multi_precision);
  rules_.push_back(rule);
}

SGD::Options SGD::options(size_t group) {
  kernels::SgdRule& r = rules_[group];
  return {{"lr", &r.lr},
          {"momentum", &r.momentum},
          {"dampening", &r.dampening},
          {"weight_decay", &r.weight_decay}};
}

void SGD::check_options(size_t group) const { check_rule(rules_[group]); }

std::span<const std::string_view> SGD::state_names() const {
  static constexpr std::string_view names[] = {"momentum_buffer"};
  return names;
}

void SGD::update(size_t group, kernels::Launch& launch, std::span<const kernels::Update> updates,
                 const StepControl& control) {
  kernels::sgd(launch, updates, rules_[group], control);
}

}  // namespace mixtape::optim
