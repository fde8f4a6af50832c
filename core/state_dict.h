#pragma once
// StateDict: what models, optimizers and files give each other. In an order, so that it is kept.

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
  // The tensor of that name: net.state_dict().at("fc.weight"). Throws Error that lists the names
  // there are.
  Tensor at(std::string_view name) const;
  bool contains(std::string_view name) const;

  // Adds the entries of another, their names behind a prefix; and those under it, without it.
  void add(std::string_view prefix, const StateDict& from);
  StateDict under(std::string_view prefix) const;
};

}  // namespace mixtape
