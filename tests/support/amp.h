#pragma once
// Helpers for the tests of amp.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "tests/support/errors.h"

namespace mixtape::amp {
using namespace internal;

// Counts the calls of each op, and keeps the dtype of its last result.
struct Seen : Observer {
  std::map<std::string, int> count;
  std::map<std::string, DType> dtype;
  void after(const Call& call, const Tensor& y) override {
    ++count[std::string(call.op.name)];
    dtype[std::string(call.op.name)] = y.dtype();
  }
};

// Values of magnitude 0.1 to 1 that bf16 cannot hold, all of one sign so that sums do not cancel.
inline Tensor values(const Shape& shape, DType dtype = f32, double seed = 1) {
  Tensor t(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.set(i, 0.1 + 0.9 * std::abs(std::sin(seed + 0.7 * double(i))));
  return t;
}
inline Tensor leaf(const Shape& shape, DType dtype = f32, double seed = 1) {
  return values(shape, dtype, seed).set_requires_grad();
}
// Values of both signs.
inline Tensor waves(const Shape& shape, double seed) {
  Tensor t(shape, f32);
  for (int64_t i = 0; i < t.numel(); ++i) t.set(i, std::sin(seed + 0.7 * double(i)));
  return t;
}

inline void expect_near(const Tensor& a, const Tensor& b, double tolerance) {
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t i = 0; i < a.numel(); ++i)
    ASSERT_NEAR(a.at(i), b.at(i), tolerance * (1 + std::abs(b.at(i)))) << i;
}

}  // namespace mixtape::amp
