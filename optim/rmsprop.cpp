// RMSprop's options and state; its arithmetic is the kernel's.
#include "optim/rmsprop.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class RmspropRule : public KernelRule<kernels::RmspropRule, kernels::rmsprop> {
 public:
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

}  // namespace

std::unique_ptr<Rule> make_rule(const RMSpropOptions& o) {
  return std::make_unique<RmspropRule>(kernels::RmspropRule{
      o.lr, o.alpha, o.eps, o.momentum, o.weight_decay, o.centered, o.maximize});
}

}  // namespace mixtape::optim
