#pragma once
// Optimizer: groups of parameters, each with its own options; one kernel call per group updates its
// parameters. The kernel reads from device memory whether to skip the step and what multiplies the
// gradients, so a step never waits for the device.

#include <array>
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "optim/algorithm.h"
#include "optim/state.h"

namespace mixtape::optim {

class Sharing;  // optim/sharing.h

class Optimizer {
 public:
  virtual ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&& other) noexcept;

  virtual std::string_view name() const = 0;  // as optim::get() takes it
  uint64_t id() const { return id_; }         // unique in this process; a move keeps it

  // Updates every parameter that has a gradient; the others keep their state. If `skip` is set,
  // nothing changes at all. Throws Error if a gradient does not fit its parameter.
  void step(const StepControl& control = {});
  // Warns if there are no gradients, and of parameters that never get one, as step() does.
  void warn_of_idle() const;
  // The part of a parameter that a step of an element needs.
  Reads reads(size_t group) const { return at(group).algorithm->reads(); }
  // Converts a state or master of a parameter, which has a number for each `block` of elements.
  using StateOf = std::function<Tensor(size_t parameter, const Tensor& state, int64_t block)>;
  // Replaces params(), in order, by other tensors (their pieces, or the wholes of pieces), and
  // states and masters by what `of` makes of each, which may be none.
  void replace_params(const std::vector<Tensor>& params, const StateOf& of);
  std::shared_ptr<Sharing> sharing() const;  // null unless processes divide its parameters
  void zero_grad(bool set_to_none = true);   // drops the gradients, or fills them with zeros

  size_t groups() const;  // throws Error if moved from, as all access to groups does
  // True if 16-bit parameters have f32 masters.
  bool multi_precision(size_t group) const { return at(group).common().multi_precision; }
  // The rounding of 16-bit parameters without masters.
  Rounding rounding(size_t group) const { return at(group).common().rounding; }
  // Sets these options in all groups, from the next step on.
  void set_multi_precision(bool on, bool flat_master = false);
  // For each of params(), the f32 weight that the next step reads: the master or, under Kahan, the
  // sum of parameter and compensation. No tensor if the parameter itself is all there is.
  std::vector<Tensor> masters();
  // Sets these, where there is a tensor and the optimizer keeps such. A parameter counts instead
  // where they do not round to it. Throws Error if numbers or shapes differ.
  void set_masters(const std::vector<Tensor>& values);
  void set_shadow(std::optional<DType> dtype);  // f32: none; throws Error for f64
  // The factor by which a step multiplies gradients.
  double rescale_grad(size_t group) const { return at(group).common().rescale_grad; }
  std::vector<Tensor> params() const;              // of all groups, in order
  std::vector<Tensor> params(size_t group) const;  // of one

  double lr(size_t group = 0) const { return option("lr", group); }  // the option "lr"
  void set_lr(double lr);                                            // of all groups
  // Sets the rate of one group. Throws Error if it is out of range.
  void set_lr(double lr, size_t group) { set_option("lr", lr, group); }
  // The rate from which a schedule starts: lr(), or the rate before an earlier schedule changed it.
  double base_lr(size_t group = 0) const;
  // An option of the optimizer, or maximize, by name; flags are 0 or 1, "beta1" is betas' first.
  // Throws Error if there is no such option, or if the value is out of range.
  double option(std::string_view name, size_t group = 0) const;
  void set_option(std::string_view name, double value, size_t group = 0);
  bool has_option(std::string_view name, size_t group = 0) const;
  // The name of the option that acts as momentum: "momentum", "beta1", or "" if there is none.
  std::string_view momentum_name(size_t group = 0) const;

  // "state.3.exp_avg" and so on for the parameters that have state, then "group.0.lr" and the other
  // options (f64), and "group.0.base_lr" if a schedule has set the rate. 8-bit states are u8 codes,
  // with "state.3.exp_avg.i8_scale" or ".f8_scale". State tensors are not copied; loading copies
  // them, and converts other storage formats. If names or shapes do not fit, loading throws Error
  // and changes nothing. A flag that the dict lacks, since it was saved before there was one, gets
  // its default.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 protected:
  Optimizer();
  // Throws Error unless all params are new dense float leaves (perhaps frozen) and options in
  // range.
  void append_group(std::vector<Tensor> params, std::unique_ptr<Algorithm> algorithm);
  CommonOptions first_common() const;  // of the first group, or the defaults before there is one

 private:
  struct Slot {
    Tensor param;
    // The algorithm's buffers and the count of steps, made at the first gradient.
    std::array<Tensor, kernels::Update::max_states> state = {}, scale = {};
    Tensor steps = {};
    Tensor master = {};                 // f32, of an f16 or bf16 parameter
    Tensor compensation = {};           // Kahan's, of the parameter's dtype
    uint64_t storage = 0, version = 0;  // of param when master was last written to it
    bool agrees = false;  // during a step: param agreed with its master or shadow before it
    bool is_untouched() const {
      return storage == param.storage()->id() && version == param.version();
    }
  };
  struct Group {
    std::shared_ptr<Algorithm> algorithm;
    std::vector<Slot> slots;
    std::optional<double> schedule_base = {};  // where the schedule that set the rate started
    CommonOptions& common() const { return algorithm->common; }
    bool keeps_shadow(const Slot& s) const;
    bool is_elsewhere(const Tensor& p) const;  // true if another process has all of it
    bool rounds(const Tensor& p) const {
      return common().rounding != Rounding::Nearest && is_half(p.dtype());
    }
    // (low_memory.cpp)
    StateFormat format_for(const Tensor& p, const State& state) const;
    DType state_dtype(const Tensor& p, const State& state) const {
      return common().is_low() ? low_state_dtype(p, state) : accumulate_dtype(p.dtype());
    }
    DType low_state_dtype(const Tensor& p, const State& state) const;
    bool needs_steps(const Tensor& p, const States& states) const {
      return uses_any(states) || (rounds(p) && common().rounding == Rounding::Stochastic);
    }
    void make_state(Slot& slot, size_t k, const State& state) const;
    void load_state(Slot& slot, size_t k, StateReader& reader, const std::string& key,
                    const State& info) const;
    bool describe(const Slot& slot, size_t index, kernels::LowMemory& low) const;
  };
  // f(index over all groups, slot, group)
  template <class F>
  void each_slot(F f) const {
    size_t index = 0;
    for (const Group& group : groups_)
      for (const Slot& slot : group.slots) f(index++, slot, group);
  }
  friend class Schedule;
  friend class OptimizerRef;
  void set_scheduled_lr(double lr, double base, size_t group);
  const Group& at(size_t group) const;  // throws Error if there is none
  Options options(size_t group) const { return at(group).algorithm->options(); }
  void require_groups() const;  // throws Error if they were moved to another optimizer
  static void follow(Slot& slot);
  static void follow_compensation(Slot& slot);
  static void make_buffers(Slot& slot, const Group& group, const States& states);
  void prepare(Slot& slot, size_t index, const Group& group);
  void prepare_half(Slot& slot, const Group& group);
  void prepare_step(const StepControl& control);
  void update(Group& group, size_t index, const StepControl& control);
  void update_by_norms(const Group& group, const std::vector<Tensor>& params, Sharing& sharing,
                       StepControl control);
  void warn_of_scale(const Tensor& p, DType of_grad) const;
  static void flatten_masters(Group& group);
  Slot load_slot(StateReader& reader, size_t index, const Slot& slot, const Group& group) const;
  void exchange_options(std::vector<double>& numbers);
  void take_shadows_back() const;
  void take_place(Optimizer& other) noexcept;
  static uint64_t next_id();
  uint64_t id_ = next_id();
  // Where this optimizer is, for those who refer to it: null once it is gone.
  std::shared_ptr<Optimizer*> place_ = std::make_shared<Optimizer*>(this);
  std::vector<Group> groups_;
  std::vector<kernels::Update> updates_;  // of one kernel call; a member to keep its capacity
  const void* stepped_by_ = nullptr;      // the schedule that stepped last
  friend class Averaged;
  std::weak_ptr<const void> averaged_;  // alive while an Averaged is
};

// A reference to an optimizer, which may move. Throws Error on use once the optimizer is gone.
class OptimizerRef {
 public:
  explicit OptimizerRef(Optimizer& optimizer);  // refers to it, wherever it moves
  Optimizer& operator*() const;
  Optimizer* operator->() const { return &**this; }
  bool is(const Optimizer& optimizer) const {  // true for this very object
    return *place_ == &optimizer;
  }

 private:
  std::shared_ptr<Optimizer*> place_;
};

// The optimizer of a struct O, of kernels/common/optimizers.h or the user's own.
template <class O>
class OptimizerOf : public Optimizer {
 public:
  using Options = O;

  // Throws Error if a parameter cannot be optimized or an option is out of range.
  explicit OptimizerOf(std::vector<Tensor> params, const O& options = {},
                       const CommonOptions& common = {}) {
    add_group(std::move(params), options, common);
  }
  // The first options of PyTorch's without their names: the rate, and SGD's momentum, or betas.
  OptimizerOf(std::vector<Tensor> params, std::convertible_to<double> auto lr)
      : OptimizerOf(std::move(params), with_lr(double(lr))) {}
  OptimizerOf(std::vector<Tensor> params, std::convertible_to<double> auto lr,
              std::convertible_to<double> auto momentum)
    requires std::same_as<O, kernels::SGD>
      : OptimizerOf(std::move(params), O{double(lr), double(momentum)}) {}
  OptimizerOf(std::vector<Tensor> params, std::convertible_to<double> auto lr, const Betas& betas)
    requires requires(O o) { O{o.lr, o.betas}; }
      : OptimizerOf(std::move(params), O{double(lr), betas}) {}
  // Without `common`, the common options are those of the first group.
  void add_group(std::vector<Tensor> params, const O& options) {
    add_group(std::move(params), options, first_common());
  }
  void add_group(std::vector<Tensor> params, const O& options, const CommonOptions& common) {
    append_group(std::move(params), std::make_unique<AlgorithmOf<O>>(options, common));
  }
  std::string_view name() const override { return O::name; }

 private:
  static O with_lr(double lr) {
    O options;
    options.lr = lr;
    return options;
  }
};

// Loads torch's optimizer.state_dict(), flattened to names: "state.0.exp_avg", with parameters
// counted over all groups, and "param_groups.0.lr". Given `names`, PyTorch's names of params() in
// order, names may stand for numbers, as in "state.layer.weight.exp_avg" and
// "param_groups.layer.weight.lr" (torch.distributed.checkpoint with flatten_optimizer_state_dict).
// "betas" is one tensor of two numbers, or "betas.0" and "betas.1", and "initial_lr" the rate from
// which the next schedule starts. Missing options stay as they are; options that only PyTorch has
// ("foreach", "params") are ignored. If anything else does not fit, such as AdamW's decay in Adam,
// or if parameters of a group have different options, throws Error and changes nothing.
void load_torch_state_dict(Optimizer& optimizer, const StateDict& dict,
                           const std::vector<std::string>& names = {});

}  // namespace mixtape::optim
