#pragma once
// Optimizer: groups of parameters, each with options of its own, that one kernel call per group
// moves along their gradients. Whether a step happens, and what multiplies the gradients, is read
// by the kernel from device memory, so a step never waits for the device.

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/inline_vector.h"
#include "core/tensor.h"
#include "kernels/kernels.h"

namespace mixtape::optim {

// {.skip, .grad_scale}: f32 tensors of one element on the parameters' device, or none.
using kernels::StepControl;
using StateDict = std::vector<std::pair<std::string, Tensor>>;

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;

  virtual std::string_view name() const = 0;

  // Updates every parameter that has a gradient; the others keep their state as it is. With `skip`
  // set nothing changes at all. Throws Error if a gradient does not fit its parameter.
  void step(const StepControl& control = {});
  // Drops the gradients, or fills them with zeros where they are.
  void zero_grad(bool set_to_none = true);

  size_t groups() const { return groups_.size(); }
  // Whether narrow parameters of the group are updated through f32 copies.
  bool multi_precision(size_t group) const { return groups_[group].multi_precision; }
  std::vector<Tensor> params() const;  // of all groups, in order
  std::vector<Tensor> params(size_t group) const;

  double lr(size_t group = 0) const { return option("lr", group); }
  void set_lr(double lr);  // of all groups
  void set_lr(double lr, size_t group) { set_option("lr", lr, group); }
  // Any number among the options by name. Throws Error if there is none, or if the value is not
  // allowed.
  double option(std::string_view name, size_t group = 0) const;
  void set_option(std::string_view name, double value, size_t group = 0);
  // What is to a heavy ball its momentum: "momentum" or "beta1".
  virtual std::string_view momentum_name() const = 0;

  // "state.3.exp_avg" and so on for the parameters that have state, then "group.0.lr" and the other
  // numbers among the options (f64). State tensors are the live ones; loading copies. Loading
  // throws Error, and changes nothing, if names or shapes do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 protected:
  using Options = InlineVector<std::pair<std::string_view, double*>, 6>;

  Optimizer() = default;
  // Throws Error unless all are float tensors that want a gradient, dense, new here, on one device.
  void append_group(std::vector<Tensor> params, bool multi_precision);

  virtual Options options(size_t group) = 0;
  virtual void check_options(size_t group) const = 0;
  virtual std::span<const std::string_view> state_names() const = 0;  // at most two
  virtual bool has_state(size_t group) const = 0;
  virtual void update(size_t group, kernels::Launch& launch,
                      std::span<const kernels::Update> updates, const StepControl& control) = 0;

 private:
  struct Slot {
    Tensor param;
    Tensor state[2] = {}, steps = {};  // made at the first gradient
    Tensor master = {};                // f32, where a narrow parameter has one
    uint64_t version = 0;              // of param when master was last written to it
  };
  struct Group {
    std::vector<Slot> slots;
    bool multi_precision;
  };
  // f(index over all groups, slot, group)
  template <class F>
  void each_slot(F f) const;
  void prepare(Slot& slot, size_t index, size_t group);
  kernels::Update update_of(const Slot& slot, const Tensor& grad) const;
  void exchange_options(std::vector<double>& numbers);

  std::vector<Group> groups_;
  std::vector<kernels::Update> updates_;  // of one group; kept so that a step allocates nothing
};

}  // namespace mixtape::optim
