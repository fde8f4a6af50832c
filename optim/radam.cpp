// RAdam's options and state; its arithmetic is the kernel's.
#include "optim/radam.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class RadamRule : public MomentsRule<kernels::RadamRule, kernels::radam> {
 public:
  using MomentsRule::MomentsRule;
  Options options() override { return moments_and({{"maximize", numbers_.maximize}}); }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const RAdamOptions& o) {
  return std::make_unique<RadamRule>(
      kernels::RadamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.maximize});
}

}  // namespace mixtape::optim
