// Printing as NumPy 2 with precision=4, and the line with dtype and shape.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

#include "core/format.h"
#include "core/tensor.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace core_print_test {

Tensor iota(const Shape& shape, DType dtype) {
  std::vector<double> values(size_t(shape.size()));
  std::iota(values.begin(), values.end(), 0);
  return from(values, shape, dtype);
}

Tensor zeros_of(const Shape& shape, DType dtype) {
  return from(std::vector<double>(size_t(shape.size())), shape, dtype);
}

TEST(Print, GoesToStreams) {
  std::ostringstream out;
  out << from({1, 2.5}, {2}) << "; " << Tensor();
  EXPECT_EQ(out.str(), "[1.  2.5]\nf32 [2]; no tensor");
}

TEST(Print, ShapesDtypesAndDevicesGoToStreams) {
  const Tensor x = zeros_of({2, 3}, bf16);
  std::ostringstream out;
  out << x.shape() << ' ' << x.strides() << ' ' << x.dtype() << ' ' << x.device() << ' '
      << Device::cuda(1) << ' ' << Shape{};
  EXPECT_EQ(out.str(), "[2, 3] [3, 1] bf16 cpu cuda:1 []");
}

TEST(Print, NumbersOf8BitsAreFloats) {
  EXPECT_EQ(to_string(from({1.5, -0.3, 500}, {3}, f8_e4m3)), "[ 1.5 -0.3  nan]\nf8_e4m3 [3]");
  EXPECT_EQ(fmt::format("{:.2f}", from({1.1}, {}, f8_e5m2)), "1.00");
  EXPECT_EQ(fmt::format("{:.2f}", from({3}, {}, f8_e8m0)), "4.00");
}

TEST(Print, IntegersThatOnlyStoreAreNumbers) {
  EXPECT_EQ(to_string(from({-65, 7}, {2}, i8)), "[-65   7]\ni8 [2]");
  EXPECT_EQ(fmt::format("{}", from({4294967295}, {}, u32)), "4294967295\nu32 []");
}

// A specification is fmt's for each element; it replaces the line of dtype and shape.
TEST(Print, TakesFormatSpecifications) {
  const Tensor x = from({1, -2.5, 1000, 0.0625}, {2, 2});
  EXPECT_EQ(fmt::format("{:.3f}", x), "[[   1.000   -2.500]\n [1000.000    0.062]]");
  EXPECT_EQ(fmt::format("{:.1e}", x), "[[ 1.0e+00 -2.5e+00]\n [ 1.0e+03  6.2e-02]]");
  EXPECT_EQ(fmt::format("loss {:.4f}", from({1.0 / 3}, {}, bf16)), "loss 0.3340");
  EXPECT_EQ(fmt::format("{:8.2f}|{:+.1f}", from({3}, {}), from({3}, {}, i64)), "    3.00|+3.0");
  EXPECT_EQ(fmt::format("{:g}", from({0.1, NAN}, {2})), "[0.1 nan]");
  EXPECT_EQ(fmt::format("{:03}", from({7, 12}, {2}, i32)), "[007 012]");
  EXPECT_EQ(fmt::format("{:d}", from({1, 0}, {2}, boolean)), "[1 0]");
  EXPECT_EQ(fmt::format("{:.3f}", zeros_of({0}, f32)), "[]");
  EXPECT_EQ(fmt::format("{:.3f}", Tensor()), "no tensor");
  EXPECT_EQ(fmt::format("{:>8}|{:<6}|{:^7}|{:>6}", Shape{2, 3}, f16, Device::cpu(), i64),
            "  [2, 3]|f16   |  cpu  |   i64");
  EXPECT_THROW((void)fmt::format("{:.3q}", x), fmt::format_error);
}

TEST(Print, TakesOptions) {
  const Tensor x = from({1.0 / 3, 200}, {2}, f64);
  EXPECT_EQ(to_string(x, {.precision = 2}), "[  0.33 200.  ]\nf64 [2]");
  EXPECT_EQ(to_string(x, {.precision = 0}), "[  0. 200.]\nf64 [2]");
  EXPECT_EQ(to_string(from({1e-9, 1}, {2}), {.precision = 3, .scientific = false}),
            "[0. 1.]\nf32 [2]");
  EXPECT_EQ(to_string(iota({8}, i64), {.threshold = 7, .edge_items = 1}), "[0 ... 7]\ni64 [8]");
  EXPECT_EQ(to_string(iota({8}, i64), {.line_width = 10}), "[0 1 2 3\n 4 5 6 7]\ni64 [8]");
  const PrintWith outer({.precision = 1});
  {
    const PrintWith inner({.line_width = 4});
    EXPECT_EQ(fmt::format("{}", x), "[  0.3333\n 200.    ]\nf64 [2]");
  }
  EXPECT_EQ(fmt::format("{}", x), "[  0.3 200. ]\nf64 [2]");
}

TEST(Print, RefusesOptionsWithoutSense) {
  const std::string must =
      "precision {} and threshold 1000 must be >= 0, edge_items {} and line_width 75 > 0";
  EXPECT_ERROR(to_string(Tensor(), {.precision = -1}), fmt::format(fmt::runtime(must), -1, 3));
  EXPECT_ERROR(PrintWith({.edge_items = 0}), fmt::format(fmt::runtime(must), 4, 0));
}

TEST(Print, AlignsDecimalPoints) {
  EXPECT_EQ(to_string(from({1, 2.5, 3, 4}, {2, 2})), "[[1.  2.5]\n [3.  4. ]]\nf32 [2, 2]");
  EXPECT_EQ(to_string(from({-1, 22.25, 0}, {3})), "[-1.   22.25  0.  ]\nf32 [3]");
  EXPECT_EQ(to_string(from({1.0 / 3, 100}, {2}, f64)), "[  0.3333 100.    ]\nf64 [2]");
}

TEST(Print, UsesAsFewDigitsAsTheTypeNeeds) {
  EXPECT_EQ(to_string(from({0.1, 3.14}, {2}, bf16)), "[0.1  3.14]\nbf16 [2]");
  EXPECT_EQ(to_string(from({0.1}, {1}, f16)), "[0.1]\nf16 [1]");
  EXPECT_EQ(to_string(from({0.99996, 2}, {2}, f64)), "[1. 2.]\nf64 [2]");
}

TEST(Print, TurnsScientificWhereDecimalsWouldNotDo) {
  EXPECT_EQ(to_string(from({1e8, 1}, {2}, f64)), "[1.e+08 1.e+00]\nf64 [2]");
  EXPECT_EQ(to_string(from({0.00009, 0}, {2}, f64)), "[9.e-05 0.e+00]\nf64 [2]");
  EXPECT_EQ(to_string(from({1001, -1}, {2}, f64)), "[ 1.001e+03 -1.000e+00]\nf64 [2]");
  EXPECT_EQ(to_string(from({1000, 1}, {2}, f64)), "[1000.    1.]\nf64 [2]");
  EXPECT_EQ(to_string(from({1e100, 1}, {2}, f64)), "[1.e+100 1.e+000]\nf64 [2]");
  EXPECT_EQ(to_string(from({std::numeric_limits<double>::max()}, {1}, f64)),
            "[1.7977e+308]\nf64 [1]");  // (2.e+308 is no double)
  // The bounds are as the dtype rounds them.
  EXPECT_EQ(to_string(from({0.9, 900}, {2})), "[  0.9 900. ]\nf32 [2]");
  EXPECT_EQ(to_string(from({0.9, 900.1}, {2})), "[9.000e-01 9.001e+02]\nf32 [2]");
  EXPECT_EQ(to_string(from({0.0001, 0.001}, {2})), "[0.0001 0.001 ]\nf32 [2]");
}

TEST(Print, SpecialValues) {
  EXPECT_EQ(to_string(from({NAN, -INFINITY, 1.5}, {3})), "[ nan -inf  1.5]\nf32 [3]");
  EXPECT_EQ(to_string(from({NAN, INFINITY}, {2})), "[nan inf]\nf32 [2]");
  EXPECT_EQ(to_string(from({-0.0}, {1})), "[-0.]\nf32 [1]");
}

TEST(Print, IntegersAndBooleans) {
  EXPECT_EQ(to_string(from({1, -20, 300}, {3}, i64)), "[  1 -20 300]\ni64 [3]");
  EXPECT_EQ(to_string(from({7, 255}, {2}, u8)), "[  7 255]\nu8 [2]");
  EXPECT_EQ(to_string(from({1, 0}, {2}, boolean)), "[ True False]\nbool [2]");
  EXPECT_EQ(to_string(from({1}, {}, boolean)), "True\nbool []");
}

TEST(Print, ScalarsEmptiesAndNothing) {
  EXPECT_EQ(to_string(from({2.5}, {})), "2.5\nf32 []");
  EXPECT_EQ(to_string(from({}, {0})), "[]\nf32 [0]");
  EXPECT_EQ(to_string(from({}, {2, 0, 3}, i32)), "[]\ni32 [2, 0, 3]");
  EXPECT_EQ(to_string(Tensor()), "no tensor");
}

TEST(Print, HigherRanksAndViews) {
  const Tensor x = iota({2, 2, 2}, i32);
  EXPECT_EQ(to_string(x), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]\ni32 [2, 2, 2]");
  EXPECT_EQ(to_string(x.with_layout(select(transpose(x.layout(), 0, 2), 1, 1))),
            "[[2 6]\n [3 7]]\ni32 [2, 2]");
}

TEST(Print, LongRowsWrap) {
  EXPECT_EQ(to_string(iota({30}, i64)),
            "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n"
            " 24 25 26 27 28 29]\ni64 [30]");
}

TEST(Print, LongAxesAreShortened) {
  EXPECT_EQ(to_string(iota({1001}, i64)), "[   0    1    2 ...  998  999 1000]\ni64 [1001]");
  EXPECT_EQ(to_string(iota({1000}, f32)).find("..."), std::string::npos);
  EXPECT_EQ(to_string(iota({7, 200}, i64)),
            "[[   0    1    2 ...  197  198  199]\n"
            " [ 200  201  202 ...  397  398  399]\n"
            " [ 400  401  402 ...  597  598  599]\n"
            " ...\n"
            " [ 800  801  802 ...  997  998  999]\n"
            " [1000 1001 1002 ... 1197 1198 1199]\n"
            " [1200 1201 1202 ... 1397 1398 1399]]\ni64 [7, 200]");
}

// fmt/ranges.h, which many programs include, would print a Shape as a range of numbers.
TEST(Print, ShapesBesideRanges) {
  const Tensor x = from({1, 2}, {1, 2});
  EXPECT_EQ(fmt::format("{} {} {}", x.shape(), x.dtype(), to_vector(x)), "[1, 2] f32 [1, 2]");
  EXPECT_EQ(fmt::format("{}", std::vector{x.shape(), Shape{}}), "[[1, 2], []]");
}

}  // namespace core_print_test
}  // namespace mixtape
