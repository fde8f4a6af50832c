// The parts that all optimizers share: checks, buffers, masters and shadows.
#include "optim/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "autograd/autograd_meta.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/common/elementwise.h"
#include "kernels/kernels.h"
#include "optim/clip.h"
#include "optim/sharing.h"

namespace mixtape::optim {
using namespace internal;
namespace {

void check_control(const View& v, std::string_view what, bool may_be_f64 = false) {
  const bool fits = v.dtype == f32 || (may_be_f64 && v.dtype == f64);
  check(!v || (fits && v.size() == 1), "{} must be one f32{}, got {} {}", what,
        may_be_f64 ? " or f64" : "", v.dtype, v.shape());
}

void check_gradient(const Tensor& grad, const Tensor& p, size_t index) {
  check(grad.shape() == p.shape(), "the gradient of parameter {} must have shape {}, got {}", index,
        p.shape(), grad.shape());
  check(is_float(grad.dtype()), "the gradient of parameter {} must be a float tensor, got {}",
        index, grad.dtype());
  check(grad.device() == p.device(), "the gradient of parameter {} must be on {}, got {}", index,
        p.device(), grad.device());
}

// The dtype of shadows. f32 means none, so that a program can pass any dtype.
std::optional<DType> shadow_dtype(std::optional<DType> asked) {
  check(!asked || is_half(*asked) || asked == f32, "shadow must be f16, bf16 or f32, got {}",
        asked.value_or(f32));
  return asked == f32 ? std::nullopt : asked;
}

void warn_of_forgotten() {
  const auto forgotten = mixtape::detail::take_forgotten();
  if (forgotten.empty()) return;
  std::vector<std::string> all;
  for (const auto& [t, module] : forgotten)
    all.push_back(fmt::format("{} {}{}", t.dtype(), t.shape(),
                              module && !module->empty() ? " in " + *module : ""));
  warn(fmt::format(
      "gradients reach parameters that no optimizer has, and that no module listed before it was "
      "made: {}. They are not trained: list the fields that hold them in MIXTAPE_FIELDS, also "
      "vectors, give layers that were added later to add_group(), or freeze them",
      internal::listed(all, 4)));
}

}  // namespace

void detail::check_value(const Option& option, double value) {
  const std::string_view name = option.name;
  if (option.flag) return check(value == 0 || value == 1, "{} must be 0 or 1, got {}", name, value);
  using kernels::Bounds;
  const Bounds bounds = option.bounds;
  check(!std::isnan(value) || bounds != Bounds::Any, "{} must be a number, got {}", name, value);
  check((0 <= value && value < 1) || bounds != Bounds::Below1, "{} must be in [0, 1), got {}", name,
        value);
  check(value >= 0 || bounds == Bounds::Any, "{} must be >= 0, got {}", name, value);
  check(std::isfinite(value) || bounds == Bounds::Limit || bounds == Bounds::Any,
        "{} must be finite, got {}", name, value);
}

Option detail::find_option(const Options& options, std::string_view name, std::string_view of) {
  std::string known;
  for (const Option& option : options) {
    if (option.name == name) return option;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", option.name);
  }
  fail("no option '{}' in {}, which has {}", name, of, known);
}

void Algorithm::run_kernel(Device device, kernels::AnyOptimizer optimizer, size_t bytes,
                           Updates updates, const StepControl& control) const {
  const auto fixed = [](const Algorithm& a) {
    std::vector<double> all{a.common.rescale_grad, double(a.common.maximize)};
    for (const State& state : a.states({})) all.push_back(state.used);
    return all;
  };
  if (GraphState* const graph = capture()) {
    const auto copy = [=, this, then = fixed(*this)](void* to) {
      check(fixed(*this) == then,
            "rescale_grad, maximize and the buffers that options ask for cannot change between "
            "replays");
      std::memcpy(to, optimizer.options, bytes);
    };
    optimizer.place = graph->number(bytes, copy);
  }
  kernels::optimizer_step(device, optimizer, updates, control);
}

void Algorithm::round_copies(Device device, Updates updates) {
  for (const kernels::Update& u : updates)
    if (u.shadow) kernels::convert(device, u.param, u.shadow);
}

Options Algorithm::options() {
  Options all = own_options();
  all.push_back({"maximize", common.maximize});
  return all;
}

void Algorithm::check_options() const {
  for (const kernels::Requirement& r : requirements())
    check(r.holds, "{}, got {} and {}", r.text, r.first, r.second);
}

uint64_t Optimizer::next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}
Optimizer::Optimizer() = default;
Optimizer::Optimizer(Optimizer&& other) noexcept : Optimizer() { *this = std::move(other); }
Optimizer::~Optimizer() {
  take_shadows_back();
  *place_ = nullptr;
}

Optimizer& Optimizer::operator=(Optimizer&& other) noexcept {
  if (this == &other) return *this;
  take_shadows_back();
  id_ = other.id_;
  groups_ = std::exchange(other.groups_, {});
  stepped_by_ = other.stepped_by_;
  averaged_ = std::move(other.averaged_);
  take_place(other);
  return *this;
}

// Leaves `other` the place that this optimizer had, to which nothing refers any more.
void Optimizer::take_place(Optimizer& other) noexcept {
  place_.swap(other.place_);
  *place_ = this;
  *other.place_ = &other;
}

OptimizerRef::OptimizerRef(Optimizer& optimizer) : place_(optimizer.place_) {}

Optimizer& OptimizerRef::operator*() const {
  check(*place_ != nullptr,
        "the optimizer is gone: it must live as long as its schedules and Shards");
  return **place_;
}

void Optimizer::take_shadows_back() const {
  each_slot([](size_t, const Slot& slot, const Group& group) {
    if (group.common().shadow) slot.param.set_shadow({});
  });
}

void Optimizer::set_multi_precision(bool on, bool flat_master) {
  require_groups();
  check(on || !flat_master, "flat_master without multi_precision: there are no masters to flatten");
  for (const Group& group : groups_) {
    CommonOptions wanted = group.common();
    wanted.multi_precision = on;
    wanted.check_rounding();
  }
  for (Group& group : groups_) {
    group.common().multi_precision = on;
    group.common().flat_master = flat_master;
    if (!on)
      for (Slot& slot : group.slots) slot.master = {};
  }
}

void Optimizer::set_shadow(std::optional<DType> dtype) {
  require_groups();
  dtype = shadow_dtype(dtype);
  for (Group& group : groups_) {
    group.common().shadow = dtype;
    if (!dtype)
      for (const Slot& slot : group.slots) slot.param.set_shadow({});
  }
}

void Optimizer::append_group(std::vector<Tensor> params, std::unique_ptr<Algorithm> algorithm) {
  const Scope scope(name());
  CommonOptions& common = algorithm->common;
  check(!common.flat_master || common.multi_precision,
        "flat_master is {} and multi_precision {}: without masters there are none to flatten",
        common.flat_master, common.multi_precision);
  common.check_rounding();
  check(std::isfinite(common.rescale_grad), "rescale_grad must be finite, got {}",
        common.rescale_grad);
  for (const Option& option : algorithm->options()) detail::check_value(option, option.get());
  algorithm->check_options();
  algorithm->check_state();
  check(!params.empty(), "no parameters to optimize");
  check(!sharing(), "processes divide the parameters of this optimizer: add groups before Shards");
  std::vector<Tensor> known = groups_.empty() ? std::vector<Tensor>() : this->params();
  common.shadow = shadow_dtype(common.shadow);
  Group group{std::move(algorithm), {}};
  for (Tensor& p : params) {
    const size_t index = known.size();
    check(static_cast<bool>(p), "parameter {} is an undefined tensor", index);
    check(is_float(p.dtype()), "parameter {} must be a float tensor, got {}", index, p.dtype());
    check(!p.grad_fn(), "parameter {} of shape {} must be a leaf, got the result of an op", index,
          p.shape());
    check(p.is_contiguous(), "parameter {} of shape {} must be dense, got strides {}", index,
          p.shape(), p.strides());
    for (size_t i = 0; i < known.size(); ++i)
      check(!p.is_same(known[i]), "parameter {} of shape {} is also parameter {}", index, p.shape(),
            i);
    check(p.rank() >= group.algorithm->min_rank(),
          "parameter {} of shape {} is not a matrix: add it to a group of AdamWOptions", index,
          p.shape());
    known.push_back(p);
    group.slots.push_back({p});
  }
  groups_.push_back(std::move(group));
  for (const Tensor& p : params) mixtape::detail::mark_listed(p, AutogradMeta::Listing::Trained);
}

CommonOptions Optimizer::first_common() const {
  return groups_.empty() ? CommonOptions() : groups_[0].common();
}

std::vector<Tensor> Optimizer::params() const {
  require_groups();
  std::vector<Tensor> all;
  each_slot([&](size_t, const Slot& slot, const Group&) { all.push_back(slot.param); });
  return all;
}

// A piece needs none, since the program reads the whole parameter.
bool Optimizer::Group::keeps_shadow(const Slot& s) const {
  return common().shadow && s.param.dtype() == f32 && !sharing_of(s.param);
}

std::vector<Tensor> Optimizer::params(size_t group) const {
  std::vector<Tensor> all;
  for (const Slot& slot : at(group).slots) all.push_back(slot.param);
  return all;
}

// Moves state to its parameter's device. If the parameter was written since the last step, the
// master takes the new values except where it rounds to them: the model may only have moved.
void Optimizer::follow(Slot& slot) {
  const Tensor& p = slot.param;
  const auto move = [&](Tensor& t) {
    if (t && t.device() != p.device()) t = dense_copy(t, t.dtype(), p.device());
  };
  for (Tensor& state : slot.state) move(state);
  for (Tensor& scale : slot.scale) move(scale);
  move(slot.steps);
  move(slot.master);
  if (slot.compensation) {
    move(slot.compensation);
    follow_compensation(slot);
  }
  if (slot.agrees || !slot.master || !is_half(p.dtype())) return;
  const Tensor rounded = dense_copy(slot.master, p.dtype(), p.device());
  const Tensor written = dense_copy(p, f32, p.device()), same(p.shape(), boolean, p.device());
  constexpr int equal = kernels::index_in<kernels::Equal>(kernels::BinaryOps{});
  kernels::binary(p.device(), equal, rounded, p, same);
  kernels::where(p.device(), same, slot.master, written, slot.master);
  slot.agrees = true;
}

void Optimizer::make_buffers(Slot& slot, const Group& group, const States& states) {
  for (size_t k = 0; k < states.size(); ++k)
    if (states[k].used && !slot.state[k]) group.make_state(slot, k, states[k]);
}

// Makes missing state and drops state that the options no longer need.
void Optimizer::prepare(Slot& slot, size_t index, const Group& group) {
  const Tensor& p = slot.param;
  const States states = group.algorithm->states(p.shape());
  make_buffers(slot, group, states);
  for (size_t k = 0; k < states.size(); ++k) {
    Tensor& buffer = slot.state[k];
    if (!states[k].used)
      buffer = slot.scale[k] = {};
    else
      check(buffer.dtype() == group.state_dtype(p, states[k]),
            "parameter {} is now {}, but its state is {}: make a new optimizer after converting a "
            "model",
            index, p.dtype(), buffer.dtype());
  }
  if (!group.needs_steps(p, states))
    slot.steps = {};
  else if (!slot.steps)
    slot.steps = filled({}, 0, f32, p.device());
  prepare_half(slot, group);
}

// Warns if gradients are scaled and this step keeps them so, or are f16 and never were scaled.
void Optimizer::warn_of_scale(const Tensor& p, DType of_grad) const {
  const LossScaleTag scale = p.autograd_meta().loss_scale();
  if (scale.number)
    warn(fmt::format(
        "{}: the gradients are still multiplied by the loss scale, and the step is too long by "
        "that factor: use scaler.step(optimizer), or scaler.unscale(optimizer) before",
        name()));
  else if (scale.unscaled && of_grad == f16)
    warn(fmt::format(
        "{}: f16 gradients of a loss that was not scaled: small ones become zero. Use a "
        "GradScaler, a loss with a weight and its inverse as rescale_grad, or bf16.",
        name()));
}

void Optimizer::warn_of_idle() const {
  bool has_grads = false, has_zeros = false, requires_grads = false;
  const auto warn_of = [&](size_t index, const Tensor& p, std::string_view what) {
    warn(fmt::format("{}: parameter {} of shape {} {}", name(), index, p.shape(), what));
  };
  each_slot([&](size_t index, const Slot& slot, const Group&) {
    const Tensor& p = slot.param;
    requires_grads = requires_grads || p.requires_grad();
    if (p.has_grad() && p.autograd_meta().loss_scale().zeroed)
      has_zeros = true;
    else if (p.has_grad())
      has_grads = true;
    else if (p.is_unique())
      warn_of(index, p,
              "has no gradient, and only the optimizer holds it. If its layer was replaced, make "
              "the optimizer after that");
    else if (!p.requires_grad() && p.autograd_meta().listing == AutogradMeta::Listing::Plain)
      warn_of(index, p,
              "is not trained, since nn::parameter() did not make it. (For constants there is "
              "nn::Buffer, and a layer's weight takes values by copy_().)");
  });
  if (!has_grads)
    warn(fmt::format(
        "{}: a step {}", name(),
        has_zeros ? "along the zeros of zero_grad(), which belongs before backward()"
        : requires_grads
            ? "without gradients changes nothing: call backward() before, on a loss of these very "
              "parameters"
            : "without gradients changes nothing: all parameters are frozen"));
}

void Optimizer::step(const StepControl& control) {
  const Scope scope(name());
  require_groups();
  check(averaged_.expired(), "a step while averages stand in for the parameters");
  warn_of_forgotten();
  const std::shared_ptr<Sharing> sharing = this->sharing();
  if (!sharing) warn_of_idle();
  check_control(control.skip, "skip");
  check_control(control.grad_scale, "grad_scale", /*may_be_f64=*/true);
  if (sharing) sharing->begin_step();
  // Makes everything before the first write: a step that throws must change nothing, and parameters
  // may share a storage and thereby its version.
  for (Group& group : groups_)
    for (Slot& slot : group.slots) {
      slot.agrees = group.keeps_shadow(slot) ? bool(slot.param.shadow()) : slot.is_untouched();
      follow(slot);
    }
  prepare_step(control);
  size_t index = 0;
  for (Group& group : groups_) {
    update(group, index, control);
    index += group.slots.size();
  }
  if (sharing) sharing->end_step();
  for (Group& group : groups_)
    for (Slot& slot : group.slots) {
      if (!slot.param.has_grad() && !slot.agrees) continue;
      slot.storage = slot.param.storage()->id();
      slot.version = slot.param.version();
      if (group.keeps_shadow(slot)) slot.param.autograd_meta().half.of_version = slot.version;
    }
}

void Optimizer::prepare_step(const StepControl& control) {
  size_t index = 0;
  std::optional<Device> device;  // of the first parameter with a gradient
  for (Group& group : groups_) {
    if (group.common().flat_master) flatten_masters(group);
    for (Slot& slot : group.slots) {
      const Tensor& p = slot.param;
      const size_t i = index++;
      const Tensor grad = dense_grad(p);
      if (!grad || group.is_elsewhere(p)) continue;
      check_gradient(grad, p, i);
      if (!device) device = p.device();
      check(p.device() == *device || !(control.skip || control.grad_scale),
            "parameter {} is on {}, others on {}, where not all can read skip or grad_scale", i,
            p.device(), *device);
      if (!control.grad_scale && group.common().rescale_grad == 1) warn_of_scale(p, grad.dtype());
      check(p.is_contiguous(), "parameter {} has become strided: {} of {}", i, p.strides(),
            p.shape());
      prepare(slot, i, group);
    }
  }
}

// Updates parameters that have gradients: one kernel call for consecutive ones on one device.
void Optimizer::update(Group& group, size_t index, const StepControl& control) {
  StepControl rescaled = control;
  rescaled.rescale *= group.common().rescale_grad * (group.common().maximize ? -1 : 1);
  updates_.clear();
  const bool is_low = group.common().is_low();
  std::vector<kernels::LowMemory> low;  // updates point into it
  if (is_low) low.reserve(group.slots.size());
  // Set if processes have pieces of the parameters and the step needs norms of whole ones.
  const std::shared_ptr<Sharing> sharing =
      group.algorithm->reads() == Reads::Norms ? this->sharing() : nullptr;
  std::vector<Tensor> params;  // of updates_, for that
  Device device;
  const auto run_kernel = [&] {
    if (updates_.empty()) return;
    if (GraphState* const graph = capture()) graph->keep(group.algorithm);  // replays read options
    if (sharing)
      update_by_norms(group, params, *sharing, rescaled);
    else
      group.algorithm->update(device, updates_, rescaled);
    updates_.clear();
    params.clear();
  };
  for (Slot& slot : group.slots) {
    const Tensor& p = slot.param;
    const size_t i = index++;
    if (!p.has_grad() || group.is_elsewhere(p)) continue;
    if (p.device() != device) run_kernel();
    device = p.device();
    if (sharing) params.push_back(p);
    kernels::Update& u = updates_.emplace_back();
    const bool uses_master = slot.master && is_half(p.dtype());
    u.param = to_write(uses_master ? slot.master : p);
    if (uses_master || group.keeps_shadow(slot))
      u.shadow = to_write(uses_master ? p : p.autograd_meta().half.data);
    u.grad = p.autograd_meta().grad;
    for (size_t k = 0; k < slot.state.size(); ++k) u.state[k] = to_write(slot.state[k]);
    u.steps = to_write(slot.steps);
    if (!is_low) continue;
    kernels::LowMemory description;
    if (group.describe(slot, i, description)) u.low = &low.emplace_back(description);
  }
  run_kernel();
  for (const Slot& slot : group.slots)
    if (slot.param.has_grad()) slot.param.storage()->bump_version();
}

void Optimizer::zero_grad(bool set_to_none) {
  require_groups();
  each_slot([&](size_t, const Slot& slot, const Group&) {
    if (set_to_none || !slot.param.has_grad()) return slot.param.set_grad({});
    const Tensor g = slot.param.grad();
    if (g.grad_fn()) slot.param.set_grad(g.detach());  // after create_graph
    g.storage()->begin_write();
    kernels::fill(g.device(), 0, g);
    g.storage()->bump_version();
  });
  each_slot([](size_t, const Slot& slot, const Group&) {  // gradients may share a version
    if (slot.param.has_grad()) slot.param.autograd_meta().set_loss_scale({.zeroed = true});
  });
}

void Optimizer::require_groups() const {
  check(!groups_.empty(), "this {} has no parameters: it was moved from", name());
}

size_t Optimizer::groups() const {
  require_groups();
  return groups_.size();
}

const Optimizer::Group& Optimizer::at(size_t group) const {
  check(group < groups(), "group {} is out of range for {} groups", group, groups());
  return groups_[group];
}

}  // namespace mixtape::optim
