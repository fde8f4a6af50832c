#pragma once
// Small tensors for tests, and their comparison.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "core/state_dict.h"

namespace mixtape {

using Values = std::vector<double>;
inline constexpr double inf = std::numeric_limits<double>::infinity(),
                        nan = std::numeric_limits<double>::quiet_NaN();

inline Tensor row(const Values& values, DType dtype = f32) {
  return from(values, {int64_t(values.size())}, dtype);
}
// 0, 1, 2, ... in row-major order.
inline Tensor numbers(const Shape& shape, DType dtype = f32) {
  return reshape(arange(0, double(shape.size()), 1, dtype), shape);
}
// f64 and the same at every call, but for another number.
inline Tensor drawn(const Shape& shape, uint64_t number = 1) {
  const Seed seed(number);
  return randn(shape, f64);
}

inline std::vector<std::string> names(const StateDict& tensors) {
  std::vector<std::string> all;
  for (const auto& [name, t] : tensors) all.push_back(name);
  return all;
}

// Elements are those wanted, or differ by at most tolerance (1 + |wanted|).
inline void expect_near(const Tensor& got, const Values& want, double tolerance = 1e-6) {
  ASSERT_EQ(got.numel(), int64_t(want.size()));
  const Values all = to_vector(got);
  for (size_t i = 0; i < want.size(); ++i) {
    const double x = all[i], w = want[i];
    ASSERT_TRUE(x == w || std::abs(x - w) <= tolerance * (1 + std::abs(w)) ||
                (std::isnan(x) && std::isnan(w)))
        << "element " << i << ": " << x << ", not " << w;
  }
}
inline void expect_near(const Tensor& got, const Tensor& want, double tolerance) {
  ASSERT_EQ(got.shape(), want.shape());
  ASSERT_EQ(got.dtype(), want.dtype());
  expect_near(got, to_vector(want), tolerance);
}

}  // namespace mixtape
