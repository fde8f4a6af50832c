#pragma once
// NamedTensors: what models, optimizers and files give each other. In an order, so that it is kept;
// of a map by name as well, as files are read into one.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace mixtape {

struct NamedTensors : std::vector<std::pair<std::string, Tensor>> {
  using List = std::vector<std::pair<std::string, Tensor>>;
  using List::List;
  NamedTensors(List list) : List(std::move(list)) {}
  NamedTensors(const std::map<std::string, Tensor>& by_name)
      : List(by_name.begin(), by_name.end()) {}
};

}  // namespace mixtape
