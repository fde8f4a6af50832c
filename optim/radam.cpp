// RAdam's options and state; its arithmetic is the kernel's.
#include "optim/radam.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class RadamRule : public KernelRule<kernels::RadamRule, kernels::radam> {
 public:
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"beta1", numbers_.beta1, Option::Range::Fraction},
            {"beta2", numbers_.beta2, Option::Range::Fraction},
            {"eps", numbers_.eps},
            {"weight_decay", numbers_.weight_decay},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  std::string_view momentum_name() const override { return "beta1"; }
};

}  // namespace

void RAdam::add_group(std::vector<Tensor> params, const RAdamOptions& o) {
  append_group(std::move(params),
               std::make_unique<RadamRule>(
                   kernels::RadamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.maximize}),
               CommonOptions::of(o));
}

}  // namespace mixtape::optim
