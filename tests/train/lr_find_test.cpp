// Learner::lr_find: its suggestion, and that it leaves no trace.

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "autograd/ops.h"
#include "core/random.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"

namespace mixtape::train {
namespace lr_find_test {

using namespace test;

TEST(LrFind, SaysWhatItNeeds) {
  Learner learner(loaders(), Net(), quiet());
  EXPECT_ERROR(learner.lr_find({.start = 0}), "lr_find needs 0 < start < end, got 0 and 10");
  EXPECT_ERROR(learner.lr_find({.end = INFINITY}), "got 1e-07 and inf");
  EXPECT_ERROR(learner.lr_find({.steps = 1}), "steps must be >= 2, got 1");
  EXPECT_ERROR(learner.lr_find({.stop_factor = 1}), "stop_factor must be > 1, got 1");
}

TEST(LrFind, LeavesNoTrace) {
  for (const Choose choose : precisions) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    choose(learner);
    learner.fit(1);
    const auto before = bytes(learner);
    learner.model().eval();
    const LrFind found = learner.lr_find({.steps = 30});
    EXPECT_EQ(differing(bytes(learner), before), "");
    EXPECT_FALSE(learner.model().is_training());
    ASSERT_GT(found.lr.size(), 5u);
    EXPECT_EQ(found.lr.front(), 1e-7);
    EXPECT_GT(found.suggested, 1e-7);
    EXPECT_LT(found.suggested, 10);
  }
}

// A history of the explosion would spoil the scales of the fit.
TEST(LrFind, LeavesNoHistoryOfARecipe) {
  const Seed seed(1);
  Learner learner(loaders(), nn::Sequential(nn::Linear(6, 8), nn::Linear(8, 8), nn::Linear(8, 3)),
                  quiet());
  learner.to_fp16(AmpOptions{.amp_mode = bf16, .recipe = amp::Delayed{}});
  const auto before = bytes(learner);
  learner.lr_find({.steps = 5});
  EXPECT_EQ(differing(bytes(learner), before), "");
  learner.fit(1);
  EXPECT_FALSE(learner.state_dict().under("recipe.").empty());
}

// The loss is a given function of the rate, with noise or a recovery from an explosion that must
// not be suggested.
LrFind found_with(const std::function<double(int64_t step, double lr)>& given,
                  const LrFindOptions& options = {}) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const Learner* running = nullptr;
  int64_t step = 0;
  o.loss = [&](const Tensor& y, const Tensor&) {
    return sum(y * 0) + given(step++, running->optimizer->lr());
  };
  Learner learner(loaders(), Net(), o);
  running = &learner;
  return learner.lr_find(options);
}

TEST(LrFind, EndsWhereTheLossExplodes) {
  const auto explodes = [](int64_t, double lr) { return lr < 0.1 ? 1 : 1000; };
  EXPECT_EQ(found_with(explodes).lr.size(), 75u);  // below 0.1, of 100 rates from 1e-7 to 10
  EXPECT_EQ(found_with(explodes, {.stop_factor = 1000}).lr.size(), 100u);
}

TEST(LrFind, SuggestsWhereTheLossFallsAndNotWhereItIsNoisy) {
  const auto falls = [](double lr) { return 2 - 1 / (1 + 0.01 / lr); };  // most at 1e-2
  for (const double noise : {0.6, -0.6}) {                               // of the first batch
    const LrFind found =
        found_with([&](int64_t i, double lr) { return falls(lr) + (i == 0 ? noise : 0); });
    EXPECT_GT(found.suggested, 1e-3) << noise;
    EXPECT_LT(found.suggested, 1) << noise;
  }
  const LrFind exploded = found_with([&](int64_t, double lr) {
    return lr < 0.1 ? falls(lr) : lr < 0.5 ? 9 : 0.6;
  });
  EXPECT_GT(exploded.suggested, 1e-3);
  EXPECT_LT(exploded.suggested, 0.1);
}

// Losses of single batches spread by a tenth to a sixth of the fall, or by a third with 300 steps.
// (The losses are given, so on a device nothing else would be suggested in all these steps.)
TEST(LrFind, SuggestsWhereNoisyLossesFall) {
  const DefaultDevice on_cpu(Device::cpu());
  struct Case {
    int64_t steps;
    double noise, at;
  };
  for (const auto& [steps, noise, at] :
       {Case{20, 0.1, 0.01}, Case{40, 0.3, 0.1}, Case{40, 0.1, 1e-3}, Case{100, 0.3, 0.1},
        Case{100, 0.3, 1e-3}, Case{300, 0.6, 0.01}})
    for (uint64_t seed = 0; seed < 20; ++seed) {
      std::mt19937_64 random(seed);
      std::normal_distribution<> spread(0, noise);
      const LrFind found = found_with(
          [&, at = at](int64_t, double lr) {
            const double falls = 2.3 - 1.8 / (1 + at / lr), end = 10 * at;
            return (lr < end ? falls : 2.3 * lr * lr / (end * end)) + spread(random);
          },
          {.steps = steps});
      EXPECT_GT(found.suggested, 0.05 * at) << steps << " steps, seed " << seed;
      EXPECT_LT(found.suggested, 8 * at) << steps << " steps, seed " << seed;
      EXPECT_EQ(found.raw.size(), found.lr.size());
    }
}

// One batch an epoch: losses hardly spread, and rise a little before they fall.
TEST(LrFind, SmallRisesAreNoExplosion) {
  const LrFind found = found_with([](int64_t i, double lr) {
    return lr < 1e-3 ? 2.3 + 1e-6 * double(i * i) : 2.3 - 1.8 / (1 + 0.03 / lr);
  });
  EXPECT_GT(found.suggested, 3e-3);
  EXPECT_LT(found.suggested, 0.3);
}

TEST(LrFind, AFewBatchesThatAreLuckyDoNotEndIt) {
  const auto lucky = [](int64_t i, double) { return i < 3 ? 0.05 : 1; };
  EXPECT_EQ(found_with(lucky).lr.size(), 100u);
}

TEST(LrFind, AcceptsLossesBelowZero) {
  const auto falls = [](int64_t, double lr) { return lr < 1 ? 0.5 - 2 / (1 + 0.01 / lr) : 50; };
  const LrFind found = found_with(falls);
  EXPECT_EQ(found.lr.size(), 89u);  // below 1, and one more
  EXPECT_GT(found.suggested, 1e-3);
  EXPECT_LT(found.suggested, 0.1);
  const auto negative = [](int64_t, double lr) { return lr < 1 ? -5 - 2 / (1 + 0.01 / lr) : 500; };
  EXPECT_GT(found_with(negative).lr.size(), 80u);
}

TEST(LrFind, IsNoPartOfAFitThatStoppedEarly) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0}); };  // nothing improves
  o.callbacks = {std::make_shared<EarlyStopping>()};
  Learner learner(loaders(), Net(), o);
  learner.fit(9);
  EXPECT_EQ(learner.state.epoch, 4);
  EXPECT_EQ(learner.lr_find({.steps = 10}).lr.size(), 10u);
  EXPECT_EQ(learner.state.epoch, 4);
}

TEST(LrFind, IsUndoneAfterAnExceptionToo) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  learner.to_fp16();
  learner.fit_one_cycle(1, 1e-2);
  const auto before = bytes(learner);
  const double seconds = learner.history.epochs[0].seconds;
  const auto spy = std::make_shared<Spy>();
  spy->at = "backward";
  spy->ask = [](Learner& l) {
    if (l.state.step == 10) throw std::runtime_error("enough");
  };
  learner.add(spy);
  EXPECT_THROW(learner.lr_find(), std::runtime_error);
  EXPECT_TRUE(spy->seen.ends_with("backward train."));
  EXPECT_EQ(differing(bytes(learner), before), "");
  EXPECT_EQ(learner.history.epochs[0].seconds, seconds);
  EXPECT_TRUE(learner.schedule != nullptr);
}

struct Counting : nn::Module<Counting> {
  Net net;
  nn::UnsavedBuffer calls = zeros({}), repeated = expand(zeros({1}), {3});
  Tensor forward(const Tensor& x) const {
    add_(calls, 1.0);
    return net(x);
  }
  MIXTAPE_FIELDS(net, calls, repeated)
};
TEST(LrFind, UndoesWhatIsNotSaved) {
  const Seed seed(1);
  Counting model;
  Learner learner(loaders(), model, quiet());
  learner.fit(1);
  const double before = model.calls.item();
  learner.lr_find({.steps = 5});
  EXPECT_EQ(model.calls.item(), before);
}

TEST(LrFind, SkipsObservers) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<TerminateOnNan>(),
                 std::make_shared<ModelCheckpoint>(
                     ModelCheckpointOptions{.folder = folder.path(), .every_steps = 1})};
  o.loss = [](const Tensor& out, const Tensor& y) { return cross_entropy(out, y) * INFINITY; };
  Learner learner(loaders(), Net(), o);
  EXPECT_TRUE(learner.lr_find({.steps = 5}).lr.empty());
  EXPECT_EQ(folder.count(), 0u);
}

}  // namespace lr_find_test
}  // namespace mixtape::train
