#pragma once
// What optimizers, schedules and averages share: state dicts, and the result of a step.

#include <concepts>
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
  double number(std::string_view name);  // throws Error if it is missing, or not one number
  // Throws Error unless it is a whole number from 0 to `most`.
  int64_t count(std::string_view name, int64_t most = int64_t(1) << 53);
  void check_kind(std::string_view kind);  // throws Error unless "kind" has this text
  // A copy of a float tensor of this shape, or no tensor. Throws Error if shape or type differ.
  Tensor copy_of(std::string_view name, const Shape& shape, DType dtype, Device device);
  void check_all_read() const;  // throws Error if a tensor was not read

 private:
  const StateDict& dict_;
  std::unordered_map<std::string_view, size_t> places_;
  std::vector<bool> read_;
};

// The result of a step: a bool, or amp::StepResult, which waits for the device when converted to
// one.
template <class R>
concept StepOutcome = std::same_as<R, bool> || requires(const R& r) {
  { r.is_deferred() } -> std::same_as<bool>;
  static_cast<bool>(r);
};

Tensor from_text(std::string_view text);  // its bytes: u8 [length]
Tensor from_number(double x);             // f64, 0-d, on the CPU
Tensor dense_copy(const Tensor& x, DType dtype, Device device);
// The tensor (or none) after all that other streams read of it: for what a step writes.
internal::View to_write(const Tensor& t);
Tensor filled(const Shape& shape, double value, DType dtype, Device device);

}  // namespace mixtape::optim
