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

Tensor image(const Shape& shape = {1, 2, 4, 5}) { return ones(shape); }

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

// --- convolutions ---

TEST(Convolutions, RefuseWhatDoesNotFit) {
  const Tensor x = image(), line = ones({1, 4, 5});
  EXPECT_ERROR(conv1d(x, line), "conv1d: the input has shape [1, 2, 4, 5], not [n, c, l]");
  EXPECT_ERROR(conv1d(line, x), "conv1d: the weight has shape [1, 2, 4, 5], not [o, c/groups, k]");
  EXPECT_ERROR(conv1d(line, ones({2, 3, 2})),
               "conv1d: the input has 4 channels, the weight takes 3 in 1 groups");
  EXPECT_ERROR(conv1d(line, ones({3, 2, 2}), {}, {.groups = 2}), "3 outputs in 2 groups");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 3}), {}, {.dilation = 3}),
               "a window of 3 (dilation 3) does not fit into 5 + 2 * 0");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), {}, {.stride = 0}), "stride 0, dilation 1, padding 0");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 0})), "a weight of shape [2, 4, 1, 0] has no window");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), ones({3})), "the bias has shape [3] for 2 outputs");

  EXPECT_ERROR(conv_transpose2d(line, x), "the input has shape [1, 4, 5], not [n, c, h, w]");
  EXPECT_ERROR(conv_transpose2d(x, line),
               "the weight has shape [1, 4, 5], not [c, o/groups, kh, kw]");
  const Tensor w = ones({2, 3, 3, 3});
  EXPECT_ERROR(conv_transpose2d(image({1, 3, 4, 4}), w),
               "conv_transpose2d: the input has 3 channels, the weight takes 2");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.groups = 4}), "2 channels in 4 groups");
  EXPECT_ERROR(conv_transpose2d(x, w, ones({3}), {.groups = 2}),
               "the bias has shape [3] for 6 outputs");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.padding = {-1, 0}}), "padding -1");
  EXPECT_ERROR(
      conv_transpose2d(x, w, {}, {.stride = {1, 2}, .output_padding = {0, 2}}),
      "an output padding of 2 with stride 2 and dilation 1 (it must be below one of them)");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.padding = {3, 1}}), "padding 3 leaves nothing of 6");
}

TEST(ConvTranspose2d, IsLowAndAddsItsBiasInF32) {
  const Tensor x = full({1, 1, 1, 1}, 2049), w = ones({1, 1, 2, 2}), bias = ones({1});
  const amp::Autocast on({.low = bf16});
  const Tensor y = conv_transpose2d(x, w, bias);
  EXPECT_EQ(y.dtype(), bf16);
  const Tensor narrow =
      conv_transpose2d(from({2048, 1}, {1, 2, 1, 1}, f16), ones({2, 1, 1, 1}, f16), ones({1}));
  EXPECT_EQ(narrow.dtype(), bf16);
  const amp::Autocast half({.low = f16});
  EXPECT_EQ(
      conv_transpose2d(from({2048, 1}, {1, 2, 1, 1}, f16), ones({2, 1, 1, 1}, f16), bias).item(),
      2050)
      << "2049 alone would round to 2048";
}

}  // namespace
}  // namespace mixtape
