#pragma once
// StateDict: named tensors in order, as models, optimizers and files exchange them.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct StateDict : std::vector<std::pair<std::string, Tensor>> {
  using List = std::vector<std::pair<std::string, Tensor>>;
  using List::List;
  StateDict(List list) : List(std::move(list)) {}

  using List::at;
  // The tensor of that name: net.state_dict().at("fc.weight"). Throws Error with the known names.
  Tensor at(std::string_view name) const;
  bool contains(std::string_view name) const;

  // Adds entries with a prefix before their names; and the entries with a prefix, without it.
  void add(std::string_view prefix, const StateDict& from);
  StateDict under(std::string_view prefix) const;
};

}  // namespace mixtape
