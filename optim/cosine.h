#pragma once
// Schedules along half a cosine: Cosine, CosineRestarts, OneCycle.

#include <optional>

#include "optim/schedule.h"

namespace mixtape::optim {

enum class Anneal { Cosine, Linear };

// min_lr + (base_lr - min_lr) (1 + cos(pi step / total_steps)) / 2 (Loshchilov & Hutter 2017), the
// closed form of torch's CosineAnnealingLR. Beyond total_steps the rate rises again.
struct CosineOptions {
  static constexpr std::string_view name = "cosine";
  int64_t total_steps = 0;
  double min_lr = 0;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Cosine = ClosedForm<CosineOptions>;

// Cosine, begun again when it has ended, each time `factor` times as long: torch's
// CosineAnnealingWarmRestarts with T_0 = first_steps and T_mult = factor.
struct CosineRestartsOptions {
  static constexpr std::string_view name = "cosine_restarts";
  int64_t first_steps = 0, factor = 1;
  double min_lr = 0;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using CosineRestarts = ClosedForm<CosineRestartsOptions>;

struct OneCycleOptions {
  std::optional<double> max_lr = {};  // of all groups; none: each group's own rate is its maximum
  int64_t total_steps = 0;
  double pct_start = 0.3;         // fraction of the steps in which the rate rises
  double div_factor = 25;         // begins at max_lr / div_factor
  double final_div_factor = 1e4;  // ends at max_lr / div_factor / final_div_factor
  Anneal anneal = Anneal::Cosine;
  bool cycle_momentum = true;  // momentum (or beta1) falls while the rate rises, and back
  double base_momentum = 0.85, max_momentum = 0.95;
};

// Rises to max_lr and falls to almost nothing (Smith & Topin 2018): torch's OneCycleLR. The last
// rate is that of step total_steps - 1; stepping beyond total_steps throws Error.
class OneCycle : public Schedule {
 public:
  // Throws Error if options are out of range, or if there is no momentum to cycle.
  OneCycle(Optimizer& optimizer, const OneCycleOptions& options);
  std::string_view name() const override { return "one_cycle"; }
  double at(int64_t step, size_t group = 0) const override;
  double momentum_at(int64_t step) const;

 protected:
  void apply(int64_t step) override;

 private:
  double max_lr(size_t group) const { return options_.max_lr.value_or(base_lr(group)); }
  double between(int64_t step, double start, double peak, double end) const;

  const OneCycleOptions options_;
};

}  // namespace mixtape::optim
