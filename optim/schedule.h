#pragma once
// Learning-rate schedules: closed forms in the number of steps taken, which set the rate of every
// group of an optimizer.

#include <concepts>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "optim/optimizer.h"

namespace mixtape::optim {

// Refers to its optimizer, which must stay where it is.
class Schedule {
 public:
  virtual ~Schedule() = default;

  virtual std::string_view name() const = 0;
  // The learning rate after `step` steps.
  virtual double at(int64_t step, size_t group = 0) const = 0;

  // After each step of the optimizer. Given the result of that step, advances only if it happened;
  // one that a device still keeps counts as a step until it has arrived, so nothing waits.
  void step() { go_to(steps_ + 1); }
  template <class R>
  requires std::constructible_from<bool, const R&>
  void step(const R& stepped) {
    if constexpr (requires { stepped.has_arrived(); }) {
      settle();
      if (!stepped.has_arrived()) {
        coming_.push_back({[stepped] { return stepped.has_arrived(); },
                           [stepped] { return static_cast<bool>(stepped); }});
        return step();
      }
    }
    if (static_cast<bool>(stepped)) step();
  }
  int64_t steps() const { return steps_; }
  double lr(size_t group = 0) const { return optimizer_->lr(group); }

  // "kind", which is the name, "step", and "group.0.base_lr" and so on: the rates that the
  // optimizer began with. Saving waits for results that a device still keeps. Loading throws Error
  // if it is another kind's, or if names or shapes do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 protected:
  explicit Schedule(Optimizer& optimizer);
  virtual void apply(int64_t step);  // sets the optimizer's options
  double base_lr(size_t group) const { return base_lr_[group]; }
  Optimizer& optimizer() const { return *optimizer_; }

 private:
  void go_to(int64_t step);
  void settle();  // takes back the steps that did not happen, as far as that is known

  struct Coming {
    std::function<bool()> has_arrived, stepped;
  };
  std::deque<Coming> coming_;
  Optimizer* optimizer_;
  std::vector<double> base_lr_;
  int64_t steps_ = 0;
};

// The schedule that follows from its options alone: they have a static `name`, `double rate(int64_t
// step, double base_lr) const`, and `void validate() const`, which throws Error if they are out of
// range.
template <class Options>
class ClosedForm : public Schedule {
 public:
  ClosedForm(Optimizer& optimizer, const Options& options)
      : Schedule(optimizer), options_(options) {
    options_.validate();
    Schedule::apply(0);
  }
  std::string_view name() const override { return Options::name; }
  double at(int64_t step, size_t group = 0) const override {
    return options_.rate(step, base_lr(group));
  }

 private:
  const Options options_;
};

}  // namespace mixtape::optim
