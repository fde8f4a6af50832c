#include "core/state_dict.h"

#include <fmt/format.h>

#include <algorithm>

namespace mixtape {

Tensor StateDict::at(std::string_view name) const {
  const auto found = std::ranges::find(*this, name, &value_type::first);
  if (found != end()) return found->second;
  constexpr size_t most = 20;
  std::string names;
  for (size_t i = 0; i < std::min(size(), most); ++i)
    names += (i > 0 ? ", " : "") + (*this)[i].first;
  raise(fmt::format("no tensor is named \"{}\", only: {}{}", name, names,
                    size() > most ? fmt::format(" and {} more", size() - most) : ""));
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
