// Products, convolutions, pools, norms and attention beyond what every op is tested for: their
// errors, the corners of their definitions, and what they round.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/op.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace {

using Values = std::vector<double>;
const double nan = std::nan("");

// --- products ---

TEST(Products, RefuseWhatDoesNotFit) {
  const Tensor a = ones({2, 3}), b = ones({3, 4}), v = ones({3}), n = ones({2, 3}, i64);
  EXPECT_ERROR(bmm(a, b), "bmm: of shapes [2, 3] and [3, 4], not [b, m, k] and [b, k, n]");
  EXPECT_ERROR(bmm(ones({2, 3, 4}), ones({5, 4, 3})), "bmm: batches of 2 and 5");
  EXPECT_ERROR(bmm(ones({2, 3, 4}), ones({2, 5, 3})), "inner dimensions differ: 4 and 5");
  EXPECT_ERROR(addmm(v, a, v), "addmm: of shapes [2, 3] and [3], not [m, k] and [k, n]");
  EXPECT_ERROR(addmm(v, b, b), "addmm: inner dimensions differ: 4 and 3 (of [3, 4] and [3, 4])");
  EXPECT_ERROR(addmm(v, a, b), "[3] cannot expand to [2, 4]");
  EXPECT_ERROR(addmm(v, n, n.t()), "addmm: of i64 elements");
  EXPECT_ERROR(outer(a, v), "outer: of shapes [2, 3] and [3], not [m] and [n]");
  EXPECT_ERROR(dot(v, ones({4})), "dot: of shapes [3] and [4], not [n] and [n]");
  EXPECT_ERROR(dot(ones({2}, i64), ones({2}, i64)), "dot: of i64 elements");
}

TEST(Addmm, AddsBeforeItRounds) {
  // 2049 lies between two numbers of f16 and would go to 2048; 2050 is one.
  const Tensor a = from({2048, 1}, {1, 2}, f16), b = ones({2, 1}, f16);
  EXPECT_EQ(matmul(a, b).item(), 2048);
  EXPECT_EQ(addmm(ones({1}), a, b).item(), 2050);
  EXPECT_EQ(addmm(ones({1, 1}), a, b).dtype(), f16);
}

TEST(Addmm, OfNothingIgnoresWhatItWouldAddTo) {
  const Tensor c = full({2, 2}, nan), a = ones({2, 3}), b = ones({3, 2});
  EXPECT_EQ(to_vector(addmm(c, a, b, {.beta = 0, .alpha = 2})), (Values{6, 6, 6, 6}));
}

TEST(Dot, SumsNarrowNumbersInF32) {
  EXPECT_EQ(dot(ones({4096}, f16), ones({4096}, f16)).item(), 4096);
  const amp::Autocast on({.low = f16});
  EXPECT_EQ(dot(ones({4}, f16), ones({4})).dtype(), f32) << "the widest of its inputs";
}

}  // namespace
}  // namespace mixtape
