#pragma once
// Reading and writing state dicts of optimizers, schedules and averages.

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/state_dict.h"

namespace mixtape::optim {

// Finds the tensors of a dict by name, and remembers which were read.
class StateReader {
 public:
  explicit StateReader(const StateDict& dict);

  // Null if there is none. Throws Error if the name stands for no tensor.
  const Tensor* find(std::string_view name);
  // Throws Error if it is missing, or not one number.
  double number(std::string_view name);
  // Throws Error unless it is a whole number from 0 to `most`.
  int64_t count(std::string_view name, int64_t most = int64_t(1) << 53);
  // Throws Error unless "kind" has this text.
  void check_kind(std::string_view kind);
  // A copy of a float tensor of this shape, or no tensor. Throws Error if shape or type differ.
  Tensor copy_of(std::string_view name, const Shape& shape, DType dtype, Device device);
  // Throws Error if a tensor was not read.
  void check_all_read() const;

 private:
  const StateDict& dict_;
  std::unordered_map<std::string_view, size_t> places_;
  std::vector<bool> read_;
};

// The bytes of a text: u8 [length].
Tensor from_text(std::string_view text);
Tensor from_number(double x);  // f64, 0-d, on the CPU
// A dense copy in a dtype on a device.
Tensor dense_copy(const Tensor& x, DType dtype, Device device);
Tensor filled(const Shape& shape, double value, DType dtype, Device device);

}  // namespace mixtape::optim
