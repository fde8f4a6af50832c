// LAMB's options and state; its arithmetic is the kernel's.
#include "optim/lamb.h"

#include "core/check.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class LambRule : public MomentsRule<kernels::LambRule, kernels::lamb> {
 public:
  using MomentsRule::MomentsRule;
  Options options() override {
    return moments_and({{"min_norm", numbers_.min_norm},
                        {"max_norm", numbers_.max_norm},
                        {"min_trust", numbers_.min_trust},
                        {"max_trust", numbers_.max_trust},
                        {"maximize", numbers_.maximize}});
  }
  void check_options() const override {
    check(numbers_.min_norm <= numbers_.max_norm, "norms from {} to {} are no range",
          numbers_.min_norm, numbers_.max_norm);
    check(numbers_.min_trust <= numbers_.max_trust, "trust ratios from {} to {} are no range",
          numbers_.min_trust, numbers_.max_trust);
  }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const LambOptions& o) {
  return std::make_unique<LambRule>(kernels::LambRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                                      o.min_norm, o.max_norm, o.min_trust,
                                                      o.max_trust, o.maximize});
}

}  // namespace mixtape::optim
