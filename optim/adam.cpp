// Options and states; the arithmetic is the kernels'.
#include "optim/adam.h"

#include "core/check.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

struct AdamRule : MomentsRule<kernels::AdamRule, kernels::adam> {
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

struct NadamRule : MomentsRule<kernels::NadamRule, kernels::nadam> {
  using MomentsRule::MomentsRule;
  Options options() override {
    return moments_and(
        {{"momentum_decay", numbers_.momentum_decay}, {"maximize", numbers_.maximize}});
  }
};

struct RadamRule : MomentsRule<kernels::RadamRule, kernels::radam> {
  using MomentsRule::MomentsRule;
  Options options() override { return moments_and({{"maximize", numbers_.maximize}}); }
};

struct LambRule : MomentsRule<kernels::LambRule, kernels::lamb> {
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

struct LionRule : KernelRule<kernels::LionRule, kernels::lion> {
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"beta1", numbers_.beta1, Option::Range::Fraction},
            {"beta2", numbers_.beta2, Option::Range::Fraction},
            {"weight_decay", numbers_.weight_decay},
            {"maximize", numbers_.maximize}};
  }
  States states() const override { return {{"exp_avg"}}; }
  std::string_view momentum_name() const override { return "beta1"; }
};

struct MuonRule : KernelRule<kernels::MuonRule, kernels::muon> {
  using KernelRule::KernelRule;
  Options options() override {
    return {{"lr", numbers_.lr},
            {"momentum", numbers_.momentum, Option::Range::Fraction},
            {"eps", numbers_.eps},
            {"weight_decay", numbers_.weight_decay},
            {"nesterov", numbers_.nesterov},
            {"match_adam", numbers_.match_adam},
            {"maximize", numbers_.maximize}};
  }
  void check_param(const Tensor& p, size_t index) const override {
    check(p.rank() >= 2, "parameter {} of shape {} is no matrix: add it to a group of AdamWOptions",
          index, p.shape());
  }
  States states() const override { return {{"momentum_buffer"}}; }
  std::string_view momentum_name() const override { return "momentum"; }
};

}  // namespace

std::unique_ptr<Rule> make_rule(const AdamOptions& o) { return rule_of(o, false); }
std::unique_ptr<Rule> make_rule(const AdamWOptions& o) { return rule_of(o, true); }
std::unique_ptr<Rule> make_rule(const NAdamOptions& o) {
  return std::make_unique<NadamRule>(kernels::NadamRule{
      o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.momentum_decay, o.maximize});
}
std::unique_ptr<Rule> make_rule(const RAdamOptions& o) {
  return std::make_unique<RadamRule>(
      kernels::RadamRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.maximize});
}
std::unique_ptr<Rule> make_rule(const LambOptions& o) {
  return std::make_unique<LambRule>(kernels::LambRule{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay,
                                                      o.min_norm, o.max_norm, o.min_trust,
                                                      o.max_trust, o.maximize});
}
std::unique_ptr<Rule> make_rule(const LionOptions& o) {
  return std::make_unique<LionRule>(
      kernels::LionRule{o.lr, o.beta1, o.beta2, o.weight_decay, o.maximize});
}
std::unique_ptr<Rule> make_rule(const MuonOptions& o) {
  return std::make_unique<MuonRule>(kernels::MuonRule{o.lr, o.momentum, o.eps, o.weight_decay,
                                                      o.nesterov, o.match_adam, o.maximize});
}
void Muon::add_group(std::vector<Tensor> params, const AdamWOptions& o) {
  append_group(std::move(params), make_rule(o), CommonOptions::of(o));
}

}  // namespace mixtape::optim
