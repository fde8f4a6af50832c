// The translation of PyTorch's names into ours.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/check.h"
#include "core/format.h"
#include "core/parse.h"
#include "core/scope.h"
#include "optim/optimizer.h"

namespace mixtape::optim {
using namespace internal;
namespace {

class Translation {
 public:
  Translation(const Optimizer& optimizer, const std::vector<std::string>& names)
      : optimizer_(optimizer), names_(names) {
    for (size_t g = 0; g < optimizer.groups(); ++g)
      groups_.insert(groups_.end(), optimizer.params(g).size(), g);
    has_buffer_.resize(groups_.size());
    has_step_.resize(groups_.size());
    check(names.empty() || names.size() == groups_.size(),
          "{} parameters need as many names, got {}", groups_.size(), names.size());
    for (const auto& [key, value] : optimizer.state_dict())
      if (key.starts_with("group.") && !key.ends_with(".base_lr")) ours_[key] = value;
  }

  // name: "ID.field", of a parameter
  void add_state(std::string_view name, const Tensor& value) {
    const auto [index, field, named] = split(name, groups_.size(), "parameter");
    if (field == "mu_product" && optimizer_.has_option("momentum_decay", groups_[index]))
      return;  // NAdam computes it from the steps
    if ((field == "eta" || field == "mu") && optimizer_.has_option("t0", groups_[index]))
      return;  // and ASGD these
    if (field == "momentum_buffer") has_buffer_[index] = true;
    const std::string key = fmt::format("state.{}.{}", index, field);
    if (field != "step") return static_cast<void>(ours_[key] = value);
    has_step_[index] = true;
    ours_[key] = from_number(number(key, value));  // PyTorch counts in several dtypes
  }
  // name: "ID.option", of a group, or of a parameter by name
  void add_option(std::string_view name, const Tensor& value) {
    const auto [index, option, named] = split(name, optimizer_.groups(), "group");
    const size_t group = named ? groups_[index] : index;
    for (const auto& [pair, first, second] : pairs) {
      if (!option.starts_with(pair) || !optimizer_.has_option(first, group)) continue;
      const std::string_view item = option.substr(pair.size());
      if (item.empty()) {
        check(value.numel() == 2, "{} must have shape [2], got {}", pair, value.shape());
        set(group, first, value.at(0));
        return set(group, second, value.at(1));
      }
      if (item == ".0" || item == ".1")
        return set(group, item == ".0" ? first : second, number(option, value));
    }
    if (option == "initial_lr") return set(group, "base_lr", number(option, value));
    if (optimizer_.has_option(option, group) || option == "decoupled_weight_decay")
      set(group, option, number(option, value));
  }
  StateDict result() {
    // SGD and Muon count no steps in PyTorch; a buffer shows that there was a step.
    for (size_t i = 0; i < has_buffer_.size(); ++i)
      if (has_buffer_[i] && !has_step_[i]) ours_[fmt::format("state.{}.step", i)] = from_number(1);
    for (size_t g = 0; g < optimizer_.groups(); ++g) check_decay(g);
    return {ours_.begin(), ours_.end()};
  }

 private:
  // PyTorch's Adam has an option for what AdamW does here.
  void check_decay(size_t group) {
    if (optimizer_.has_option("decoupled_weight_decay", group)) return;
    const auto given = ours_.extract(fmt::format("group.{}.decoupled_weight_decay", group));
    const auto decay = ours_.find(fmt::format("group.{}.weight_decay", group));
    if (given.empty() || decay == ours_.end() || decay->second.item() == 0) return;
    const double wanted = optimizer_.name() != "adam";
    check(given.mapped().item() == wanted,
          "decoupled_weight_decay must be {} for {} with a weight_decay of {}, got {}", wanted,
          optimizer_.name(), decay->second.item(), given.mapped().item());
  }
  // PyTorch's options that are pairs, and the names of both numbers here.
  static constexpr std::string_view pairs[][3] = {{"betas", "beta1", "beta2"},
                                                  {"eps", "eps1", "eps2"},
                                                  {"etas", "eta_minus", "eta_plus"},
                                                  {"step_sizes", "min_step", "max_step"}};
  struct Split {
    size_t index;
    std::string_view field;
    bool named;
  };
  // Splits off the longest parameter name with which it begins, or a number below `count`.
  Split split(std::string_view text, size_t count, const char* what) const {
    const std::string* longest = nullptr;
    for (const std::string& n : names_)
      if (text.starts_with(n) && text.substr(n.size()).starts_with('.'))
        if (!longest || n.size() > longest->size()) longest = &n;
    if (longest)
      return {static_cast<size_t>(longest - names_.data()), text.substr(longest->size() + 1), true};
    const size_t dot = std::min(text.find('.'), text.size());
    const auto index = parse_number<size_t>(text.substr(0, dot));
    check(index && *index < count && dot < text.size(), "'{}' begins with none of {} {}s", text,
          count, what);
    return {*index, text.substr(dot + 1), false};
  }
  static double number(std::string_view name, const Tensor& value) {
    check(value.numel() == 1, "{} must be one number, got shape {}", name, value.shape());
    return value.item();
  }
  void set(size_t group, std::string_view option, double value) {
    const std::string key = fmt::format("group.{}.{}", group, option);
    // (Each parameter of a group gives it.)
    const auto [given, first] = given_.try_emplace(key, value);
    check(first || given->second == value, "{} is {} and {} in one state", key, given->second,
          value);
    ours_[key] = from_number(value);
  }

  const Optimizer& optimizer_;
  const std::vector<std::string>& names_;
  std::vector<size_t> groups_;  // of each parameter
  std::vector<bool> has_buffer_, has_step_;
  std::map<std::string, Tensor> ours_;
  std::map<std::string, double> given_;  // options
};

}  // namespace

void load_torch_state_dict(Optimizer& optimizer, const StateDict& dict,
                           const std::vector<std::string>& names) {
  const Scope scope("load_torch_state_dict");
  Translation translation(optimizer, names);
  for (const auto& [key, value] : dict) {
    check(static_cast<bool>(value), "{} is an undefined tensor", key);
    const std::string_view state = "state.", groups = "param_groups.";
    if (key.starts_with(state))
      translation.add_state(std::string_view(key).substr(state.size()), value);
    else if (key.starts_with(groups))
      translation.add_option(std::string_view(key).substr(groups.size()), value);
    else
      fail("'{}' begins with neither 'state.' nor 'param_groups.'", key);
  }
  optimizer.load_state_dict(translation.result());
}

}  // namespace mixtape::optim
