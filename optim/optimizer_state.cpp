// The pieces of an optimizer, its options by name, and its state dict: state by parameter, options
// by group.
#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "kernels/kernels.h"
#include "optim/optimizer.h"
#include "optim/sharing.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
namespace {

std::string state_prefix(size_t index) { return fmt::format("state.{}.", index); }
std::string option_name(size_t group, std::string_view option) {
  return fmt::format("group.{}.{}", group, option);
}

}  // namespace

std::shared_ptr<Sharing> Optimizer::sharing() const {
  for (const Group& group : groups_)
    for (const Slot& slot : group.slots)
      if (auto sharing = sharing_of(slot.param)) return sharing;
  return {};
}

void Optimizer::replace_params(const std::vector<Tensor>& params, const StateOf& of) {
  require_groups();
  check(params.size() == this->params().size(), "{} tensors for {} parameters", params.size(),
        this->params().size());
  take_shadows_back();
  size_t index = 0;
  for (Group& group : groups_)
    for (Slot& slot : group.slots) {
      for (Tensor& scale : slot.scale)
        if (scale) scale = of(index, scale, kernels::code_block);
      for (Tensor& state : slot.state)
        if (state) state = of(index, state, 1);
      for (Tensor* const t : {&slot.master, &slot.compensation})
        if (*t) *t = of(index, *t, 1);
      slot.param = params[index++];
    }
}

StateDict Optimizer::state_dict() const {
  StateDict dict;
  each_slot([&](size_t index, const Slot& slot, const Group& group) {
    const std::string prefix = state_prefix(index);
    const States states = group.algorithm->states(slot.param.shape());
    if (slot.steps && group.needs_steps(slot.param, states))
      dict.emplace_back(prefix + "step", slot.steps);
    for (size_t k = 0; k < states.size(); ++k) {
      if (!states[k].used || !slot.state[k]) continue;
      const std::string key = prefix + std::string(states[k].name);
      dict.emplace_back(key, slot.state[k]);
      if (slot.scale[k])
        dict.emplace_back(fmt::format("{}.{}_scale", key, group.common().state.name()),
                          slot.scale[k]);
    }
    if (slot.compensation && is_half(slot.param.dtype()))
      dict.emplace_back(prefix + "compensation", slot.compensation);
    // A parameter converted to f32 keeps its master, unused.
    if (slot.master && is_half(slot.param.dtype()))
      dict.emplace_back(prefix + "master", slot.master);
  });
  for (size_t g = 0; g < groups(); ++g) {
    for (const Option& option : options(g))
      dict.emplace_back(option_name(g, option.name), from_number(option.get()));
    if (groups_[g].schedule_base)
      dict.emplace_back(option_name(g, "base_lr"), from_number(base_lr(g)));
  }
  return dict;
}

Optimizer::Slot Optimizer::load_slot(StateReader& reader, size_t index, const Slot& slot,
                                     const Group& group) const {
  const Tensor& p = slot.param;
  const std::string prefix = state_prefix(index), step = prefix + "step";
  const States states = group.algorithm->states(p.shape());
  Slot loaded{p};
  if (group.needs_steps(p, states)) loaded.steps = reader.copy_of(step, {}, f32, p.device());
  for (size_t k = 0; k < states.size(); ++k) {
    if (!states[k].used) continue;
    const std::string key = prefix + std::string(states[k].name);
    group.load_state(loaded, k, reader, key, states[k]);
    check(bool(loaded.steps) == bool(loaded.state[k]), "{} is there, but {} is missing",
          loaded.steps ? step : key, loaded.steps ? key : step);
  }
  if (group.common().multi_precision || !is_half(p.dtype()))
    loaded.master = reader.copy_of(prefix + "master", p.shape(), f32, p.device());
  if (group.rounds(p) && group.common().rounding == Rounding::Kahan)
    loaded.compensation = reader.copy_of(prefix + "compensation", p.shape(), p.dtype(), p.device());
  return loaded;  // the next step checks that the master rounds to the parameter
}

void Optimizer::load_state_dict(const StateDict& dict) {
  const Scope scope(name());
  StateReader reader(dict);
  std::vector<double> numbers;
  std::vector<std::optional<double>> bases;
  for (size_t g = 0; g < groups(); ++g) {
    for (const Option& option : options(g)) {
      const std::string key = option_name(g, option.name);
      const bool is_newer = option.flag && !reader.find(key);  // than the dict
      numbers.push_back(is_newer ? at(g).algorithm->default_of(option.name) : reader.number(key));
      detail::check_value(option, numbers.back());
    }
    const std::string base = option_name(g, "base_lr");
    bases.emplace_back();
    if (!has_option("lr", g) || !reader.find(base)) continue;
    bases[g] = reader.number(base);
    check(*bases[g] >= 0, "{} must be >= 0, got {}", base, *bases[g]);
  }
  std::vector<Slot> slots;
  exchange_options(numbers);  // the states depend on them
  try {
    for (size_t g = 0; g < groups(); ++g) at(g).algorithm->check_options();
    each_slot([&](size_t index, const Slot& slot, const Group& group) {
      slots.push_back(load_slot(reader, index, slot, group));
    });
    reader.check_all_read();
  } catch (...) {
    exchange_options(numbers);
    throw;
  }
  size_t index = 0;
  for (Group& group : groups_)
    for (Slot& slot : group.slots) slot = std::move(slots[index++]);
  for (size_t g = 0; g < groups(); ++g) groups_[g].schedule_base = bases[g];
}

void Optimizer::exchange_options(std::vector<double>& numbers) {
  auto number = numbers.begin();
  for (size_t g = 0; g < groups(); ++g) {
    for (const Option& option : options(g)) {
      const double before = option.get();
      option.set(*number);
      *number++ = before;
    }
  }
}

void Optimizer::set_lr(double lr) {
  for (size_t g = 0; g < groups(); ++g) set_lr(lr, g);
}

double Optimizer::base_lr(size_t group) const {
  return at(group).schedule_base.value_or(lr(group));
}

void Optimizer::set_scheduled_lr(double lr, double base, size_t group) {
  set_lr(lr, group);
  groups_[group].schedule_base = base;
}

double Optimizer::option(std::string_view name, size_t group) const {
  return detail::find_option(options(group), name, this->name()).get();
}

bool Optimizer::has_option(std::string_view name, size_t group) const {
  return std::ranges::any_of(options(group), [&](const Option& o) { return o.name == name; });
}

void Optimizer::set_option(std::string_view name, double value, size_t group) {
  const Option option = detail::find_option(options(group), name, this->name());
  const double before = option.get();
  detail::check_value(option, value);
  option.set(value);
  try {
    at(group).algorithm->check_options();
  } catch (...) {
    option.set(before);
    throw;
  }
  if (name == "lr") groups_[group].schedule_base.reset();
  // Makes newly needed buffers at once, so that a state saved before the next step is complete.
  for (Slot& slot : groups_[group].slots)
    if (slot.steps) make_buffers(slot, at(group), at(group).algorithm->states(slot.param.shape()));
}

std::string_view Optimizer::momentum_name(size_t group) const {
  for (const std::string_view name : {"momentum", "beta1"})
    if (has_option(name, group)) return name;
  return {};
}

}  // namespace mixtape::optim
