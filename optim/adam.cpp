// Adam's options and state; its arithmetic is the kernel's.
#include "optim/adam.h"

#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class AdamRule : public KernelRule<kernels::AdamRule, kernels::adam> {
 public:
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"beta1", numbers_.beta1, Option::Range::Fraction},
            {"beta2", numbers_.beta2, Option::Range::Fraction},
            {"eps", numbers_.eps},
            {"weight_decay", numbers_.weight_decay},
            {"amsgrad", numbers_.amsgrad},
            {"maximize", numbers_.maximize}};
  }
  States states() const override {
    return {{"exp_avg"}, {"exp_avg_sq"}, {"max_exp_avg_sq", numbers_.amsgrad}};
  }
  std::string_view momentum_name() const override { return "beta1"; }
};

template <class O>
std::unique_ptr<Rule> make_rule(const O& o, bool decoupled) {
  return std::make_unique<AdamRule>(kernels::AdamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                                      o.amsgrad, decoupled, o.maximize});
}

}  // namespace

std::unique_ptr<Rule> adam_rule(const AdamOptions& o) { return make_rule(o, false); }
std::unique_ptr<Rule> adam_rule(const AdamWOptions& o) { return make_rule(o, true); }

void Adam::add_group(std::vector<Tensor> params, const AdamOptions& o) {
  append_group(std::move(params), adam_rule(o), CommonOptions::of(o));
}
void AdamW::add_group(std::vector<Tensor> params, const AdamWOptions& o) {
  append_group(std::move(params), adam_rule(o), CommonOptions::of(o));
}

}  // namespace mixtape::optim
