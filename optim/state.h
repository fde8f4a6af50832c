#pragma once
// Parts that optimizers, schedules and averages share: state dicts, and the result of a step.

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/state_dict.h"

namespace mixtape::optim {

class StateReader;  // in optim/state_reader.h

// The result of a step: a bool, or an amp::StepResult, which waits for the device when it is
// converted to bool.
template <class R>
concept StepOutcome = std::same_as<R, bool> || requires(const R& r) {
  { r.is_deferred() } -> std::same_as<bool>;
  static_cast<bool>(r);
};

Tensor from_text(std::string_view text);  // its bytes: u8 [length]
Tensor from_number(double x);             // f64, 0-d, on the CPU
// A contiguous copy in memory of its own.
Tensor dense_copy(const Tensor& x, DType dtype, Device device);
// The view of a tensor (or none) that a step will write, after waiting for other streams that read
// it.
internal::View to_write(const Tensor& t);
// A tensor with `value` in each element. Throws Error during a capture.
Tensor filled(const Shape& shape, double value, DType dtype, Device device);

}  // namespace mixtape::optim
