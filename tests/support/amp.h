#pragma once
// Helpers for the tests of amp.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

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

struct Numbers {  // a format: digits behind the point, lowest exponent, largest number
  int digits, lowest;
  double largest;
};
inline constexpr Numbers e4m3{3, -6, 448}, e5m2{2, -14, 57344}, e2m1{1, 0, 6};
inline double nearest(double x, const Numbers& f) {
  if (x == 0 || std::isnan(x)) return x;
  const int e = std::max(std::ilogb(x), f.lowest) - f.digits;
  return std::clamp(std::ldexp(std::nearbyint(std::ldexp(x, -e)), e), -f.largest, f.largest);
}

}  // namespace mixtape::amp
