// Order statistics, counts and other composed functions, against their definitions.

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "autograd/ops.h"
#include "core/random.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace statistics_test {

Tensor i64s(std::initializer_list<double> values) { return row(values, i64); }

// --- median, quantile ---

TEST(Median, IsTheLowerMiddleAndWhereItIs) {
  const Tensor x = from({3, 1, 2, 9, 7, 8, 8, 0}, {2, 4}).set_requires_grad();
  const auto [values, indices] = median(x, 1);
  EXPECT_EQ(to_vector(values), (Values{2, 7}));
  EXPECT_EQ(to_vector(indices), (Values{2, 0}));
  sum(values).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 1, 0, 1, 0, 0, 0}));
  EXPECT_EQ(median(x, 0, true).values.shape(), (Shape{1, 4}));
  EXPECT_EQ(median(x).item(), 3);
  EXPECT_EQ(median(i64s({5, 1, 4})).item(), 4);
  EXPECT_TRUE(std::isnan(median(row({1, nan, 2})).item()));
  EXPECT_EQ(median(row({5}, bf16)).dtype(), bf16);
  EXPECT_TRUE(std::isnan(median(zeros({0})).item()));
  EXPECT_ERROR(median(zeros({0}, i64)), "median: dimension 0 of [0] has no elements");
  EXPECT_ERROR(median(zeros({2, 0}), 1), "median: dimension 1 of [2, 0] has no elements");
  EXPECT_ERROR(median(zeros({2}), 1), "median: dimension 1 is out of range for rank 1");
}

TEST(Median, OfAllSharesItsGradientAmongEquals) {
  for (const DType dtype : {f32, f16}) {
    const Tensor x = from({2, 1, 2, 9, 2, 2}, {2, 3}, dtype).set_requires_grad();
    median(x).backward();
    EXPECT_EQ(to_vector(x.grad()), (Values{0.25, 0, 0.25, 0, 0.25, 0.25}));
    const Tensor y = row({nan, 1, nan}, dtype).set_requires_grad();
    EXPECT_EQ(to_vector(grad({median(y)}, {y})[0]), (Values{0.5, 0, 0.5}));
  }
}

TEST(NanMedian, LeavesNaNOut) {
  const Tensor x = from({nan, 3, 1, 2, nan, nan, nan, nan, 5, 4, 6, 7}, {3, 4}).set_requires_grad();
  const auto [values, indices] = nanmedian(x, 1);
  EXPECT_EQ(values.at(0), 2);
  EXPECT_TRUE(std::isnan(values.at(1)));
  EXPECT_EQ(values.at(2), 5);
  EXPECT_EQ(to_vector(indices), (Values{3, 0, 0}));
  sum(slice(values, 0, 0, 1)).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(nanmedian(x, 0, true).values.shape(), (Shape{1, 4}));
  EXPECT_EQ(nanmedian(x).item(), 4);
  EXPECT_TRUE(std::isnan(nanmedian(row({nan, nan})).item()));
  EXPECT_TRUE(std::isnan(nanmedian(zeros({0})).item()));
  EXPECT_EQ(nanmedian(i64s({5, 1, 4}), 0).values.item(), 4);
  EXPECT_EQ(nanmedian(i64s({5, 1, 4})).item(), 4);
  EXPECT_EQ(nanmedian(full({}, 7), -1).values.item(), 7);
  EXPECT_ERROR(nanmedian(zeros({2, 0}), 1), "nanmedian: dimension 1 of [2, 0] has no elements");
}

TEST(NanQuantile, LeavesNaNOut) {
  const Tensor x = from({nan, 4, 1, 2, nan, nan, nan, nan, -inf, 4, 6, inf}, {3, 4}, f64);
  const Values half = to_vector(nanquantile(x, 0.5, 1));
  EXPECT_EQ(half[0], 2);
  EXPECT_TRUE(std::isnan(half[1]));
  EXPECT_EQ(half[2], 5);
  EXPECT_EQ(nanquantile(x, 1, 1).at(2), inf);
  EXPECT_EQ(nanquantile(x, 0).item(), -inf);
  EXPECT_EQ(nanquantile(row({nan, 1, 2}), 0.25).item(), 1.25);
  EXPECT_EQ(nanquantile(x, row({0, 0.5}), 1, true).shape(), (Shape{2, 3, 1}));
  EXPECT_EQ(nanquantile(row({1, 3, nan}, bf16), 0.5).item(), 2);
  EXPECT_EQ(nanquantile(row({1, 3}), row({0, 1})).shape(), (Shape{2}));
  EXPECT_ERROR(nanquantile(x, 1.5), "nanquantile: q must be from 0 to 1, got 1.5");
  EXPECT_ERROR(nanquantile(zeros({0}), 0.5), "nanquantile: dimension 0 of [0] has no elements");
  EXPECT_ERROR(nanquantile(i64s({1}), 0.5), "i64");
}

TEST(Quantile, TakesSeveral) {
  const Tensor x = randn({3, 5}), q = row({0.75, 0, 0.1});
  const Tensor y = quantile(x, q, 1);
  EXPECT_EQ(y.shape(), (Shape{3, 3}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(equal(y[i], quantile(x, q.at(i), 1)));
  EXPECT_EQ(quantile(x, q, -1, true).shape(), (Shape{3, 3, 1}));
  EXPECT_EQ(quantile(x, q).shape(), (Shape{3}));
  EXPECT_EQ(quantile(x, full({}, 0.5)).shape(), Shape{});
  EXPECT_EQ(to_vector(quantile(full({}, 2), q, 0)), (Values{2, 2, 2}));
  EXPECT_ERROR(quantile(x, row({0.5, 2})), "quantile: q must be from 0 to 1, got 2");
  EXPECT_ERROR(quantile(x, zeros({1, 1})), "quantile: q has shape [1, 1], not [] or [k]");
}

TEST(Quantile, TakesAnElementOrTheMiddleOfTwo) {
  const Tensor x = row({4, 1, 3, 2, 5, inf});  // the position of 0.3 is 1.5
  EXPECT_EQ(quantile(x, 0.3, "lower").item(), 2);
  EXPECT_EQ(quantile(x, 0.3, 0, true, "higher").item(), 3);
  EXPECT_EQ(quantile(x, 0.3, "nearest").item(), 3);  // ties to even positions
  EXPECT_EQ(quantile(x, 0.5, "nearest").item(), 3);
  EXPECT_EQ(quantile(x, 0.9, "lower").item(), 5);
  EXPECT_EQ(quantile(x, 0.9, "midpoint").item(), inf);
  EXPECT_EQ(quantile(x, 0.25, "midpoint").item(), 2.5);
  EXPECT_EQ(quantile(x, 0.4, "midpoint").item(), 3);  // at an element
  const Tensor holes = row({nan, 4, 1, nan, 2, 3, 5});
  const Values want{2, 3, 3, 2.5};
  int i = 0;
  for (const char* kind : {"lower", "higher", "nearest", "midpoint"}) {
    EXPECT_EQ(nanquantile(holes, 0.375, kind).item(), want[size_t(i++)]) << kind;
    EXPECT_TRUE(std::isnan(quantile(holes, 0.3, kind).item())) << kind;
  }
  EXPECT_ERROR(quantile(x, 0.5, "middle"),
               "quantile: interpolation must be \"linear\", \"lower\", \"higher\", \"nearest\" or "
               "\"midpoint\", got \"middle\"");
  EXPECT_ERROR(nanquantile(x, 0.5, 0, false, ""), "nanquantile: interpolation must be");
}

TEST(XLogY, IsZeroWhereTheFactorIs) {
  const Tensor a = row({0, 0, 0, 0, 2, 2}, f64), b = row({0, -1, inf, nan, 0, 3}, f64);
  const Values y = to_vector(xlogy(a, b));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(y[size_t(i)], 0);
  EXPECT_TRUE(std::isnan(y[3]));
  EXPECT_EQ(y[4], -inf);
  EXPECT_NEAR(y[5], 2 * std::log(3), 1e-15);
  const Tensor p = row({0, 0.5}).set_requires_grad();
  sum(xlogy(p, p)).backward();  // the gradient of an entropy stays finite
  EXPECT_EQ(p.grad().at(0), 0);
  EXPECT_NEAR(p.grad().at(1), 1 + std::log(0.5), 1e-6);
  EXPECT_ERROR(xlogy(a, i64s({1})), "i64");
}

TEST(XLogY, TakesANumber) {
  EXPECT_EQ(to_vector(xlogy(row({0, 2}), 0)), (Values{0, -inf}));
  EXPECT_EQ(to_vector(xlogy(0, row({0, -1, inf}))), (Values{0, 0, 0}));
  EXPECT_TRUE(std::isnan(xlogy(row({0}), nan).item()));
  EXPECT_EQ(xlogy(row({1}, bf16), 3).dtype(), bf16);
  EXPECT_FLOAT_EQ(xlogy(2, row({3})).item(), 2 * std::log(3));
  EXPECT_ERROR(xlogy(i64s({1}), 2), "i64");
  EXPECT_ERROR(xlogy(2, i64s({1})), "i64");
}

TEST(CountNonzero, CountsNaN) {
  const Tensor x = from({0, 1, nan, -0.0, 2, 0}, {2, 3});
  EXPECT_EQ(count_nonzero(x).item<int64_t>(), 3);
  EXPECT_EQ(to_vector(count_nonzero(x, {1}, true)), (Values{2, 1}));
  EXPECT_EQ(count_nonzero(x, {0}).dtype(), i64);
  EXPECT_EQ(count_nonzero(gt(x, 0)).item<int64_t>(), 2);
}

TEST(Quantile, LiesOnTheLineBetweenTwo) {
  const Tensor x = row({4, 1, 3, 2}, f64).set_requires_grad();
  EXPECT_EQ(quantile(x, 0).item(), 1);
  EXPECT_EQ(quantile(x, 1).item(), 4);
  EXPECT_EQ(quantile(x, 0.5).item(), 2.5);
  const Tensor y = quantile(x, 0.25);
  EXPECT_EQ(y.item(), 1.75);
  y.backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{0, 0.25, 0, 0.75}));
  EXPECT_EQ(to_vector(quantile(from({1, 2, 30, 4, 5, 60}, {3, 2}), 0.5, 0)), (Values{5, 4}));
  EXPECT_EQ(quantile(zeros({3, 2}), 0.5, 0, true).shape(), (Shape{1, 2}));
  EXPECT_TRUE(std::isnan(quantile(row({1, nan, 2}), 0).item()));
  const Tensor ends = from({-inf, 1, inf, inf, -inf, -inf}, {3, 2}).set_requires_grad();
  for (const double q : {0.25, 0.75}) {
    EXPECT_EQ(to_vector(quantile(ends, q, 1)), (Values{-inf, inf, -inf}));
    EXPECT_EQ(to_vector(grad({sum(quantile(ends, q, 1))}, {ends})[0]),
              (Values{1 - q, q, 1 - q, q, 1 - q, q}));
    EXPECT_TRUE(std::isnan(quantile(row({-inf, inf}), q).item()));
  }
  EXPECT_ERROR(quantile(x, 1.5), "quantile: q must be from 0 to 1, got 1.5");
  EXPECT_ERROR(quantile(x, nan), "quantile: q must be from 0 to 1, got nan");
  EXPECT_ERROR(quantile(zeros({0}), 0.5), "quantile: dimension 0 of [0] has no elements");
  EXPECT_ERROR(quantile(i64s({1}), 0.5), "i64");
}

TEST(ArgMax, OfAllElements) {
  const Tensor x = from({3, 1, 9, 7, 9, 1}, {2, 3});
  EXPECT_EQ(argmax(x).item(), 2);
  EXPECT_EQ(argmin(x).item(), 1);
  EXPECT_EQ(argmax(x).shape(), Shape{});
}

// --- counts ---

RC_GTEST_PROP(Unique, HasEachOnceAndMakesTheTensorAgain, ()) {
  const auto numbers = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-5, 6));
  const Values all(numbers.begin(), numbers.end());
  std::map<double, double> counts;
  for (const double v : all) ++counts[v];
  for (const DType dtype : {f32, i64, bf16}) {
    const Unique u = unique(from(all, {int64_t(all.size())}, dtype));
    const Values values = to_vector(u.values), found = to_vector(u.counts);
    RC_ASSERT(values.size() == counts.size());
    size_t k = 0;
    for (const auto& [value, count] : counts) {
      RC_ASSERT(values[k] == value);
      RC_ASSERT(found[k++] == count);
    }
    RC_ASSERT(to_vector(u.inverse).size() == all.size());
    for (size_t i = 0; i < all.size(); ++i)
      RC_ASSERT(values[size_t(u.inverse.at<int64_t>(int64_t(i)))] == all[i]);
  }
}

TEST(Unique, OfAnyShapeAndOfNaNs) {
  const Unique u = unique(from({2, nan, 1, 2, nan, -0.0}, {2, 3}));
  EXPECT_EQ(u.inverse.shape(), (Shape{2, 3}));
  EXPECT_EQ(u.values.numel(), 5) << "each NaN is another";
  EXPECT_EQ(u.values.at(2), 2);
  EXPECT_EQ(to_vector(unique(row({1, 0, 1}, boolean)).counts), (Values{1, 2}));
  EXPECT_EQ(unique(zeros({2, 0}, i64)).inverse.shape(), (Shape{2, 0}));
  EXPECT_EQ(unique(ones({})).inverse.shape(), Shape{});
}

TEST(Unique, OfNeighbours) {
  const Unique u = unique_consecutive(from({1, 1, 3, nan, nan, 1}, {2, 3}));
  EXPECT_EQ(to_vector(u.inverse), (Values{0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(u.inverse.shape(), (Shape{2, 3}));
  EXPECT_EQ(to_vector(u.counts), (Values{2, 1, 1, 1, 1}));
  EXPECT_EQ(u.values.at(4), 1);
  EXPECT_EQ(unique_consecutive(zeros({0, 2}, i64)).inverse.shape(), (Shape{0, 2}));
  EXPECT_EQ(to_vector(unique_consecutive(row({1, 1, 0}, boolean)).values), (Values{1, 0}));
}

TEST(Unique, OfSlices) {
  const Tensor edges = from({3, 1, 0, 2, 3, 0, 0, 2, 3, 1}, {5, 2}, i64);
  const Unique u = unique(edges, 0);
  EXPECT_EQ(to_vector(u.values), (Values{0, 2, 3, 0, 3, 1}));
  EXPECT_EQ(to_vector(u.inverse), (Values{2, 0, 1, 0, 2}));
  EXPECT_EQ(to_vector(u.counts), (Values{2, 1, 2}));
  EXPECT_EQ(unique(edges, -2).values.shape(), (Shape{3, 2}));
  EXPECT_TRUE(equal(unique(edges.t(), 1).values, u.values.t()));
  EXPECT_EQ(unique_consecutive(edges, 0).values.size(0), 5);
  EXPECT_EQ(unique(zeros({0, 2}), 0).values.shape(), (Shape{0, 2}));
  EXPECT_EQ(to_vector(unique(zeros({3, 0}), 0).counts), (Values{3}));
  EXPECT_EQ(to_vector(unique(row({2, 1, 2}), 0).values), (Values{1, 2}));
  EXPECT_ERROR(unique(edges, 2), "unique: dimension 2 is out of range for rank 2");
}

TEST(Bincount, CountsOrAddsUp) {
  EXPECT_EQ(to_vector(bincount(i64s({1, 3, 1}))), (Values{0, 2, 0, 1}));
  EXPECT_EQ(to_vector(bincount(i64s({1, 3, 1}), {}, 6)), (Values{0, 2, 0, 1, 0, 0}));
  const Tensor w = row({0.5, 2, 3}).set_requires_grad();
  const Tensor sums = bincount(i64s({1, 3, 1}), w);
  EXPECT_EQ(to_vector(sums), (Values{0, 3.5, 0, 2}));
  sum(sums * sums).backward();
  EXPECT_EQ(to_vector(w.grad()), (Values{7, 4, 7}));
  EXPECT_EQ(to_vector(bincount(i64s({1, 1}), row({200, 200}, u8))), (Values{0, 400}));
  EXPECT_EQ(bincount(zeros({0}, i64)).numel(), 0);
  EXPECT_EQ(to_vector(bincount(zeros({0}, i64), {}, 2)), (Values{0, 0}));
  EXPECT_ERROR(bincount(i64s({2, -3})), "bincount: numbers must be >= 0, got -3");
  EXPECT_ERROR(bincount(row({1})), "bincount: numbers must be integers, got f32");
  EXPECT_ERROR(bincount(i64s({1, 2}), w), "bincount: weights");
  EXPECT_ERROR(bincount(i64s({1}), {}, -1), "bincount: least must be >= 0, got -1");
}

RC_GTEST_PROP(SearchSorted, AgreesWithBinarySearch, (bool right)) {
  const auto ints = rc::gen::container<std::vector<int>>(rc::gen::inRange(-5, 6));
  auto in = *ints;
  const auto wanted = *ints;
  std::ranges::sort(in);
  const Values numbers(in.begin(), in.end()), values(wanted.begin(), wanted.end());
  for (const DType dtype : {f32, i64}) {
    const Tensor at = searchsorted(from(numbers, {int64_t(numbers.size())}, dtype),
                                   from(values, {int64_t(values.size()), 1}, dtype), right);
    RC_ASSERT(at.shape() == (Shape{int64_t(values.size()), 1}));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto place = right ? std::ranges::upper_bound(numbers, values[i])
                               : std::ranges::lower_bound(numbers, values[i]);
      RC_ASSERT(at.at<int64_t>(int64_t(i)) == place - numbers.begin());
    }
  }
}

TEST(SearchSorted, HasItsErrors) {
  EXPECT_ERROR(
      searchsorted(zeros({2, 2}), zeros({1})),
      "searchsorted: numbers of shape [2, 2] for values of shape [1], not [n], or [..., n] "
      "for [..., m]");
  EXPECT_ERROR(searchsorted(zeros({2, 2}), zeros({3, 2})), "for values of shape [3, 2], not");
  EXPECT_ERROR(searchsorted(zeros({}), zeros({})), "searchsorted: numbers of shape []");
  EXPECT_ERROR(searchsorted(zeros({2}), zeros({1}, f64)), "f64");
  EXPECT_EQ(searchsorted(row({1, 2, nan}), full({}, nan)).item(), 2) << "NaN is the largest";
}

// --- rearranging, replacing ---

TEST(MoveDim, KeepsTheOthersInOrder) {
  const Tensor x = zeros({2, 3, 4, 5});
  EXPECT_EQ(movedim(x, {0}, {-1}).shape(), (Shape{3, 4, 5, 2}));
  EXPECT_EQ(movedim(x, {3, 0}, {0, 2}).shape(), (Shape{5, 3, 2, 4}));
  EXPECT_EQ(movedim(x, {}, {}).shape(), x.shape());
  EXPECT_EQ(movedim(x, {1}, {0}).storage()->id(), x.storage()->id()) << "a view";
  EXPECT_ERROR(movedim(x, {0}, {1, 2}), "movedim: 1 dimensions need as many places, got 2");
  EXPECT_ERROR(movedim(x, {0, -4}, {1, 2}), "movedim: dimension 0 is moved twice");
  EXPECT_ERROR(movedim(x, {0, 1}, {3, -1}), "movedim: dimensions 0 and 1 go to the same place");
  EXPECT_ERROR(movedim(x, {4}, {0}), "movedim: dimension 4 is out of range for rank 4");
}

TEST(Diag, GoesThereAndBack) {
  const Tensor x = row({1, 2});
  EXPECT_EQ(to_vector(diag(x)), (Values{1, 0, 0, 2}));
  EXPECT_EQ(to_vector(diag(x, 1)), (Values{0, 1, 0, 0, 0, 2, 0, 0, 0}));
  for (const int64_t offset : {-3, 0, 2})
    EXPECT_EQ(to_vector(diag(diag(x, offset), offset)), to_vector(x));
  EXPECT_EQ(trace(from({1, 2, 3, 4, 5, 6}, {2, 3})).item(), 6);
  EXPECT_EQ(trace(from({1, 2, 3, 4}, {2, 2}, i64)).dtype(), i64);
  EXPECT_ERROR(diag(ones({})), "diag: the input has shape [], not [n] or [m, n]");
  EXPECT_ERROR(diag(x, std::numeric_limits<int64_t>::min()), "diag: diag_embed: 2 elements");
  EXPECT_ERROR(trace(x), "trace: the input has shape [2], not [m, n]");
}

TEST(NanToNum, ReplacesWhatIsNotFinite) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor x = row({nan, inf, -inf, 1}, dtype);
    const double most = dtype == f64   ? std::numeric_limits<double>::max()
                        : dtype == f32 ? std::numeric_limits<float>::max()
                        : dtype == f16 ? 65504
                                       : 0x1.fep127;
    EXPECT_EQ(to_vector(nan_to_num(x)), (Values{0, most, -most, 1})) << name(dtype);
    EXPECT_EQ(to_vector(nan_to_num(x, 2, 3, inf)), (Values{2, 3, inf, 1})) << name(dtype);
  }
  const Tensor whole = i64s({1, 2});
  EXPECT_TRUE(nan_to_num(whole).is_same(whole));
}

TEST(Logit, UndoesSigmoid) {
  const Tensor x = row({-3, 0, 2.5}, f64);
  for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(logit(sigmoid(x)).at(i), x.at(i), 1e-14);
  EXPECT_EQ(to_vector(logit(row({0, 1}))), (Values{-inf, inf}));
  EXPECT_NEAR(logit(row({0, 2}, f64), 0.1).at(1), std::log(9), 1e-15);
  EXPECT_TRUE(std::isnan(logit(row({2})).item()));
  EXPECT_NEAR(logit(row({1}, f16), 1e-6).item(), std::log(1e6 - 1), 0.02) << "in f32 inside";
  EXPECT_EQ(logit(row({0.5}, bf16)).dtype(), bf16);
  EXPECT_ERROR(logit(x, 0.6), "logit: eps must be from 0 to 0.5, got 0.6");
}

// --- losses ---

TEST(GaussianNll, IsMinusTheLogarithmOfTheDensity) {
  const Tensor x = row({1, 2}, f64), t = row({1.5, -1}, f64), var = row({0.5, 4}, f64);
  const auto density = [&](int64_t i) {
    const double d = x.at(i) - t.at(i);
    return std::exp(-d * d / (2 * var.at(i))) / std::sqrt(2 * std::numbers::pi * var.at(i));
  };
  const Tensor each = gaussian_nll_loss(x, t, var, {.reduction = Reduction::None, .full = true});
  for (int64_t i = 0; i < 2; ++i) EXPECT_NEAR(each.at(i), -std::log(density(i)), 1e-12);
  const double constant = std::log(2 * std::numbers::pi) / 2;
  EXPECT_NEAR(gaussian_nll_loss(x, t, var).item(), mean(each).item() - constant, 1e-12);
  const Tensor small = row({0, 0}, f64).set_requires_grad();
  const Tensor loss = gaussian_nll_loss(x, x, small, {.reduction = Reduction::Sum, .eps = 0.01});
  EXPECT_NEAR(loss.item(), std::log(0.01), 1e-12);
  loss.backward();
  EXPECT_NEAR(small.grad().at(0), 50, 1e-9) << "through the least variance, as in PyTorch";
  const auto of = [&](double v) {
    return gaussian_nll_loss(ones({1}), ones({1}), row({v})).item();
  };
  for (const double v : {-100.0, -17.0, 0.0, 1e-7}) EXPECT_NEAR(of(v), std::log(1e-6) / 2, 1e-5);
  EXPECT_EQ(of(inf), inf);
  const Tensor two = zeros({2, 2}, f64), rows = row({1, 4}, f64);  // one per row, as in PyTorch
  const Tensor by_row = gaussian_nll_loss(two, two, rows, {.reduction = Reduction::None});
  EXPECT_EQ(to_vector(by_row), (Values{0, 0, std::log(4) / 2, std::log(4) / 2}));
  EXPECT_ERROR(gaussian_nll_loss(zeros({3, 2}), zeros({3, 2}), ones({2})),
               "gaussian_nll_loss: variances of shape [2] for an input of [3, 2]: one for each "
               "element, or for each row");
  EXPECT_ERROR(gaussian_nll_loss(zeros({2}), zeros({2}), ones({3, 2})),
               "variances of shape [3, 2]");
  EXPECT_ERROR(gaussian_nll_loss(x, t, var, {.eps = 0}),
               "gaussian_nll_loss: eps must be > 0, got 0");
  EXPECT_ERROR(gaussian_nll_loss(x, row({1}, f64), var), "gaussian_nll_loss: the target");
}

TEST(PoissonNll, IsThatOfACount) {
  const Tensor rate = row({0.5, 3, 7}, f64), t = row({0, 1, 5}, f64);
  const Tensor by_rate =
      poisson_nll_loss(rate, t, {.reduction = Reduction::None, .log_input = false, .eps = 0});
  const Tensor by_log = poisson_nll_loss(log(rate), t, {.reduction = Reduction::None});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(by_rate.at(i), rate.at(i) - t.at(i) * std::log(rate.at(i)), 1e-12);
    EXPECT_NEAR(by_log.at(i), by_rate.at(i), 1e-12);
  }
  const Tensor full =
      poisson_nll_loss(log(rate), t, {.reduction = Reduction::None, .full = true}) - by_log;
  EXPECT_EQ(full.at(0), 0);
  EXPECT_EQ(full.at(1), 0);
  EXPECT_NEAR(full.at(2), std::lgamma(6), 0.02) << "Stirling's";
  const Tensor none = poisson_nll_loss(zeros({1}, f16), i64s({0}), {.log_input = false});
  EXPECT_EQ(none.item(), 0) << "also where eps is no number of x's dtype";
}

TEST(Margins, OfHingeAndSoftMargin) {
  const Tensor x = row({0.2, 0.3, 2}, f64), t = row({1, -1, -1}, f64);
  EXPECT_EQ(to_vector(hinge_embedding_loss(x, t, {.reduction = Reduction::None, .margin = 1})),
            (Values{0.2, 0.7, 0}));
  const Tensor soft = soft_margin_loss(x, t, Reduction::None);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_NEAR(soft.at(i), std::log1p(std::exp(-t.at(i) * x.at(i))), 1e-12);
  EXPECT_ERROR(hinge_embedding_loss(x, row({1}, f64)), "hinge_embedding_loss: the target");
  EXPECT_ERROR(soft_margin_loss(x, row({1}, f64)), "soft_margin_loss: the target");
}

// --- the others ---

TEST(Running, ExtremesFollowPositions) {
  const Tensor x = row({2, 5, 5, 1, nan, 9}).set_requires_grad();
  const auto [values, indices] = cummax(x, 0);
  EXPECT_EQ(to_vector(indices), (Values{0, 1, 2, 2, 4, 4}));
  EXPECT_EQ(values.at(3), 5);
  EXPECT_TRUE(std::isnan(values.at(5)));
  EXPECT_EQ(to_vector(grad({sum(narrow(values, 0, 0, 4))}, {x})[0]), (Values{1, 1, 2, 0, 0, 0}));
  EXPECT_EQ(to_vector(cummin(i64s({3, 4, 3, 7}), 0).indices), (Values{0, 0, 2, 2}));
}

TEST(Logcumsumexp, GradientsStayInRange) {
  const Tensor x = row({-inf, 0, 2000, -2000, 1999}).set_requires_grad();
  const Tensor y = logcumsumexp(x, 0);
  EXPECT_EQ(y.at(0), -inf);
  EXPECT_NEAR(y.at(4), 2000 + std::log1p(std::exp(-1)), 1e-3);
  const Tensor dx = grad({y}, {x}, {.gradients = {row({1, -1, 1, -1, 1})}})[0];
  const double share = 1 / (1 + std::exp(-1));
  const Values want{0, -1, share, 0, 1 - share};  // of 2000: 1 - 1 + share
  for (int64_t i = 0; i < 5; ++i) EXPECT_NEAR(dx.at(i), want[size_t(i)], 1e-6) << i;
  EXPECT_ERROR(logcumsumexp(i64s({1}), 0), "logcumsumexp: elements must be floats, got i64");
}

TEST(NanMean, OfNothingIsNan) {
  EXPECT_TRUE(std::isnan(nanmean(row({nan, nan})).item()));
  EXPECT_EQ(nansum(row({nan, nan})).item(), 0);
  EXPECT_EQ(nansum(i64s({1, 2})).item<int64_t>(), 3);
  EXPECT_EQ(nanmean(row({60000, nan, 60000}, f16)).item(), 60000);
  EXPECT_ERROR(nanmean(i64s({1})), "nanmean: elements must be floats, got i64");
}

TEST(Cov, OfManyDtypesAndWeights) {
  const Tensor x = from({1, 2, 4, 8, 1, 0}, {2, 3});
  EXPECT_EQ(cov(x.to(f16)).dtype(), f16);
  EXPECT_NEAR(cov(select(x, 0, 0)).item(), var(select(x, 0, 0)).item(), 1e-6);
  EXPECT_NEAR(corrcoef(x).at(1), cov(x).at(1) / std::sqrt(cov(x).at(0) * cov(x).at(3)), 1e-6);
  EXPECT_EQ(corrcoef(select(x, 0, 0)).item(), 1);
  EXPECT_NEAR(corrcoef(x * 1e25).at(1), corrcoef(x).at(1), 1e-6);
  EXPECT_ERROR(cov(ones({2, 2, 2})),
               "cov: the input has shape [2, 2, 2], not [variables, observations] or");
  EXPECT_ERROR(cov(x, {.fweights = ones({3})}), "cov: fweights must be integers, got f32");
  EXPECT_ERROR(cov(x, {.fweights = ones({2}, i64)}), "cov: fweights has shape [2], not [3]");
  EXPECT_ERROR(cov(x, {.aweights = full({3}, -1)}), "cov: aweights must be >= 0");
}

TEST(Histc, CountsTheEndsAndLeavesOutTheRest) {
  const Tensor x = row({0, 1, 1, 2.5, 4, 4.1, -0.1, nan});
  EXPECT_EQ(to_vector(histc(x, 4, 0, 4)), (Values{1, 2, 1, 1}));
  EXPECT_EQ(to_vector(histc(row({7, 7, 7}), 2)), (Values{0, 3}));  // of [6, 8]
  EXPECT_EQ(to_vector(histc(ones({0}), 3)), (Values{0, 0, 0}));
  EXPECT_EQ(histc(x.to(f16), 4, 0, 4).dtype(), f16);
  EXPECT_ERROR(histc(x, 0, 0, 1), "histc: bins must be > 0 and below 2^31, got 0");
  EXPECT_ERROR(histc(x, std::numeric_limits<int64_t>::max(), 0, 1),
               "histc: bins must be > 0 and below 2^31, got 9223372036854775807");
  EXPECT_ERROR(histc(x, 4, 1, 0), "histc: the range must be finite and ascending, got 1 to 0");
  EXPECT_ERROR(histc(x, 4, 0, inf), "histc: the range must be finite and ascending, got 0 to inf");
  EXPECT_ERROR(histc(row({1, inf}), 4),
               "histc: the range must be finite and ascending, got 1 to inf");
  EXPECT_ERROR(histc(row({1, NAN}), 4),
               "histc: the range must be finite and ascending, got nan to nan");
}

TEST(Isin, IsOfOneDtype) {
  EXPECT_EQ(to_vector(isin(i64s({3, 1, 4}), i64s({4, 3}))), (Values{1, 0, 1}));
  EXPECT_EQ(to_vector(isin(row({nan, 1}), row({nan, 1}))), (Values{0, 1}));
  EXPECT_EQ(to_vector(isin(i64s({3, 1}), zeros({0}, i64))), (Values{0, 0}));
  EXPECT_EQ(to_vector(isin(i64s({3, 1}), zeros({0}, i64), true)), (Values{1, 1}));
}

TEST(Kthvalue, CountsFromOne) {
  const Tensor x = row({3, nan, 1, 2}).set_requires_grad();
  const auto [value, index] = kthvalue(x, 2);
  EXPECT_EQ(value.item(), 2);
  EXPECT_EQ(index.item<int64_t>(), 3);
  EXPECT_TRUE(std::isnan(kthvalue(x, 4).values.item()));
  EXPECT_EQ(to_vector(grad({value}, {x})[0]), (Values{0, 0, 0, 1}));
  EXPECT_ERROR(kthvalue(x, 0), "kthvalue: k must be from 1 to 4, got 0");
  EXPECT_ERROR(kthvalue(x, 5), "kthvalue: k must be from 1 to 4, got 5");
}

TEST(Mode, IsTheSmallestOfTheMostFrequent) {
  const auto [values, indices] = mode(from({2, 1, 2, 1, 3, 5, 5, 5, 1, 1}, {2, 5}, i64));
  EXPECT_EQ(to_vector(values), (Values{1, 5}));
  EXPECT_EQ(to_vector(indices), (Values{3, 2}));
  EXPECT_EQ(mode(row({4, nan, nan})).values.item(), 4);
  EXPECT_ERROR(mode(ones({2, 0})), "mode: dimension 1 of [2, 0] has no elements");
}

TEST(Diff, TakesAnyOrder) {
  const Tensor x = row({1, 4, 9, 16});
  EXPECT_EQ(to_vector(diff(x, 0)), to_vector(x));
  EXPECT_EQ(to_vector(diff(x, 0, -1, x, x)), to_vector(x));
  EXPECT_EQ(to_vector(diff(x, 2)), (Values{2, 2}));
  EXPECT_EQ(diff(x, 9).numel(), 0);
  EXPECT_EQ(to_vector(diff(row({0, 1, 1}, boolean))), (Values{1, 0}));
  EXPECT_ERROR(diff(x, -1), "diff: n must be >= 0, got -1");
}

TEST(GumbelSoftmax, SamplesTheDistribution) {
  const Seed seed(1);
  const Tensor logits = expand(log(row({0.1, 0.6, 0.3})), {20000, 3}).set_requires_grad();
  const Tensor y = gumbel_softmax(logits, 0.5, true);
  EXPECT_NEAR(mean(select(y, 1, 1)).item(), 0.6, 0.02);
  EXPECT_EQ(max(y).item(), 1);
  EXPECT_TRUE(allclose(sum(y, {1}), ones({20000})));
  const Tensor dx = grad({sum(select(y, 1, 0))}, {logits})[0];
  EXPECT_GT(sum(abs(dx)).item(), 0);
  EXPECT_TRUE(allclose(sum(dx, {1}), zeros({20000}), 0, 1e-6));
  EXPECT_ERROR(gumbel_softmax(logits, 0), "gumbel_softmax: tau must be > 0, got 0");
}

// --- integrals ---

TEST(Trapezoid, IsExactForLines) {
  const Tensor x = row({0, 1, 3, 3, 7}), y = x * 2 + 1;
  EXPECT_EQ(trapezoid(y, x).item(), 56);
  EXPECT_EQ(to_vector(cumulative_trapezoid(y, x)), (Values{2, 12, 12, 56}));
  EXPECT_EQ(to_vector(trapezoid(stack({x, y}), 0.5)), (Values{5.25, 12.5}));
  EXPECT_EQ(to_vector(trapezoid(stack({x, x * 0}, 1), x, 0)), (Values{24.5, 0}));
  EXPECT_EQ(trapezoid(ones({2, 1})).shape(), Shape{2});
  EXPECT_EQ(to_vector(trapezoid(zeros({2, 0}))), (Values{0, 0}));
  EXPECT_EQ(cumulative_trapezoid(zeros({0})).shape(), Shape{0});
  EXPECT_EQ(trapezoid(full({3}, 60000, f16), 0.5).item(), 60000) << "sums in between leave f16";
  EXPECT_ERROR(trapezoid(y, ones({4})),
               "trapezoid: points of shape [4] for values of shape [5]: neither the same nor [5]");
  EXPECT_ERROR(trapezoid(y, 1, 1), "trapezoid: dimension 1 is out of range for rank 1");
  EXPECT_ERROR(cumulative_trapezoid(arange(3)), "elements must be floats, got i64");
}

// --- variance ---

// PyTorch divides by 0 then, too; its infinite slopes are all positive.
TEST(Variance, IsInfiniteWithoutDegreesOfFreedom) {
  for (const DType dtype : {f32, f64, bf16})
    for (const double size : {1.0, 1e30})
      for (const int correction : {3, 5}) {
        const Tensor x = row({3 * size, -size, size}, dtype).set_requires_grad();
        const Tensor dx = grad({var(x, {}, false, correction)}, {x})[0];
        EXPECT_EQ(dx.at(0), inf);
        EXPECT_EQ(dx.at(1), -inf);
        EXPECT_EQ(var(x, {}, false, correction).item(), inf);
        EXPECT_EQ(stddev(x, {}, false, correction).item(), inf);
        EXPECT_EQ(std_mean(x, {}, false, correction).std.item(), inf);
        EXPECT_EQ(var_mean(x, {}, false, correction).var.item(), inf);
        EXPECT_EQ(cov(x, {.correction = correction}).item(), inf);
        const Tensor equal = row({2 * size, 2 * size, 2 * size}, dtype);
        EXPECT_TRUE(std::isnan(var(equal, {}, false, correction).item()));
      }
}

}  // namespace statistics_test
}  // namespace mixtape
