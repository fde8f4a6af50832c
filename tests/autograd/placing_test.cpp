// Elements placed by index or mask: the cases that rows do not have, and errors.

#include <gtest/gtest.h>

#include <cmath>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace placing_test {

TEST(ScatterReduce, TakesIntegersAndLeavesWhatNoIndexNames) {
  const Tensor x = row({5, 1, -9}, i64), index = row({0, 0, 1}, i64), source = row({7, 6, 0}, i64);
  const auto reduced = [&](ScatterMode mode, bool self) {
    return to_vector(scatter_reduce(x, 0, index, source, mode, {.include_self = self}));
  };
  EXPECT_EQ(reduced(ScatterMode::Amax, true), (Values{7, 1, -9}));
  EXPECT_EQ(reduced(ScatterMode::Amin, true), (Values{5, 0, -9}));
  EXPECT_EQ(reduced(ScatterMode::Amin, false), (Values{6, 0, -9}));
  EXPECT_EQ(reduced(ScatterMode::Prod, true), (Values{210, 0, -9}));
  EXPECT_EQ(reduced(ScatterMode::Prod, false), (Values{42, 0, -9}));
  EXPECT_EQ(reduced(ScatterMode::Sum, false), (Values{13, 0, -9}));
}

TEST(ScatterReduce, NanWinsAndInfinitiesMeet) {
  const Tensor x = row({1, -inf, 0}), index = row({0, 1, 2, 2}, i64),
               source = row({nan, -inf, inf, 1});
  const Tensor most = scatter_reduce(x, 0, index, source, ScatterMode::Amax);
  EXPECT_TRUE(std::isnan(most.at(0)));
  EXPECT_EQ(most.at(1), -inf);
  EXPECT_EQ(most.at(2), inf);
}

// Each factor's gradient is the product of the others, also where that is of one 0.
TEST(ScatterReduce, ProductsHaveGradientsAtZeros) {
  const Tensor x = row({2, 3, 4}).set_requires_grad(), index = row({0, 0, 1, 1, 1}, i64);
  const Tensor source = row({0, 5, 0, 0, 7}).set_requires_grad();
  sum(scatter_reduce(x, 0, index, source, ScatterMode::Prod)).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(source.grad()), (Values{10, 0, 0, 0, 0}));
}

TEST(ScatterReduce, MeansAreRoundedOnce) {
  const Tensor x = full({1}, 60000, f16), source = full({3}, 60000, f16);
  EXPECT_EQ(scatter_reduce(x, 0, zeros({3}, i64), source, ScatterMode::Mean).item(), 60000);
}

TEST(ScatterReduce, RefusesWhatDoesNotFit) {
  const Tensor x = ones({3}), index = zeros({2}, i64), truth = ones({2}, boolean);
  EXPECT_ERROR(scatter_reduce(x, 0, index, ones({1}), ScatterMode::Amax),
               "scatter_reduce: the source must be at least as large as the index, [2], got [1]");
  EXPECT_ERROR(scatter_reduce(truth, 0, index, truth, ScatterMode::Prod),
               "elements must be numbers, got bool (convert them to a number dtype)");
  EXPECT_TRUE(equal(scatter_reduce(x, 0, index, row({5, -1}), "prod", {.include_self = false}),
                    row({-5, 1, 1})));
  EXPECT_ERROR(scatter_reduce(x, 0, index, x, "max"),
               "mode is \"max\", not \"sum\", \"prod\", \"mean\", \"amax\", \"amin\"");
  EXPECT_ERROR(scatter_reduce(index, 0, index, index, ScatterMode::Mean),
               "scatter_reduce: elements must be floats, got i64");
}

TEST(IndexFill, WritesNumbersOfTheDtype) {
  EXPECT_EQ(to_vector(index_fill(arange(4), 0, row({3, 0}, i64), 7)), (Values{7, 1, 2, 7}));
  EXPECT_ERROR(index_fill(arange(4), 0, row({3}, i64), 0.5),
               "index_fill: cannot combine i64 elements with 0.5");
  EXPECT_ERROR(index_fill(arange(4), 0, zeros({1, 1}, i64), 0),
               "index_fill: the index has shape [1, 1], not [k]");
}
TEST(IndexCopy, ChecksTheSource) {
  EXPECT_ERROR(index_copy(ones({4, 2}), 0, row({3}, i64), ones({2, 2})),
               "index_copy: the source has shape [2, 2], not [1, 2]");
}

TEST(TakeAlongDim, OrdersByArgsort) {
  const Tensor x = from({3, 1, 2, 9, 7, 8}, {2, 3});
  EXPECT_EQ(to_vector(take_along_dim(x, argsort(x), -1)), to_vector(sort(x).values));
  EXPECT_EQ(to_vector(take_along_dim(x, row({5, 0}, i64))), (Values{8, 3}));
  EXPECT_ERROR(take_along_dim(x, row({0}, i64), 1),
               "take_along_dim: the index must have the rank of [2, 3], got [1]");
}

TEST(MaskedScatter, MixesDtypesUnderAutocast) {
  const amp::Autocast on(bf16);
  for (const auto& [x, source] : {std::pair(f32, bf16), {bf16, f32}})
    EXPECT_EQ(masked_scatter(ones({2}, x), ones({2}, boolean), ones({2}, source)).dtype(), f32);
}

TEST(MaskedScatter, TakesTheSourceInOrder) {
  const Tensor mask = from({0, 1, 1, 0}, {2, 2}, boolean), x = arange(4);
  EXPECT_EQ(to_vector(masked_scatter(reshape(x, {2, 2}), mask, row({7, 8, 9}, i64))),
            (Values{0, 7, 8, 3}));
  EXPECT_EQ(masked_scatter(ones({2}), zeros({2}, boolean), ones({0})).at(1), 1);
  EXPECT_ERROR(masked_scatter(ones({2}), ones({2}), ones({2})),
               "masked_scatter: the mask must be bool, got f32");
  EXPECT_ERROR(masked_scatter(ones({2}), ones({2}, boolean), ones({2}, i64)),
               "masked_scatter: where: inputs have different dtypes: i64 and f32");
  const DefaultDevice host(Device::cpu());  // (on a device the Error comes late)
  EXPECT_ERROR(masked_scatter(ones({3}), ones({3}, boolean), ones({2})),
               "masked_scatter: the mask chooses at least 3 elements, and the source has 2");
}

}  // namespace placing_test
}  // namespace mixtape
