// Adam's options and state; its arithmetic is the kernel's.
#include "optim/adam.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class AdamRule : public MomentsRule<kernels::AdamRule, kernels::adam> {
 public:
  using MomentsRule::MomentsRule;
  Options options() override {
    return moments_and({{"amsgrad", numbers_.amsgrad}, {"maximize", numbers_.maximize}});
  }
  States states() const override {
    return {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", numbers_.amsgrad}};
  }
};

template <class O>
std::unique_ptr<Rule> rule_of(const O& o, bool decoupled) {
  return std::make_unique<AdamRule>(kernels::AdamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                                      o.amsgrad, decoupled, o.maximize});
}

}  // namespace

std::unique_ptr<Rule> make_rule(const AdamOptions& o) { return rule_of(o, false); }
std::unique_ptr<Rule> make_rule(const AdamWOptions& o) { return rule_of(o, true); }

}  // namespace mixtape::optim
