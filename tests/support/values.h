#pragma once
// Small tensors for tests.

#include <limits>
#include <vector>

#include "autograd/ops.h"

namespace mixtape {

using Values = std::vector<double>;
inline constexpr double inf = std::numeric_limits<double>::infinity(),
                        nan = std::numeric_limits<double>::quiet_NaN();

inline Tensor row(const Values& values, DType dtype = f32) {
  return from(values, {int64_t(values.size())}, dtype);
}
// f64 and the same at every call, but for another number.
inline Tensor drawn(const Shape& shape, uint64_t number = 1) {
  const Seed seed(number);
  return randn(shape, f64);
}

}  // namespace mixtape
