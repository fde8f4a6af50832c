#pragma once
// StateReader: reads a state dict, for classes that have one.

#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::optim {

// Finds the tensors of a dict by name and remembers which were read.
class StateReader {
 public:
  explicit StateReader(const StateDict& dict);  // refers to it

  // Null if the name is missing. Throws Error if it stands for an undefined tensor.
  const Tensor* find(std::string_view name);
  double number(std::string_view name);  // throws Error if it is missing, or not one number
  // Throws Error unless it is a whole number from 0 to `most`.
  int64_t count(std::string_view name, int64_t most = int64_t(1) << 53);
  void check_kind(std::string_view kind);  // throws Error unless "kind" has this text
  // A copy of a float tensor of this shape; none if it is missing. Throws Error if shape or type
  // differ.
  Tensor copy_of(std::string_view name, const Shape& shape, DType dtype, Device device);
  void check_all_read() const;  // throws Error if a tensor was not read

 private:
  const StateDict& dict_;
  std::unordered_map<std::string_view, size_t> places_;
  std::vector<bool> read_;
};

}  // namespace mixtape::optim
