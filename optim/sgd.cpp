// SGD's options and state; its arithmetic is the kernel's.
#include "optim/sgd.h"

#include "core/check.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class SgdRule : public KernelRule<kernels::SgdRule, kernels::sgd> {
 public:
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"momentum", numbers_.momentum},
            {"dampening", numbers_.dampening, Option::Range::Any},
            {"weight_decay", numbers_.weight_decay},
            {"nesterov", numbers_.nesterov},
            {"maximize", numbers_.maximize}};
  }
  void check_options() const override {
    check(!numbers_.nesterov || (numbers_.momentum > 0 && numbers_.dampening == 0),
          "nesterov needs momentum and no dampening, not {} and {}", numbers_.momentum,
          numbers_.dampening);
  }
  States states() const override { return {{"momentum_buffer", numbers_.momentum != 0}}; }
  std::string_view momentum_name() const override { return "momentum"; }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const SGDOptions& o) {
  return std::make_unique<SgdRule>(
      kernels::SgdRule{o.lr, o.momentum, o.dampening, o.weight_decay, o.nesterov, o.maximize});
}

}  // namespace mixtape::optim
