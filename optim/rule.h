#pragma once
// Rule: how the parameters of a group move. Its options and the buffers that it keeps have names,
// and its kernel takes all parameters in one call. To write an optimizer is to write a rule.

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "core/inline_vector.h"
#include "core/tensor.h"
#include "kernels/common/rules.h"

namespace mixtape::optim {

// {.skip, .grad_scale}: f32 tensors of one element on the parameters' device, or none.
using kernels::StepControl;

// A number or a flag (0 or 1) of a rule, by name.
class Option {
 public:
  enum class Range { FromZero, Fraction, Any };  // [0, inf], [0, 1), all

  Option(std::string_view name, double& number, Range range = Range::FromZero)
      : name_(name), number_(&number), range_(range) {}
  Option(std::string_view name, bool& flag) : name_(name), flag_(&flag) {}

  std::string_view name() const { return name_; }
  double get() const { return flag_ ? *flag_ : *number_; }
  void set(double value) const {
    if (flag_)
      *flag_ = value != 0;
    else
      *number_ = value;
  }
  void check_value(double value) const;  // throws Error if it is out of range

 private:
  std::string_view name_;
  double* number_ = nullptr;
  bool* flag_ = nullptr;
  Range range_ = Range::Any;
};
using Options = InlineVector<Option, 8>;

// A buffer of a parameter's size: whether the rule needs it with its present options, and what it
// begins with.
struct State {
  std::string_view name;
  bool used = true;
  double initial = 0;
};
using States = InlineVector<State, kernels::Update::max_states>;
inline bool uses_any(const States& states) {
  return std::any_of(states.begin(), states.end(), [](const State& s) { return s.used; });
}

class Rule {
 public:
  virtual ~Rule() = default;

  virtual Options options() = 0;
  // Throws Error if options in range do not go together.
  virtual void check_options() const {}
  // Throws Error if it cannot move this parameter; `index` is for the message.
  virtual void check_param(const Tensor& param, size_t index) const { (void)param, (void)index; }
  // In the order of Update::state.
  virtual States states() const = 0;
  // Which option is to a heavy ball its momentum: "momentum", "beta1" or none.
  virtual std::string_view momentum_name() const { return {}; }
  virtual void update(Device device, kernels::Updates updates,
                      const StepControl& control) const = 0;
};

// A rule that is one kernel and its numbers.
template <class Numbers, const auto& kernel>
class KernelRule : public Rule {
 public:
  explicit KernelRule(const Numbers& numbers) : numbers_(numbers) {}
  void update(Device device, kernels::Updates updates, const StepControl& control) const override {
    kernel(device, updates, numbers_, control);
  }

 protected:
  Numbers numbers_;
};

// One that keeps running means of the gradient and of its square.
template <class Numbers, const auto& kernel>
class MomentsRule : public KernelRule<Numbers, kernel> {
 public:
  using KernelRule<Numbers, kernel>::KernelRule;
  States states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }
  std::string_view momentum_name() const override { return "beta1"; }

 protected:
  using KernelRule<Numbers, kernel>::numbers_;
  // What all of these have, and then others.
  Options moments_and(std::initializer_list<Option> others) {
    Options all{{"lr", numbers_.lr},
                {"beta1", numbers_.beta1, Option::Range::Fraction},
                {"beta2", numbers_.beta2, Option::Range::Fraction},
                {"eps", numbers_.eps},
                {"weight_decay", numbers_.weight_decay}};
    for (const Option& o : others) all.push_back(o);
    return all;
  }
};

}  // namespace mixtape::optim
