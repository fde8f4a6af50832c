#pragma once
// Optimizer: groups of parameters, each with options of its own, that one kernel call per group
// moves along their gradients. Whether a step happens, and what multiplies the gradients, is read
// by the kernel from device memory, so a step never waits for the device.

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "optim/rule.h"
#include "optim/state.h"

namespace mixtape::optim {

// Options that every optimizer has, beside those of its rule.
struct CommonOptions {
  // Keeps an f32 copy, the master, of each f16 or bf16 parameter, updates that, and rounds it.
  bool multi_precision = false;
  bool flat_master = false;  // the masters of a group lie in one vector
  // f16 or bf16: keeps a copy in this dtype of each f32 parameter, which Autocast takes for its
  // cast. It is made at the first step.
  std::optional<DType> shadow = {};
  double rescale_grad = 1;  // multiplies the gradients

  template <class Options>
  static CommonOptions of(const Options& o) {
    return {o.multi_precision, o.flat_master, o.shadow, o.rescale_grad};
  }
};

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&& other) noexcept;

  virtual std::string_view name() const = 0;
  // Of no other optimizer of this process; it moves along.
  uint64_t id() const { return id_; }

  // Updates every parameter that has a gradient; the others keep their state as it is. With `skip`
  // set nothing changes at all. Throws Error if a gradient does not fit its parameter.
  void step(const StepControl& control = {});
  // Drops the gradients, or fills them with zeros where they are.
  void zero_grad(bool set_to_none = true);

  size_t groups() const;  // throws Error if it was moved from, as whatever reads a group
  // Whether narrow parameters of the group are updated through f32 copies.
  bool multi_precision(size_t group) const { return at(group).options.multi_precision; }
  // From the next step on, in all groups, as the options of the same names say.
  void set_multi_precision(bool on, bool flat_master = false);
  // Of each of params() the master as the next step would read it, or no tensor.
  std::vector<Tensor> masters();
  void set_shadow(std::optional<DType> dtype);  // f32 is none; throws Error if it is wider
  double rescale_grad(size_t group) const { return at(group).options.rescale_grad; }
  std::vector<Tensor> params() const;  // of all groups, in order
  std::vector<Tensor> params(size_t group) const;

  double lr(size_t group = 0) const { return option("lr", group); }
  void set_lr(double lr);  // of all groups
  void set_lr(double lr, size_t group) { set_option("lr", lr, group); }
  // Any number or flag (0 or 1) among the options by name. Throws Error if there is none, or if the
  // value is not allowed.
  double option(std::string_view name, size_t group = 0) const;
  void set_option(std::string_view name, double value, size_t group = 0);
  bool has_option(std::string_view name, size_t group = 0) const;
  // What is to a heavy ball its momentum: "momentum", "beta1", or "" if there is nothing like it.
  std::string_view momentum_name(size_t group = 0) const;

  // "state.3.exp_avg" and so on for the parameters that have state, then "group.0.lr" and the other
  // options (f64). State tensors are the live ones; loading copies. Loading throws Error, and
  // changes nothing, if names or shapes do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 protected:
  Optimizer() = default;
  // Throws Error unless all are float tensors that no recorded op made, dense and new here, and the
  // rule's options are in range. (Those that are frozen may be thawed.)
  void append_group(std::vector<Tensor> params, std::unique_ptr<Rule> rule,
                    const CommonOptions& options = {});

 private:
  struct Slot {
    Tensor param;
    // The rule's buffers and the count of steps, made at the first gradient.
    std::array<Tensor, kernels::Update::max_states> state = {};
    Tensor steps = {};
    Tensor master = {};                 // f32, where a narrow parameter has one
    uint64_t storage = 0, version = 0;  // of param when master was last written to it
    bool agrees = false;  // during a step: whether param and its master or shadow did before it
    bool is_untouched() const {
      return storage == param.storage()->id() && version == param.version();
    }
  };
  struct Group {
    std::unique_ptr<Rule> rule;
    std::vector<Slot> slots;
    CommonOptions options;
    bool keeps_shadow(const Slot& s) const { return options.shadow && s.param.dtype() == f32; }
  };
  // f(index over all groups, slot, group)
  template <class F>
  void each_slot(F f) const {
    size_t index = 0;
    for (const Group& group : groups_)
      for (const Slot& slot : group.slots) f(index++, slot, group);
  }
  const Group& at(size_t group) const;  // throws Error if there is no such group
  Rule& rule(size_t group) const { return *at(group).rule; }
  void require_groups() const;  // throws Error if another optimizer has them now
  static void follow(Slot& slot);
  static void make_buffers(Slot& slot, const States& states);
  void prepare(Slot& slot, size_t index, const Group& group);
  void prepare_narrow(Slot& slot, const Group& group);
  void warn_of_scale(const Tensor& p, DType of_grad) const;
  static void flatten_masters(Group& group);
  Slot load_slot(StateReader& reader, size_t index, const Slot& slot, const Group& group) const;
  void exchange_options(std::vector<double>& numbers);

  void take_shadows_back() const;
  static uint64_t next_id();

  uint64_t id_ = next_id();
  std::vector<Group> groups_;
  std::vector<kernels::Update> updates_;  // of one kernel; its room is kept from step to step
};

// The optimizer that goes by the rule of its options, which have a `name` and the common ones:
//   std::unique_ptr<Rule> make_rule(const SGDOptions& options);
//   using SGD = OptimizerOf<SGDOptions>;
template <class Options>
class OptimizerOf : public Optimizer {
 public:
  // Throws Error if a parameter cannot be optimized, or an option is out of range.
  explicit OptimizerOf(std::vector<Tensor> params, const Options& options = {}) {
    add_group(std::move(params), options);
  }
  void add_group(std::vector<Tensor> params, const Options& options) {
    append_group(std::move(params), make_rule(options), CommonOptions::of(options));
  }
  std::string_view name() const override { return Options::name; }
};

}  // namespace mixtape::optim
