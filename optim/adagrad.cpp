// Adagrad's options and state; its arithmetic is the kernel's.
#include "optim/adagrad.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class AdagradRule : public KernelRule<kernels::AdagradRule, kernels::adagrad> {
 public:
  AdagradRule(const kernels::AdagradRule& numbers, double initial)
      : KernelRule(numbers), initial_(initial) {}
  Options options() override {
    return {{"lr", numbers_.lr},
            {"lr_decay", numbers_.lr_decay},
            {"weight_decay", numbers_.weight_decay},
            {"initial_accumulator_value", initial_},
            {"eps", numbers_.eps},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"sum", true, initial_}}; }

 private:
  double initial_;
};

}  // namespace

std::unique_ptr<Rule> make_rule(const AdagradOptions& o) {
  return std::make_unique<AdagradRule>(
      kernels::AdagradRule{o.lr, o.lr_decay, o.eps, o.weight_decay, o.maximize},
      o.initial_accumulator_value);
}

}  // namespace mixtape::optim
