#pragma once
// Learning-rate schedules: closed forms in the number of steps taken, which set the rate of every
// group of an optimizer.

#include <concepts>
#include <cstdint>

#include "optim/optimizer.h"

namespace mixtape::optim {

// Refers to its optimizer, which must stay where it is.
class Schedule {
 public:
  virtual ~Schedule() = default;

  // The learning rate after `step` steps.
  virtual double at(int64_t step, size_t group = 0) const = 0;

  // After each step of the optimizer. Given the result of that step, advances only if it happened.
  void step() { go_to(steps_ + 1); }
  template <class R>
  requires std::constructible_from<bool, const R&>
  void step(const R& stepped) {
    if (static_cast<bool>(stepped)) step();
  }
  int64_t steps() const { return steps_; }
  double lr(size_t group = 0) const { return optimizer_->lr(group); }

  // "step", and "group.0.base_lr" and so on: the rates that the optimizer began with.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);  // throws Error if names or shapes do not fit

 protected:
  explicit Schedule(Optimizer& optimizer);
  virtual void apply(int64_t step);  // sets the optimizer's options
  double base_lr(size_t group) const { return base_lr_[group]; }
  Optimizer& optimizer() const { return *optimizer_; }

 private:
  void go_to(int64_t step);

  Optimizer* optimizer_;
  std::vector<double> base_lr_;
  int64_t steps_ = 0;
};

enum class Anneal { Cosine, Linear };

struct OneCycleOptions {
  double max_lr = 0;
  int64_t total_steps = 0;
  double pct_start = 0.3;         // part of the steps in which the rate rises
  double div_factor = 25;         // begins at max_lr / div_factor
  double final_div_factor = 1e4;  // ends at max_lr / div_factor / final_div_factor
  Anneal anneal = Anneal::Cosine;
  bool cycle_momentum = true;  // momentum (or beta1) falls while the rate rises, and back
  double base_momentum = 0.85, max_momentum = 0.95;
};

// Up to max_lr and down to almost nothing (Smith & Topin 2018), as torch's OneCycleLR does it. The
// last rate is that of step total_steps - 1; to step beyond total_steps throws Error.
class OneCycle : public Schedule {
 public:
  OneCycle(Optimizer& optimizer, const OneCycleOptions& options);
  double at(int64_t step, size_t group = 0) const override;
  double momentum_at(int64_t step) const;

 protected:
  void apply(int64_t step) override;

 private:
  double between(int64_t step, double start, double peak, double end) const;

  const OneCycleOptions options_;
};

struct CosineOptions {
  int64_t total_steps = 0;
  double min_lr = 0;
};

// min_lr + (base_lr - min_lr) (1 + cos(pi step / total_steps)) / 2 (Loshchilov & Hutter 2017), the
// closed form of torch's CosineAnnealingLR. Beyond total_steps the rate rises again.
class Cosine : public Schedule {
 public:
  Cosine(Optimizer& optimizer, const CosineOptions& options);
  double at(int64_t step, size_t group = 0) const override;

 private:
  const CosineOptions options_;
};

}  // namespace mixtape::optim
