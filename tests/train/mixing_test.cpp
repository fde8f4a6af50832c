// MixUp and CutMix: shares, boxes and targets.

#include "train/mixing.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/ops.h"
#include "core/warn.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"

namespace mixtape::train {
namespace mixing_test {

using namespace test;

// Images whose values are ten times their label, and a callback that keeps what a model would get.
struct Kept : Callback {
  std::vector<Tensor> x, y;
  void on_batch_begin(Learner& l) override {
    if (!l.state.training) return;
    x.push_back(l.state.x.to(Device::cpu()).to(f64));
    y.push_back(l.state.y.to(Device::cpu()).to(f64));
  }
};

struct Flatten : nn::Module<Flatten> {
  nn::Linear fc{2 * 6 * 8, 4};
  Tensor forward(const Tensor& x) const { return fc(flatten(x.to(f32), 1)); }
  MIXTAPE_FIELDS(fc)
};

std::shared_ptr<Kept> trained(std::shared_ptr<Callback> mixing, DType dtype = f32) {
  const Seed seed(3);
  const DefaultDevice on_cpu(Device::cpu());
  const Tensor labels = from({0, 1, 2, 3, 0, 1, 2, 3}, {8}, i64);
  const Tensor images =
      (reshape(labels, {8, 1, 1, 1}).to(f32) * 10 + zeros({8, 2, 6, 8})).to(dtype);
  Loaders data;
  data.train.emplace(TensorDataset(cat({images, images}, 0), cat({labels, labels}, 0)),
                     DataLoaderOptions{.batch_size = 8});
  data.valid.emplace(TensorDataset(images, labels), DataLoaderOptions{.batch_size = 8});
  auto kept = std::make_shared<Kept>();
  LearnerOptions o = quiet();
  o.callbacks = {std::move(mixing), kept};
  Learner learner(std::move(data), Flatten(), o);
  learner.fit(3);
  return kept;
}

// There is no other image to mix it with.
TEST(MixUp, WarnsOfBatchesOfOne) {
  std::vector<std::string> told;
  const OnWarning listen([&](const std::string& text) { told.push_back(text); });
  Loaders data;
  const Device cpu = Device::cpu();
  const TensorDataset three(zeros({3, 2, 6, 8}, f32, cpu), zeros({3}, i64, cpu));
  data.train.emplace(three, DataLoaderOptions{.batch_size = 1});
  data.valid.emplace(three, DataLoaderOptions{.batch_size = 3});
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<MixUp>(MixOptions{.classes = 4})};
  Learner(std::move(data), Flatten(), o).fit(1);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("a batch of one stays as it is"), std::string::npos);
}

TEST(MixUp, MixesInputsAndTargetsAlike) {
  const auto kept = trained(std::make_shared<MixUp>(MixOptions{.classes = 4, .alpha = 0.7}));
  ASSERT_EQ(kept->x.size(), 6u);
  std::vector<double> shares;
  for (size_t b = 0; b < 6; ++b) {
    EXPECT_EQ(kept->y[b].shape(), Shape({8, 4}));
    const double share = kept->y[b].at(5);  // of class 1 in row 1, which has class 0 before it
    shares.push_back(share);
    for (int64_t row = 0; row < 8; ++row) {
      const int64_t label = row % 4, other = (row + 3) % 4;
      EXPECT_NEAR(kept->y[b].at(4 * row + label), share, 1e-6);
      EXPECT_NEAR(kept->y[b].at(4 * row + other), 1 - share, 1e-6);
      for (const int64_t at : {0, 95})
        EXPECT_NEAR(kept->x[b].at(96 * row + at),
                    10 * (share * double(label) + (1 - share) * double(other)), 1e-4);
    }
  }
  std::ranges::sort(shares);
  EXPECT_EQ(std::ranges::adjacent_find(shares), shares.end());  // each batch has its own
}

TEST(CutMix, CutsABoxAndCountsItsArea) {
  const auto kept = trained(std::make_shared<CutMix>(MixOptions{.classes = 4}));
  double least = 1;
  for (size_t b = 0; b < kept->x.size(); ++b)
    for (int64_t row = 0; row < 8; ++row) {
      int64_t own = 0, others = 0;
      for (int64_t i = 0; i < 96; ++i) {
        const double value = kept->x[b].at(96 * row + i);
        own += value == double(10 * (row % 4));
        others += value == double(10 * ((row + 3) % 4));
      }
      EXPECT_EQ(own + others, 96);
      EXPECT_NEAR(kept->y[b].at(4 * row + row % 4), double(own) / 96, 1e-6);
      least = std::min(least, double(own) / 96);
    }
  EXPECT_LT(least, 0.9);
}

// The share is uniform for alpha 1, near 0 or 1 for a small one, near a half for a large one.
TEST(MixUp, DrawsSharesFromBeta) {
  struct Moments {
    double mean, variance;
  };
  const auto moments = [](double alpha) {
    const Seed seed(5);
    const DefaultDevice on_cpu(Device::cpu());
    MixUp mixing({.classes = 2, .alpha = alpha});
    Learner learner(Flatten(), quiet());
    learner.state.training = true;
    double sum = 0, squares = 0;
    constexpr int n = 4000;
    for (int i = 0; i < n; ++i) {
      learner.state.x = from({0, 1}, {2, 1}, f64), learner.state.y = from({0, 1}, {2}, i64);
      mixing.on_batch_begin(learner);
      const double share = learner.state.x.at(1);
      EXPECT_TRUE(share >= 0 && share <= 1) << share;
      sum += share, squares += share * share;
    }
    return Moments{sum / n, squares / n - sum * sum / n / n};
  };
  for (const double alpha : {0.01, 0.2, 1.0, 4.0}) {
    const Moments m = moments(alpha);
    EXPECT_NEAR(m.mean, 0.5, 0.03) << alpha;
    EXPECT_NEAR(m.variance, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;
  }
}

TEST(MixUp, LeavesSomeBatchesAndAllOfValidation) {
  const auto none = trained(std::make_shared<MixUp>(MixOptions{.classes = 4, .probability = 0}));
  for (const Tensor& y : none->y) EXPECT_EQ(y.shape(), Shape({8}));
  // Both at once: probabilities are mixed again.
  const Seed seed(1);
  Learner learner(Flatten(), quiet());
  learner.state.training = true;
  learner.state.x = zeros({2, 2, 6, 8}), learner.state.y = from({0, 1}, {2}, i64);
  CutMix({.classes = 4}).on_batch_begin(learner);
  MixUp({.classes = 4}).on_batch_begin(learner);
  EXPECT_EQ(learner.state.y.shape(), Shape({2, 4}));
  EXPECT_NEAR(sum(learner.state.y).item(), 2, 1e-6);
  learner.state.training = false;
  learner.state.y = {};
  MixUp({.classes = 4}).on_batch_begin(learner);  // nothing to do
}

TEST(MixUp, SaysWhatIsWrong) {
  EXPECT_ERROR(MixUp({.classes = 0}), "classes must be > 0, got 0");
  EXPECT_ERROR(MixUp({.classes = 2, .alpha = 0}), "alpha must be > 0 and finite, got 0");
  EXPECT_ERROR(CutMix({.classes = 2, .probability = 1.5}), "probability must be from 0 to 1");
  EXPECT_ERROR(trained(std::make_shared<MixUp>(MixOptions{.classes = 4}), u8),
               "inputs must be floats to be mixed, got u8: normalize them");
  EXPECT_EQ(trained(std::make_shared<CutMix>(MixOptions{.classes = 4}), u8)->x.size(), 6u);
  Learner learner(Flatten(), quiet());
  learner.state.training = true;
  learner.state.x = zeros({2, 3});
  EXPECT_ERROR(MixUp({.classes = 4}).on_batch_begin(learner), "a batch has no targets to mix");
  learner.state.y = zeros({2}, i64);
  EXPECT_ERROR(CutMix({.classes = 4}).on_batch_begin(learner),
               "images must be [n, ..., height, width], got [2, 3]");
}

}  // namespace mixing_test
}  // namespace mixtape::train
