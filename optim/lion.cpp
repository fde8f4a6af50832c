// Lion's options and state; its arithmetic is the kernel's.
#include "optim/lion.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class LionRule : public KernelRule<kernels::LionRule, kernels::lion> {
 public:
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"beta1", numbers_.beta1, Option::Range::Fraction},
            {"beta2", numbers_.beta2, Option::Range::Fraction},
            {"weight_decay", numbers_.weight_decay},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"exp_avg"}}; }
  std::string_view momentum_name() const override { return "beta1"; }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const LionOptions& o) {
  return std::make_unique<LionRule>(
      kernels::LionRule{o.lr, o.beta1, o.beta2, o.weight_decay, o.maximize});
}

}  // namespace mixtape::optim
