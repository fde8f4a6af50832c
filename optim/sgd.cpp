// Options and states; the arithmetic is the kernels'.
#include "optim/sgd.h"

#include "core/check.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

struct SgdRule : KernelRule<kernels::SgdRule, kernels::sgd> {
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"momentum", numbers_.momentum},
            {"dampening", numbers_.dampening, Option::Range::Any},
            {"weight_decay", numbers_.weight_decay},
            {"nesterov", numbers_.nesterov},
            {"maximize", numbers_.maximize}};
  }
  void check_options() const override {
    check(!numbers_.nesterov || (numbers_.momentum > 0 && numbers_.dampening == 0),
          "nesterov needs momentum and no dampening, not {} and {}", numbers_.momentum,
          numbers_.dampening);
  }
  States states() const override { return {{"momentum_buffer", numbers_.momentum != 0}}; }
  std::string_view momentum_name() const override { return "momentum"; }
};

struct RmspropRule : KernelRule<kernels::RmspropRule, kernels::rmsprop> {
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"alpha", numbers_.alpha, Option::Range::Fraction},
            {"eps", numbers_.eps},
            {"momentum", numbers_.momentum},
            {"weight_decay", numbers_.weight_decay},
            {"centered", numbers_.centered},
            {"maximize", numbers_.maximize}};
  }
  States states() const override {
    return {{"square_avg"},
            {"momentum_buffer", numbers_.momentum != 0},
            {"grad_avg", numbers_.centered}};
  }
  std::string_view momentum_name() const override { return "momentum"; }
};

struct AdagradRule : KernelRule<kernels::AdagradRule, kernels::adagrad> {
  double initial;

  AdagradRule(const kernels::AdagradRule& numbers, double initial)
      : KernelRule(numbers), initial(initial) {}
  Options options() override {
    return {{"lr", numbers_.lr},
            {"lr_decay", numbers_.lr_decay},
            {"weight_decay", numbers_.weight_decay},
            {"initial_accumulator_value", initial},
            {"eps", numbers_.eps},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"sum", true, initial}}; }
};

struct AdadeltaRule : KernelRule<kernels::AdadeltaRule, kernels::adadelta> {
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"rho", numbers_.rho, Option::Range::Fraction},
            {"eps", numbers_.eps},
            {"weight_decay", numbers_.weight_decay},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"square_avg"}, {"acc_delta"}}; }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const SGDOptions& o) {
  return std::make_unique<SgdRule>(
      kernels::SgdRule{o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize});
}
std::unique_ptr<Rule> make_rule(const RMSpropOptions& o) {
  return std::make_unique<RmspropRule>(kernels::RmspropRule{
      o.lr, o.alpha, o.eps, o.momentum, o.weight_decay, o.centered, o.maximize});
}
std::unique_ptr<Rule> make_rule(const AdagradOptions& o) {
  return std::make_unique<AdagradRule>(
      kernels::AdagradRule{o.lr, o.lr_decay, o.eps, o.weight_decay, o.maximize},
      o.initial_accumulator_value);
}
std::unique_ptr<Rule> make_rule(const AdadeltaOptions& o) {
  return std::make_unique<AdadeltaRule>(
      kernels::AdadeltaRule{o.lr, o.rho, o.eps, o.weight_decay, o.maximize});
}

}  // namespace mixtape::optim
