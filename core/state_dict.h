#pragma once
// StateDict: named tensors in order, as models, optimizers and files exchange them.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct StateDict : std::vector<std::pair<std::string, Tensor>> {  // names may repeat.
  using List = std::vector<std::pair<std::string, Tensor>>;
  using List::List;
  StateDict(List list) : List(std::move(list)) {}  // in its order

  using List::at;
  // The tensor of that name: net.state_dict().at("fc.weight"). Throws Error with the known names.
  Tensor at(std::string_view name) const;
  using List::operator[];
  Tensor operator[](std::string_view name) const { return at(name); }  // the same
  bool contains(std::string_view name) const;                          // if at() finds one

  // Adds the entries of `from`, each with the prefix before its name.
  void add(std::string_view prefix, const StateDict& from);
  StateDict under(std::string_view prefix) const;  // the entries with the prefix, without it
};

}  // namespace mixtape
