#include "core/state_dict.h"

#include <algorithm>

#include "core/check.h"
#include "core/format.h"

namespace mixtape {

Tensor StateDict::at(std::string_view name) const {
  const auto found = std::ranges::find(*this, name, &value_type::first);
  if (found != end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, t] : *this) names.push_back(known);
  fail("no tensor is named \"{}\", only: {}", name, internal::listed(names, 20));
}

bool StateDict::contains(std::string_view name) const {
  return std::ranges::find(*this, name, &value_type::first) != end();
}

void StateDict::add(std::string_view prefix, const StateDict& from) {
  for (const auto& [name, t] : from) emplace_back(std::string(prefix) + name, t);
}

StateDict StateDict::under(std::string_view prefix) const {
  StateDict found;
  for (const auto& [name, t] : *this)
    if (name.starts_with(prefix)) found.emplace_back(name.substr(prefix.size()), t);
  return found;
}

}  // namespace mixtape
