// What all optimizers share: who is updated, where state lives, how it is saved.
#include "optim/optimizer.h"

#include <algorithm>
#include <array>

#include "core/check.h"
#include "core/format.h"
#include "core/op.h"
#include "optim/clip.h"

namespace mixtape::optim {
namespace {

DType wide(DType t) { return t == f64 ? f64 : f32; }

Tensor zeros(const Shape& shape, DType dtype, Device device) {
  Tensor t(shape, dtype, device);
  kernels::Launch launch(device);
  kernels::fill(launch, 0, t);
  return t;
}

// A dense copy in another dtype or place.
Tensor copy(const Tensor& x, DType dtype, Device device) {
  const Tensor here = x.device() == device ? x : x.to(device);
  Tensor t(x.shape(), dtype, device);
  kernels::Launch launch(device);
  kernels::convert(launch, here, t);
  return t;
}

// Hands out the tensors of a dict by name, and knows which nobody asked for.
class Reader {
 public:
  explicit Reader(const StateDict& dict) : dict_(dict), read_(dict.size()) {}

  const Tensor* find(std::string_view name) {
    const auto entry = std::ranges::find(dict_, name, &StateDict::value_type::first);
    if (entry == dict_.end()) return nullptr;
    read_[static_cast<size_t>(entry - dict_.begin())] = true;
    check(static_cast<bool>(entry->second), "{} is no tensor", name);
    return &entry->second;
  }
  // A copy of a float tensor of this shape, or no tensor.
  Tensor copy_of(const std::string& name, const Shape& shape, DType dtype, Device device) {
    const Tensor* const t = find(name);
    if (!t) return {};
    check(is_float(t->dtype()), "{} is {}, not a float", name, t->dtype());
    check(t->shape() == shape, "{} has shape {}, not {}", name, t->shape(), shape);
    return copy(*t, dtype, device);
  }
  void check_all_read() const {
    for (size_t i = 0; i < dict_.size(); ++i)
      check(read_[i], "'{}' belongs to no parameter or option here", dict_[i].first);
  }

 private:
  const StateDict& dict_;
  std::vector<bool> read_;
};

std::string state_prefix(size_t index) { return fmt::format("state.{}.", index); }
std::string option_name(size_t group, std::string_view option) {
  return fmt::format("group.{}.{}", group, option);
}

void check_control(const View& v, std::string_view what) {
  check(!v || (v.dtype == f32 && v.size() == 1), "{} is {} {}, not one f32", what, v.dtype,
        v.shape());
}

}  // namespace

template <class F>
void Optimizer::each_slot(F f) const {
  size_t index = 0;
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots) f(index++, slot, group);
}

void Optimizer::append_group(std::vector<Tensor> params, bool multi_precision) {
  check(!params.empty(), "no parameters to optimize");
  std::vector<Tensor> known = this->params();
  Group group{{}, multi_precision};
  for (Tensor& p : params) {
    const size_t index = known.size();
    check(static_cast<bool>(p), "parameter {} is no tensor", index);
    check(is_float(p.dtype()), "parameter {} is {}, not a float", index, p.dtype());
    check(p.is_leaf(),
          "parameter {} of shape {} does not require a gradient, or is the result of an op", index,
          p.shape());
    check(p.is_contiguous(), "parameter {} of shape {} has strides {}, but is updated as dense",
          index, p.shape(), p.strides());
    check(p.device() == params[0].device(), "parameter {} is on {}, others of its group on {}",
          index, p.device(), params[0].device());
    for (size_t i = 0; i < known.size(); ++i)
      check(!p.is_same(known[i]), "parameter {} of shape {} is also parameter {}", index, p.shape(),
            i);
    known.push_back(p);
    group.slots.push_back({p});
  }
  groups_.push_back(std::move(group));
}

std::vector<Tensor> Optimizer::params() const {
  std::vector<Tensor> all;
  each_slot([&](size_t, const Slot& slot, const Group&) { all.push_back(slot.param); });
  return all;
}

std::vector<Tensor> Optimizer::params(size_t group) const {
  check(group < groups(), "group {} of {}", group, groups());
  std::vector<Tensor> all;
  for (const Slot& slot : groups_[group].slots) all.push_back(slot.param);
  return all;
}

// Makes state that is missing. A master copy is read again after anyone else wrote the parameter.
void Optimizer::prepare(Slot& slot, size_t index, size_t group) {
  const Tensor& p = slot.param;
  const DType dtype = wide(p.dtype());
  if (has_state(group) && !slot.steps) {
    for (size_t k = 0; k < state_names().size(); ++k)
      slot.state[k] = zeros(p.shape(), dtype, p.device());
    slot.steps = zeros({}, f32, p.device());
  }
  if (slot.steps) {
    const Tensor& s = slot.state[0];
    check(s.dtype() == dtype && s.device() == p.device(),
          "parameter {} is now {} on {}, but its state is {} on {}: make a new optimizer after "
          "moving a model",
          index, p.dtype(), p.device(), s.dtype(), s.device());
  }
  if (groups_[group].multi_precision && is_narrow(p.dtype()) &&
      (!slot.master || slot.version != p.version()))
    slot.master = copy(p, f32, p.device());
}

kernels::Update Optimizer::update_of(const Slot& slot, const Tensor& grad) const {
  kernels::Update u;
  const bool uses_master = slot.master && is_narrow(slot.param.dtype());
  u.param = uses_master ? slot.master : slot.param;
  if (uses_master) u.shadow = slot.param;
  u.grad = grad;
  if (!slot.steps) return u;
  for (size_t k = 0; k < state_names().size(); ++k) u.state[k] = slot.state[k];
  u.steps = slot.steps;
  return u;
}

void Optimizer::step(const StepControl& control) {
  const Scope scope(name());
  check_control(control.skip, "skip");
  check_control(control.grad_scale, "grad_scale");
  size_t index = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    updates_.clear();
    const Device device = groups_[g].slots[0].param.device();
    for (Slot& slot : groups_[g].slots) {
      const Tensor& p = slot.param;
      const size_t i = index++;
      const Tensor grad = dense_grad(p);
      if (!grad) continue;
      check(grad.shape() == p.shape(), "the gradient of parameter {} has shape {}, not {}", i,
            grad.shape(), p.shape());
      check(is_float(grad.dtype()), "the gradient of parameter {} is {}, not a float", i,
            grad.dtype());
      check(p.is_contiguous(), "parameter {} has become strided: {} of {}", i, p.strides(),
            p.shape());
      check(p.device() == device, "parameter {} is on {}, others of its group on {}", i, p.device(),
            device);
      check(grad.device() == p.device(), "the gradient of parameter {} is on {}, not {}", i,
            grad.device(), p.device());
      prepare(slot, i, g);
      updates_.push_back(update_of(slot, grad));
    }
    if (updates_.empty()) continue;
    kernels::Launch launch(device);
    update(g, launch, updates_, control);
    for (const Slot& slot : groups_[g].slots)
      if (slot.param.grad()) slot.param.storage()->bump_version();
  }
  for (Group& group : groups_)
    for (Slot& slot : group.slots)
      if (slot.param.grad()) slot.version = slot.param.version();
}

void Optimizer::zero_grad(bool set_to_none) {
  each_slot([&](size_t, const Slot& slot, const Group&) {
    const Tensor g = slot.param.grad();
    if (set_to_none || !g) return slot.param.set_grad({});
    kernels::Launch launch(g.device());
    kernels::fill(launch, 0, g);
    g.storage()->bump_version();
  });
}

void Optimizer::set_lr(double lr) {
  for (size_t g = 0; g < groups(); ++g) set_lr(lr, g);
}

double Optimizer::option(std::string_view name, size_t group) const {
  check(group < groups(), "group {} of {}", group, groups());
  std::string known;
  for (const auto& [key, value] : const_cast<Optimizer*>(this)->options(group)) {  // only read
    if (key == name) return *value;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", key);
  }
  fail("no option '{}' in {}, which has {}", name, this->name(), known);
}

void Optimizer::set_option(std::string_view name, double value, size_t group) {
  const double before = option(name, group);
  for (const auto& [key, slot] : options(group)) {
    if (key != name) continue;
    *slot = value;
    try {
      check_options(group);
    } catch (...) {
      *slot = before;
      throw;
    }
  }
}

StateDict Optimizer::state_dict() const {
  StateDict dict;
  each_slot([&](size_t index, const Slot& slot, const Group&) {
    const std::string prefix = state_prefix(index);
    if (slot.steps) {
      dict.emplace_back(prefix + "step", slot.steps);
      for (size_t k = 0; k < state_names().size(); ++k)
        dict.emplace_back(prefix + std::string(state_names()[k]), slot.state[k]);
    }
    if (slot.master) dict.emplace_back(prefix + "master", slot.master);
  });
  for (size_t g = 0; g < groups(); ++g)
    for (const auto& [key, value] : const_cast<Optimizer*>(this)->options(g))  // only read
      dict.emplace_back(option_name(g, key), from({*value}, {}, f64));
  return dict;
}

void Optimizer::load_state_dict(const StateDict& dict) {
  const Scope scope(name());
  Reader reader(dict);
  std::vector<Slot> slots;
  each_slot([&](size_t index, const Slot& slot, const Group&) {
    const Tensor& p = slot.param;
    const std::string step = state_prefix(index) + "step";
    Slot loaded{p};
    loaded.steps = reader.copy_of(step, {}, f32, p.device());
    for (size_t k = 0; k < state_names().size(); ++k) {
      const std::string key = state_prefix(index) + std::string(state_names()[k]);
      loaded.state[k] = reader.copy_of(key, p.shape(), wide(p.dtype()), p.device());
      check(!loaded.steps || loaded.state[k], "{} is there, but {} is missing", step, key);
      check(loaded.steps || !loaded.state[k], "{} is there, but {} is missing", key, step);
    }
    loaded.master = reader.copy_of(state_prefix(index) + "master", p.shape(), f32, p.device());
    loaded.version = p.version();
    slots.push_back(std::move(loaded));
  });
  std::vector<double> numbers;
  for (size_t g = 0; g < groups(); ++g) {
    for (const auto& [key, value] : options(g)) {
      const Tensor* const t = reader.find(option_name(g, key));
      check(t != nullptr, "{} is missing", option_name(g, key));
      numbers.push_back(t->item());
    }
  }
  reader.check_all_read();

  exchange_options(numbers);
  try {
    for (size_t g = 0; g < groups(); ++g) check_options(g);
  } catch (...) {
    exchange_options(numbers);
    throw;
  }
  size_t index = 0;
  for (Group& group : groups_)
    for (Slot& slot : group.slots) slot = std::move(slots[index++]);
}

void Optimizer::exchange_options(std::vector<double>& numbers) {
  auto number = numbers.begin();
  for (size_t g = 0; g < groups(); ++g)
    for (const auto& [key, value] : options(g)) std::swap(*value, *number++);
}

}  // namespace mixtape::optim
