// NAdam's options and state; its arithmetic is the kernel's.
#include "optim/nadam.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class NadamRule : public MomentsRule<kernels::NadamRule, kernels::nadam> {
 public:
  using MomentsRule::MomentsRule;
  Options options() override {
    return moments_and(
        {{"momentum_decay", numbers_.momentum_decay}, {"maximize", numbers_.maximize}});
  }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const NAdamOptions& o) {
  return std::make_unique<NadamRule>(kernels::NadamRule{
      o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum_decay, o.maximize});
}

}  // namespace mixtape::optim
