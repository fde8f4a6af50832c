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
