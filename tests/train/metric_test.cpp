// Metrics: values, exact counts in autocast regions, and totals.

#include "train/metric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"
#include "train/learner.h"

namespace mixtape::train {
namespace metric_test {

using namespace test;

// The class dimension is 1 for pixels, as for cross_entropy, and may be the last for sequences.
TEST(Metrics, FindTheClasses) {
  const Tensor target = from({0, 1, 1, 0}, {1, 2, 2}, i64), scores = one_hot(target, 2).to(f32);
  Total pixels(accuracy), sequence(accuracy), top(top_k(2));
  pixels.add(permute(scores, {0, 3, 1, 2}), target);
  EXPECT_EQ(pixels.value(), 1);
  const Tensor words = from({0, 2, 1, 1, 0, 2}, {2, 3}, i64);
  sequence.add(one_hot(words, 4).to(f32), words);
  EXPECT_EQ(sequence.value(), 1);
  top.add(permute(scores, {0, 3, 1, 2}), target);
  EXPECT_EQ(top.value(), 1);
  EXPECT_EQ(sum(confusion_matrix(permute(scores, {0, 3, 1, 2}), target, 2)).item(), 4);
  EXPECT_ERROR(sequence.add(ones({2, 5}), words), "accuracy: scores of shape [2, 5] for labels of");
}

TEST(Metrics, CountExactlyInAnyRegion) {
  const Tensor target = zeros({4099}, i64), output = one_hot(target, 2);
  for (const DType low : {f16, bf16}) {
    const amp::Autocast on({.low = low});
    EXPECT_EQ(confusion_matrix(output, target, 2).at(0), 4099);
    Total total(f1(2));
    total.add(output, target);
    EXPECT_EQ(total.value(), 0.5);
  }
}

TEST(Metrics, AreWhatTheirNamesSay) {
  const Tensor scores = from({9, 1, 0, 3, 2, 1, 0, 1, 5, 2, 3, 1}, {4, 3});
  const Tensor labels = from({0, 1, 2, 1}, {4}, i64);
  const auto value = [&](const Metric& m, const Tensor& out, const Tensor& y) {
    Total total(m);
    total.add(narrow(out, 0, 0, 3), narrow(y, 0, 0, 3));
    total.add(narrow(out, 0, 3, 1), narrow(y, 0, 3, 1));
    return total.value();
  };
  EXPECT_EQ(value(accuracy, scores, labels), 0.75);
  EXPECT_EQ(value(top_k(2), scores, labels), 1);
  // Class 0: 1 hit of 2 and 1; class 1: 1 of 1 and 2; class 2: 1 of 1 and 1.
  EXPECT_NEAR(value(f1(3), scores, labels), (2.0 / 3 + 2.0 / 3 + 1) / 3, 1e-12);
  const Tensor x = from({1, 2, 3, 4}, {4, 1}), y = from({1, 2, 3, 8}, {4, 1});
  EXPECT_EQ(value(mse, x, y), 4);
  EXPECT_EQ(value(rmse, x, y), 2);
  const Tensor c = confusion_matrix(scores, labels, 3);
  EXPECT_EQ(c.dtype(), i64);
  EXPECT_TRUE(all(eq(c, from({1, 0, 0, 1, 1, 0, 0, 0, 1}, {3, 3}, i64))).item());
  EXPECT_TRUE(std::isnan(Total(accuracy).value()));
  EXPECT_ERROR(value(accuracy, scores, scores), "accuracy: scores of shape");
  EXPECT_ERROR(value(accuracy, scores, labels.to(f32)), "labels must be integers, got f32");
  EXPECT_ERROR(value(mse, scores, labels), "mse: shapes must be equal, got [3, 3] and [3]");
  EXPECT_ERROR(value(top_k(4), scores, labels), "top_k: k must be at most 3, got 4");
  EXPECT_ERROR(top_k(0), "top_k: k must be >= 1, got 0");
  EXPECT_ERROR(confusion_matrix(scores, labels, 4), "scores of 3 classes, not 4");
}

}  // namespace metric_test
}  // namespace mixtape::train
