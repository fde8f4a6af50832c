#include "core/named_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace mixtape {

Tensor NamedTensors::at(std::string_view name) const {
  const auto found = std::ranges::find(*this, name, &value_type::first);
  if (found != end()) return found->second;
  std::vector<std::string_view> names;
  for (const auto& [known, tensor] : *this) names.push_back(known);
  raise(fmt::format("no tensor is named \"{}\", only: {}", name, fmt::join(names, ", ")));
}

}  // namespace mixtape
