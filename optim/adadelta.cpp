// Adadelta's options and state; its arithmetic is the kernel's.
#include "optim/adadelta.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class AdadeltaRule : public KernelRule<kernels::AdadeltaRule, kernels::adadelta> {
 public:
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

std::unique_ptr<Rule> make_rule(const AdadeltaOptions& o) {
  return std::make_unique<AdadeltaRule>(
      kernels::AdadeltaRule{o.lr, o.rho, o.eps, o.weight_decay, o.maximize});
}

}  // namespace mixtape::optim
