#pragma once
// The schedules: rates that decay by a factor, follow half a cosine, or are composed of others.
// Names and values are those of torch.optim.lr_scheduler.

#include <concepts>
#include <functional>
#include <optional>
#include <vector>

#include "optim/schedule.h"

namespace mixtape::optim {

// base_lr factor, then base_lr from total_steps on: torch's ConstantLR
struct ConstantOptions {
  static constexpr std::string_view name = "constant";
  double factor = 1.0 / 3;
  int64_t total_steps = 5;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Constant = ClosedForm<ConstantOptions>;

// base_lr gamma^floor(step / step_size)
struct StepLrOptions {
  static constexpr std::string_view name = "step_lr";
  int64_t step_size = 0;
  double gamma = 0.1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using StepLr = ClosedForm<StepLrOptions>;

// base_lr gamma^n, where n is the number of milestones reached
struct MultiStepOptions {
  static constexpr std::string_view name = "multi_step";
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using MultiStep = ClosedForm<MultiStepOptions>;

// base_lr gamma^step
struct ExponentialOptions {
  static constexpr std::string_view name = "exponential";
  double gamma = 0;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Exponential = ClosedForm<ExponentialOptions>;

// base_lr times a factor that goes linearly from start_factor to end_factor in total_steps: torch's
// LinearLR
struct LinearWarmupOptions {
  static constexpr std::string_view name = "linear_warmup";
  double start_factor = 1.0 / 3, end_factor = 1;
  int64_t total_steps = 5;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using LinearWarmup = ClosedForm<LinearWarmupOptions>;

// base_lr (1 - step / total_steps)^power, then 0
struct PolynomialOptions {
  static constexpr std::string_view name = "polynomial";
  int64_t total_steps = 5;
  double power = 1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Polynomial = ClosedForm<PolynomialOptions>;

// base_lr factor(step)
struct LambdaOptions {
  static constexpr std::string_view name = "lambda";
  std::function<double(int64_t step)> factor = {};

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Lambda = ClosedForm<LambdaOptions>;

// base_lr factor(1) factor(2) ... factor(step): torch's MultiplicativeLR
struct MultiplicativeOptions {
  static constexpr std::string_view name = "multiplicative";
  std::function<double(int64_t step)> factor = {};

  void validate() const;
  double rate(int64_t step, double base_lr) const;  // calls factor `step` times
};
using Multiplicative = ClosedForm<MultiplicativeOptions>;

// The fall of the rate: as 1 - sqrt(part) (Haegele et al. 2024, arXiv 2405.18392),
// linearly, or along half a cosine.
enum class Decay { Sqrt, Linear, Cosine };
// Rises linearly to base_lr, stays there, and falls to min_lr in the last decay_steps.
struct WarmupStableDecayOptions {
  static constexpr std::string_view name = "warmup_stable_decay";
  int64_t warmup_steps = 0, total_steps = 0, decay_steps = 0;
  double min_lr = 0;
  Decay decay = Decay::Sqrt;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using WarmupStableDecay = ClosedForm<WarmupStableDecayOptions>;

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

// Cosine with restarts, each cycle `factor` times as long as the last: torch's
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
  OneCycle(Optimizer& optimizer, double max_lr, std::integral auto total_steps)
      : OneCycle(optimizer, OneCycleOptions{max_lr, int64_t(total_steps)}) {}
  std::string_view name() const override { return "one_cycle"; }
  double at(int64_t step, size_t group = 0) const override;
  double momentum_at(int64_t step) const;  // after `step` steps, of all groups

 protected:
  void apply(int64_t step) override;

 private:
  double max_lr(size_t group) const { return options_.max_lr.value_or(base_lr(group)); }
  double between(int64_t step, double start, double peak, double end) const;

  const OneCycleOptions options_;
};

// The heights of triangles: all the same, each half the previous one, or times gamma^step.
enum class Cycle { Triangular, Halving, Decaying };
struct CyclicOptions {
  double max_lr = 0;                        // the peak of all groups; each starts at its own rate
  int64_t steps_up = 2000, steps_down = 0;  // 0: as many as up
  Cycle cycle = Cycle::Triangular;
  double gamma = 1;            // of Cycle::Decaying
  bool cycle_momentum = true;  // momentum (or beta1) falls while the rate rises, and back
  double base_momentum = 0.8, max_momentum = 0.9;
};

// Rises to max_lr and falls back, again and again (Smith 2015): torch's CyclicLR.
class Cyclic : public Schedule {
 public:
  // Throws Error if options are out of range, or if there is no momentum to cycle.
  Cyclic(Optimizer& optimizer, const CyclicOptions& options);
  std::string_view name() const override { return "cyclic"; }
  double at(int64_t step, size_t group = 0) const override;
  double momentum_at(int64_t step) const;  // after `step` steps, of all groups

 protected:
  void apply(int64_t step) override;

 private:
  double height(int64_t step) const;  // 0 to 1

  const CyclicOptions options_;
};

// The checked options of a ClosedForm, for use as a part of another schedule:
//   optim::Sequential schedule(opt, {.parts = {optim::LinearWarmupOptions{.total_steps = 100},
//                                              optim::CosineOptions{.total_steps = 900}},
//                                    .milestones = {100}});
class Curve {
 public:
  // Throws Error if options are out of range.
  template <class Options>
    requires requires(const Options& o) {
      { o.rate(int64_t{}, 1.0) } -> std::same_as<double>;
    }
  Curve(const Options& options)
      : rate_([options](int64_t step, double base_lr) { return options.rate(step, base_lr); }) {
    const internal::Scope scope(Options::name);
    options.validate();
  }
  // Those of a schedule, which itself must not step as well.
  template <class Options>
  Curve(const ClosedForm<Options>& schedule) : Curve(schedule.options()) {}
  // The rate after `step` steps of a group that began with base_lr.
  double rate(int64_t step, double base_lr) const { return rate_(step, base_lr); }

 private:
  std::function<double(int64_t, double)> rate_;
};

// Part 0 until the first milestone, then part 1 from its step 0, and so on: torch's SequentialLR.
struct SequentialOptions {
  static constexpr std::string_view name = "sequential";
  std::vector<Curve> parts = {};
  std::vector<int64_t> milestones = {};  // one fewer than parts, ascending

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
struct Sequential : ClosedForm<SequentialOptions> {
  using ClosedForm::ClosedForm;
  // As in PyTorch: SequentialLR(opt, {warm, cosine}, {100}), of options or schedules.
  Sequential(Optimizer& optimizer, const std::vector<Curve>& parts,
             const std::vector<int64_t>& milestones)
      : ClosedForm(optimizer, SequentialOptions{parts, milestones}) {}
};

// Each part starts from the rate of the part before it, so factors multiply: torch's
// ChainedScheduler.
struct ChainedOptions {
  static constexpr std::string_view name = "chained";
  std::vector<Curve> parts = {};

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Chained = ClosedForm<ChainedOptions>;

// PyTorch's names. Options are those above: StepLR(opt, {.step_size = 30, .gamma = 0.1}), and
// CosineAnnealingLR(opt, {.total_steps = T_max, .min_lr = eta_min}).
using ConstantLR = Constant;
using StepLR = StepLr;
using MultiStepLR = MultiStep;
using ExponentialLR = Exponential;
using LinearLR = LinearWarmup;
using PolynomialLR = Polynomial;
using LambdaLR = Lambda;
using MultiplicativeLR = Multiplicative;
using CosineAnnealingLR = Cosine;
using CosineAnnealingWarmRestarts = CosineRestarts;
using OneCycleLR = OneCycle;
using CyclicLR = Cyclic;
using SequentialLR = Sequential;
using ChainedScheduler = Chained;

}  // namespace mixtape::optim
