#pragma once
// Learning-rate schedules: closed forms in the step, which set the rate of every group.

#include <concepts>
#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

#include "core/scope.h"
#include "optim/optimizer.h"

namespace mixtape::optim {

// Refers to its optimizer, also after that moved, but may not move itself. Starts from the groups'
// rates as they were set, not as an earlier schedule left them.
class Schedule : NoCopy {
 public:
  virtual ~Schedule() = default;

  virtual std::string_view name() const = 0;  // the "kind" in its state
  // The learning rate after `step` steps.
  virtual double at(int64_t step, size_t group = 0) const = 0;

  // Call it after each optimizer step, or each replay of one. Given the result of that step, it
  // advances only if the step happened. A step that a device decides counts at first and, if it was
  // skipped, is taken back `lag` steps later, so the host hardly ever waits, and every run has the
  // same rates.
  void step() { advance(1, 0); }
  template <StepOutcome R>
  void step(const R& stepped) {
    if constexpr (requires { stepped.is_deferred(); }) {
      if (stepped.is_deferred()) {
        pending_.push_back([result = latest(stepped)] { return static_cast<bool>(result); });
        return advance(1, lag);
      }
    }
    advance(static_cast<bool>(stepped), 0);
  }
  static constexpr size_t lag = 8;
  int64_t steps() const { return steps_; }  // so far, without those known to be skipped
  double lr(size_t group = 0) const { return optimizer_->lr(group); }    // the optimizer's now
  std::vector<double> get_last_lr() const;                               // lr() of every group
  bool refers_to(const Optimizer& o) const { return optimizer_.is(o); }  // this very object

  // "kind" (the name), "step", the initial rates ("group.0.base_lr" and so on), and "coming": the
  // results of the last steps if a device decides them. Saving waits for these. If the kind, names
  // or shapes do not fit, loading throws Error and changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 protected:
  explicit Schedule(Optimizer& optimizer);
  virtual void apply(int64_t step);                  // sets the optimizer's options
  size_t groups() const { return base_lr_.size(); }  // that the optimizer had at the start
  double base_lr(size_t group) const;                // throws Error if there was no such group
  Optimizer& optimizer() const { return *optimizer_; }

 private:
  // The outcome as of now, which a later replay of the step does not change.
  template <class R>
  static R latest(const R& stepped) {
    if constexpr (requires { stepped.latest(); })
      return stepped.latest();
    else
      return stepped;
  }
  // Advances by `by` steps, and takes back skipped ones until at most `most` are pending.
  void advance(int64_t by, size_t most);

  // True if the step happened; they may wait for the device.
  std::vector<std::function<bool()>> pending_;
  OptimizerRef optimizer_;
  std::vector<double> base_lr_;
  int64_t steps_ = 0;
};

namespace detail {

// An option given by position. A number takes the type of the option there, but a fraction is no
// whole number, and only a bool is a flag.
template <class N>
struct NumberByPosition {
  N value;
  template <class T>
    requires(std::is_arithmetic_v<T> && (std::floating_point<T> || std::integral<N>) &&
             std::same_as<T, bool> == std::same_as<N, bool>)
  operator T() const {
    return static_cast<T>(value);
  }
};
template <class Given>
auto by_position(const Given& given) {
  if constexpr (std::is_arithmetic_v<Given>)
    return NumberByPosition<Given>{given};
  else
    return given;
}

}  // namespace detail

// A schedule defined by its options: a struct with a static `name`, `double rate(int64_t step,
// double base_lr) const`, and `void validate() const`, which throws Error if an option is out of
// range.
template <class Options>
class ClosedForm : public Schedule {
 public:
  // Throws Error if options are out of range.
  ClosedForm(Optimizer& optimizer, const Options& options)
      : Schedule(optimizer), options_(options) {
    const internal::Scope scope(Options::name);
    options_.validate();
    Schedule::apply(0);
  }
  // The first options without their names: StepLR(opt, 30, 0.1), MultiStepLR(opt, {30, 80}).
  template <class... First>
    requires requires(const First&... first) { Options{detail::by_position(first)...}; }
  ClosedForm(Optimizer& optimizer, const First&... first)
      : ClosedForm(optimizer, Options{detail::by_position(first)...}) {}
  template <class... More>
    requires requires(std::vector<int64_t> first, const More&... more) {
      Options{first, detail::by_position(more)...};
    }
  ClosedForm(Optimizer& optimizer, const std::vector<int64_t>& first, const More&... more)
      : ClosedForm(optimizer, Options{first, detail::by_position(more)...}) {}
  std::string_view name() const override { return Options::name; }
  const Options& options() const { return options_; }  // as given
  double at(int64_t step, size_t group = 0) const override {
    return options_.rate(step, base_lr(group));
  }

 private:
  const Options options_;
};

}  // namespace mixtape::optim
