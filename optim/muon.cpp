// Muon's options and state; its arithmetic is the kernel's.
#include "optim/muon.h"

#include "core/check.h"
#include "core/format.h"
#include "kernels/kernels.h"

namespace mixtape::optim {
namespace {

class MuonRule : public KernelRule<kernels::MuonRule, kernels::muon> {
 public:
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

std::unique_ptr<Rule> make_rule(const MuonOptions& o) {
  return std::make_unique<MuonRule>(kernels::MuonRule{o.lr, o.momentum, o.eps, o.weight_decay,
                                                      o.nesterov, o.match_adam, o.maximize});
}

void Muon::add_group(std::vector<Tensor> params, const AdamWOptions& o) {
  append_group(std::move(params), make_rule(o), CommonOptions::of(o));
}

}  // namespace mixtape::optim
