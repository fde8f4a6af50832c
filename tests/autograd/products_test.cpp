// Products of groups, of integers and of vectors: the cases that rows do not have, and errors.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace products_test {

using Sizes = std::vector<int64_t>;

TEST(GroupedMatmul, IsAProductForEachGroup) {
  const Tensor x = randn({7, 3}), w = randn({4, 3, 5});
  const Sizes sizes{2, 0, 4, 1};
  const Tensor y = grouped_matmul(x, w, sizes);
  EXPECT_TRUE(equal(y, grouped_matmul(x, w, from_data(sizes))));
  int64_t begin = 0;
  for (int64_t g = 0; g < 4; begin += sizes[size_t(g++)])
    EXPECT_TRUE(allclose(narrow(y, 0, begin, sizes[size_t(g)]),
                         matmul(narrow(x, 0, begin, sizes[size_t(g)]), select(w, 0, g))));
}

TEST(GroupedMatmul, KeepsGradientsOfWeightsInF32UnderAutocast) {
  const Tensor x = randn({6, 4}), w = randn({2, 4, 3}).set_requires_grad();
  Tensor y;
  {
    const amp::Autocast on({.low = bf16});
    y = grouped_matmul(x, w, Sizes{6, 0});
  }
  EXPECT_EQ(y.dtype(), bf16);
  sum(y.to(f32)).backward();
  EXPECT_EQ(w.grad().dtype(), f32);
  const Tensor columns = sum(x.to(bf16).to(f32), {0});
  EXPECT_TRUE(allclose(select(select(w.grad(), 0, 0), 1, 2), columns, 1e-5, 1e-5));
  EXPECT_EQ(sum(abs(select(w.grad(), 0, 1))).item(), 0);
}

TEST(GroupedMatmul, RefusesSizesThatDoNotFit) {
  const Tensor x = ones({5, 3}), w = ones({2, 3, 4});
  EXPECT_ERROR(grouped_matmul(x, ones({2, 4, 4}), Sizes{5, 0}),
               "grouped_matmul: operands have shapes [5, 3] and [2, 4, 4], not [rows, k] and "
               "[groups, k, n]");
  EXPECT_ERROR(grouped_matmul(x, w, Sizes{5}),
               "grouped_matmul: 2 groups need as many sizes, got 1");
  EXPECT_ERROR(grouped_matmul(x, w, Sizes{6, -1}), "grouped_matmul: sizes must be >= 0, got -1");
  EXPECT_ERROR(grouped_matmul(x, w, Sizes{5, 1}),
               "grouped_matmul: sizes add up to 6 rows, and the input has 5");
  EXPECT_ERROR(grouped_matmul(x, w, Sizes{INT64_MAX, INT64_MAX}),
               "grouped_matmul: sizes add up to more than 2^63");
  EXPECT_ERROR(grouped_matmul(x, w, ones({1, 2}, i64)),
               "grouped_matmul: sizes have shape [1, 2], not [groups]");
  EXPECT_ERROR(grouped_matmul(ones({5, 3}, i64), w, Sizes{5, 0}),
               "grouped_matmul: elements must be floats, got i64");
}

TEST(Matmul, OfIntegersIsExact) {
  const int64_t big = (int64_t{1} << 40) + 1;
  const Tensor a = from_data(Sizes{big, 3}), b = from_data(Sizes{1, big});
  EXPECT_EQ(matmul(a, b).item<int64_t>(), big + 3 * big);
  EXPECT_EQ(matmul(full({2, 3}, 20, u8), full({3, 1}, 20, u8)).at(0), 1200 % 256);
  EXPECT_EQ(matmul(ones({0, 3}, i32), ones({3, 2}, i32)).shape(), (Shape{0, 2}));
  EXPECT_ERROR(matmul(a, b, {.alpha = 2}), "matmul: alpha must be 1 for integers, got 2");
  EXPECT_ERROR(matmul(ones({2, 2}, boolean), ones({2, 2}, boolean)),
               "matmul: elements must be floats, got bool");
}

TEST(Baddbmm, RoundsOnceAndSkipsWhatCountsNothing) {
  const Tensor a = full({1, 1, 2}, 300, f16), c = full({}, -60000, f16);
  EXPECT_EQ(baddbmm(c, a, transpose(a), {.beta = 2}).item(), 60000);  // 180000 is beyond f16
  EXPECT_EQ(baddbmm(c, a, transpose(a)).dtype(), f16);
  EXPECT_EQ(baddbmm(full({}, NAN), ones({1, 1, 2}), ones({1, 2, 1}), {.beta = 0}).item(), 2);
  {
    const amp::Autocast on({.low = bf16});
    const Tensor x = full({1, 1, 1}, 1.01);
    EXPECT_EQ(baddbmm(zeros({}), x, x).item(), matmul(x, x).item());  // of operands in bf16
  }
  EXPECT_ERROR(baddbmm(c, select(a, 0, 0), a),
               "baddbmm: operands have shapes [1, 2] and [1, 1, 2], not [b, m, k] and [b, k, n]");
  EXPECT_ERROR(baddbmm(c, ones({2, 3, 4}), ones({5, 4, 3})),
               "baddbmm: 2 matrices for 5: both operands need as many");
}

TEST(MultiDot, TakesTheCheapestOrder) {
  // From the right: no product of a column and a row.
  const Tensor column = ones({1 << 20, 1}), row = ones({1, 1 << 20});
  EXPECT_EQ(multi_dot({row, column, row, column}).item(), 0x1p40);
  EXPECT_EQ(multi_dot({column, row, column}).shape(), (Shape{1 << 20, 1}));
  const Tensor part = full({1, 1}, 0x1p-6, f16), large = full({1, 1}, 300, f16);
  EXPECT_EQ(multi_dot({part, large, large}).item(), 1406) << "90000 is beyond f16";
  const Tensor x = randn({3}), w = randn({3, 2}), y = randn({2});
  EXPECT_TRUE(allclose(multi_dot({x, w, y}), dot(matmul(x, w), y)));
  EXPECT_EQ(multi_dot({x, w}).shape(), Shape{2});
  EXPECT_EQ(multi_dot({w, y}).shape(), Shape{3});
  EXPECT_EQ(multi_dot({x, x}).shape(), Shape{});
  EXPECT_ERROR(multi_dot({w}), "multi_dot: a product needs at least 2 matrices, got 1");
  EXPECT_ERROR(multi_dot({w, x, w}), "multi_dot: operand 1 has shape [3], not [m, n]");
  EXPECT_ERROR(multi_dot({w, w}), "multi_dot: inner dimensions differ: [3, 2] and [3, 2]");
}

TEST(Kron, RefusesMoreElementsThanCanBeCounted) {
  EXPECT_ERROR(kron(expand(ones({1}), {int64_t{1} << 62}), ones({4})), "too many elements");
}

TEST(Cross, TakesVectorsOfThree) {
  const Tensor e = eye(3);
  EXPECT_TRUE(equal(cross(select(e, 0, 0), select(e, 0, 1)), select(e, 0, 2)));
  EXPECT_ERROR(cross(ones({2, 3}), ones({2, 3}), 0),
               "cross: dimension 0 of operands of shapes [2, 3] and [2, 3] is not of size 3");
}

}  // namespace products_test
}  // namespace mixtape
