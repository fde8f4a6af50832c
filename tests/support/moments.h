#pragma once
// Expectations about the distribution of a layer's initial values.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"

namespace mixtape::test {

struct Moments {
  double low, high, mean, std;
};
inline Moments moments(const Tensor& t) {
  return {min(t).item(), max(t).item(), mean(t).item(), stddev(t).item()};
}

// Expects a uniform distribution within `bound`: mean and deviation within 4 standard errors, and
// values near both ends.
inline void expect_uniform(const Tensor& t, double bound) {
  const Moments m = moments(t);
  const double n = static_cast<double>(t.numel()), std = bound / std::sqrt(3.0);
  EXPECT_GE(m.low, -bound);
  EXPECT_LE(m.high, bound);
  EXPECT_LT(m.low, -0.97 * bound);
  EXPECT_GT(m.high, 0.97 * bound);
  EXPECT_NEAR(m.mean, 0, 4 * std / std::sqrt(n));
  EXPECT_NEAR(m.std, std, 4 * std / std::sqrt(n));
}
inline void expect_normal(const Tensor& t, double std) {
  const Moments m = moments(t);
  const double n = static_cast<double>(t.numel());
  EXPECT_NEAR(m.mean, 0, 4 * std / std::sqrt(n));
  EXPECT_NEAR(m.std, std, 4 * std / std::sqrt(2 * n));
  EXPECT_GT(m.high, 3 * std);
  EXPECT_LT(m.high, 6 * std);
}

}  // namespace mixtape::test
