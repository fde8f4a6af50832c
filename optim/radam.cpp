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

void RAdam::add_group(std::vector<Tensor> params, const RAdamOptions& o) {
  append_group(std::move(params),
               std::make_unique<RadamRule>(
                   kernels::RadamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.maximize}),
               CommonOptions::of(o));
}

}  // namespace mixtape::optim
