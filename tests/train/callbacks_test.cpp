// The standard callbacks: early stopping, plateaus, averaged weights, NaN checks, and logs.

#include "train/callbacks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "autograd/ops.h"
#include "core/random.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#include "tests/support/out_of_memory.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/charts.h"
#include "train/tensorboard.h"

namespace mixtape::train {
namespace callbacks_test {

using namespace test;

// A metric that returns the given values in turn.
Metric given(std::vector<double>& values, bool higher_is_better = true) {
  return {"given", [](const Tensor&, const Tensor& y) { return zeros({1}, f64, y.device()); },
          [&](const Tensor&, int64_t) {
            const double value = values.front();
            values.erase(values.begin());
            return value;
          },
          higher_is_better};
}

// The epoch in best.ckpt (or 0) of a fit, and the epoch after which it stopped.
using BestAndLast = std::pair<size_t, size_t>;
BestAndLast best_and_last(std::vector<double> values, bool higher, double min_delta = 0) {
  const Seed seed(1);
  const TempFolder folder;
  const auto epochs = int64_t(values.size());
  LearnerOptions o = quiet();
  o.metrics = {given(values, higher)};
  o.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{
                     .monitor = "given", .patience = 2, .min_delta = min_delta}),
                 std::make_shared<ModelCheckpoint>(
                     ModelCheckpointOptions{.folder = folder.path(), .monitor = "given"})};
  Learner learner(loaders(), Net(), o);
  learner.fit(epochs);
  const size_t last = learner.history.epochs.size();
  if (!std::filesystem::exists(folder / "best.ckpt")) return {0, last};
  learner.load(folder / "best.ckpt");
  return {learner.history.epochs.size(), last};
}

TEST(Callbacks, KnowTheBestEpoch) {
  EXPECT_EQ(best_and_last({.5, .7, NAN, .6, .8}, true), BestAndLast(2, 4));
  EXPECT_EQ(best_and_last({.5, .7, NAN, .6, .4}, false), BestAndLast(1, 3));
  EXPECT_EQ(best_and_last({.5, .5, .6, .6, .6, .7}, true), BestAndLast(3, 5)) << "equal is no more";
  EXPECT_EQ(best_and_last({.5, .5, .4, .4, .4, .3}, false), BestAndLast(3, 5));
  EXPECT_EQ(best_and_last({NAN, NAN, .5}, true), BestAndLast(0, 2));
  // An improvement below min_delta does not reset the patience, but is the best so far.
  EXPECT_EQ(best_and_last({.5, .6, .7, .9}, true, .3), BestAndLast(3, 3));
  EXPECT_EQ(best_and_last({.5, .6, .7, .8, .8, .8}, true, .15), BestAndLast(4, 5));
  EXPECT_EQ(best_and_last({.5, .4, .3, .1}, false, .3), BestAndLast(3, 3));
}

TEST(Callbacks, EarlyStoppingWaitsForItsPatience) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 2})};
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0}); };  // nothing improves
  Learner learner(loaders(), Net(), o);
  learner.fit(10);
  EXPECT_EQ(learner.history.epochs.size(), 3u);
  learner.fit(10);  // starts afresh
  EXPECT_EQ(learner.history.epochs.size(), 6u);
}

TEST(Callbacks, RefuseAChangeThatIsNone) {
  for (const double by : {-0.1, double(NAN)}) {
    EXPECT_ERROR(EarlyStopping({.min_delta = by}), "min_delta must be >= 0, got ");
    EXPECT_ERROR(BestValue("loss", by), "min_delta must be >= 0, got ");
  }
}

TEST(Callbacks, SayWhichMonitorNeedsValidationData) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const auto refused = [&](std::shared_ptr<Callback> callback, const std::string& why) {
    o.callbacks = {std::move(callback)};
    Learner learner(loaders(), Net(), o);
    learner.data.valid.reset();
    EXPECT_ERROR(learner.fit(1), why);
    EXPECT_TRUE(learner.history.steps.empty());
  };
  const std::string none = "\"valid_loss\" needs validation data";
  refused(std::make_shared<EarlyStopping>(), none);
  refused(std::make_shared<ReduceLrOnPlateau>(), none);
  refused(std::make_shared<ReduceLrOnPlateau>(optim::PlateauOptions{.factor = 2}, "train_loss"),
          "factor must be in [0, 1), got 2");
  o.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "train_loss"})};
  Learner learner({loaders().train, {}}, Net(), o);
  learner.fit(1);
}

// Throws before the first epoch.
TEST(Callbacks, RefuseUnknownMonitorsAtOnce) {
  const TempFolder folder;
  const std::shared_ptr<Callback> all[] = {
      std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "acuracy"}),
      std::make_shared<ReduceLrOnPlateau>(optim::PlateauOptions{}, "acuracy"),
      std::make_shared<ModelCheckpoint>(
          ModelCheckpointOptions{.folder = folder.path(), .monitor = "acuracy"})};
  for (const auto& callback : all) {
    LearnerOptions o = quiet();
    o.callbacks = {callback};
    Learner learner(loaders(), Net(), o);
    EXPECT_ERROR(learner.fit(1), "no value is named \"acuracy\"; there are train_loss, ");
    EXPECT_EQ(learner.state.step, 0);
  }
}

TEST(Callbacks, RefuseNumbersThatMakeNoSense) {
  EXPECT_ERROR(EarlyStopping({.patience = 0}), "patience must be >= 1, got 0");
  const TempFolder folder;
  EXPECT_ERROR(ModelCheckpoint({.folder = folder.path(), .every_steps = -1}),
               "every_steps must be >= 0, got -1");
  EXPECT_ERROR(GradientAccumulation(0), "batches must be >= 1, got 0");
  EXPECT_ERROR(GradientClip(0), "max_norm must be > 0, got 0");
  io::Chart chart;
  EXPECT_ERROR(thin(chart, 0), "most_points must be > 0, got 0");
}

TEST(Callbacks, GradientClipLimitsStepsInCustomLoops) {
  LearnerOptions o = quiet();
  o.loss = [](const Tensor& output, const Tensor&) { return mean(output); };
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 1}); };
  o.callbacks = {std::make_shared<GradientClip>(0.5)};
  nn::Linear net(1, 1, {.bias = false});
  Learner learner(net, o);
  const double before = net.weight.item();
  learner.train_batch({ones({1, 1}), ones({1, 1})});
  EXPECT_NEAR(before - net.weight.item(), 0.5, 1e-4);
}

TEST(Callbacks, ReduceLrOnPlateauFollowsANumberOfTheTable) {
  const Seed seed(1);
  std::vector<double> values = {0.5, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7};
  LearnerOptions o = quiet();
  o.metrics = {given(values)};
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 1}); };
  const auto spy = std::make_shared<Spy>();
  std::vector<double> rates;
  spy->at = "epoch.";
  spy->ask = [&](Learner& l) { rates.push_back(l.optimizer->lr()); };
  o.callbacks = {std::make_shared<ReduceLrOnPlateau>(
                     optim::PlateauOptions{.factor = 0.5, .patience = 1}, "given"),
                 spy};
  Learner learner(loaders(), Net(), o);
  learner.fit(7);
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5, 0.25}));
  EXPECT_ERROR(learner.fit_one_cycle(1),
               "ReduceLrOnPlateau cannot run beside the schedule one_cycle");
}

// Averages made in a custom loop are validated and kept.
TEST(Callbacks, EmaWeightsValidateAndRemain) {
  const optim::EmaOptions options{.decay = 0.8, .warmup = true};
  const auto train = [&](std::shared_ptr<Callback> averaging, Net& net) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    if (averaging) o.callbacks = {averaging};
    std::optional<optim::Ema> ema;
    const auto spy = std::make_shared<Spy>();
    spy->at = "step.";
    spy->ask = [&](Learner& l) { ema->update(l.state.result); };
    if (!averaging) o.callbacks = {spy};
    Learner learner(loaders(), net, o);
    if (averaging) {
      learner.fit(2);
      return learner.history.epochs.back().valid_loss;
    }
    ema.emplace(net.parameters(), options);
    learner.data.valid.reset();
    learner.fit(2);
    ema->overwrite_tensors();
    learner.data.valid = loaders().valid;
    return learner.validate().loss;
  };
  Net mine, theirs;
  theirs.load_state_dict(mine.state_dict());
  EXPECT_EQ(train(nullptr, mine), train(std::make_shared<EmaWeights>(options), theirs));
  for (size_t i = 0; i < mine.parameters().size(); ++i)
    EXPECT_TRUE(all(eq(mine.parameters()[i], theirs.parameters()[i])).item()) << i;
}

std::shared_ptr<Callback> averaging() {
  return std::make_shared<EmaWeights>(optim::EmaOptions{.decay = 0.9});
}
LearnerOptions averaged_into(const TempFolder& folder) {
  LearnerOptions o = quiet();
  o.callbacks = {averaging(), std::make_shared<ModelCheckpoint>(
                                  ModelCheckpointOptions{.folder = folder.path()})};
  return o;
}

// A checkpoint holds the averages that were validated.
TEST(Callbacks, EmaWeightsOfACheckpointValidate) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = averaged_into(folder);
  Learner learner(loaders(), Net(), o);
  learner.fit(2);
  o.callbacks = {averaging()};
  Learner other(loaders(), Net(), o);
  for (int twice = 0; twice < 2; ++twice) {
    other.load(folder / "last.ckpt");
    EXPECT_EQ(other.validate().loss, learner.history.epochs[1].valid_loss);
    const Predictions p = other.predict(*other.data.valid);
    EXPECT_NEAR(cross_entropy(p.output, p.y).item(), other.validate().loss, 1e-6);
    const auto weights = to_vector(other.optimizer->params()[0]);
    other.train_batch(other.data.train->batch(0));
    EXPECT_NE(to_vector(other.optimizer->params()[0]), weights);
  }
}

// If another callback rejects a fit, the weights stay.
TEST(Callbacks, EmaWeightsOfACheckpointReplaceNoWeights) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = averaged_into(folder);
  Learner(loaders(), Net(), o).fit(1);
  o.callbacks = {averaging(), std::make_shared<ReduceLrOnPlateau>()};
  Learner other(loaders(), Net(), o);
  other.load(folder / "last.ckpt");
  const auto weights = to_vector(other.optimizer->params()[0]);
  const double loss = other.validate().loss;
  EXPECT_ERROR(other.fit_one_cycle(1), "ReduceLrOnPlateau cannot run beside");
  EXPECT_EQ(to_vector(other.optimizer->params()[0]), weights);
  EXPECT_EQ(other.validate().loss, loss);
}

// An exception in a validation leaves the averages in the model.
TEST(Callbacks, EmaWeightsOutliveAnException) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "vloss";
  spy->ask = [](Learner&) { throw std::runtime_error("enough"); };
  o.callbacks = {std::make_shared<EmaWeights>(), spy};
  Net net;
  Learner learner(loaders(), net, o);
  EXPECT_THROW(learner.fit(1), std::runtime_error);
  const Tensor before = net.up.weight.clone();
  spy->at = "";
  learner.fit(1);  // averages are no longer applied
  EXPECT_FALSE(all(eq(before, net.up.weight)).item());
}

// Where even copies of the list of callbacks fail, the averages no longer stand for the weights.
TEST(Callbacks, EmaWeightsOutliveAValidationWithoutMemory) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "vloss";
  spy->ask = [](Learner&) { MemoryState::current().is_out = true; };
  o.callbacks = {std::make_shared<EmaWeights>(), spy};
  Net net;
  Learner learner(loaders(), net, o);
  const auto fails = [&] {
    const ScopedValue<&MemoryState::is_out> restored(false);
    learner.fit(1);
  };
  EXPECT_THROW(fails(), std::bad_alloc);
  const Tensor before = net.up.weight.clone();
  spy->at = "";
  learner.fit(1);
  EXPECT_FALSE(equal(net.up.weight, before));
}

TEST(Callbacks, TerminateOnNanSaysWhere) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<TerminateOnNan>()};
  int calls = 0;
  o.loss = [&](const Tensor& out, const Tensor& y) {
    return cross_entropy(out, y) + (++calls == 3 ? NAN : 0.0);  // its gradient is finite
  };
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.fit(1), "the loss of step 2 is nan");
  if (learner.device() == Device::cpu()) {
    EXPECT_EQ(calls, 3);
  }
  learner.fit(1);  // ignores that step
}

// Also if its batch is not the last of a step, and has no row.
TEST(Callbacks, TerminateOnNanSeesEveryBatch) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "loss";
  spy->ask = [](Learner& l) {
    if (l.state.batch == 4) l.state.output = l.state.output * NAN;
  };
  o.callbacks = {std::make_shared<GradientAccumulation>(3), std::make_shared<TerminateOnNan>(),
                 spy};
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.fit(1), "the training loss of epoch 0 is nan");
  spy->at = "epoch";
  spy->ask = [](Learner& l) { l.skip(); };
  Learner idle(loaders(), Net(), o);
  idle.fit(1);
  EXPECT_TRUE(std::isnan(idle.history.epochs[0].train_loss));
}

// A row has a value for each metric, even for metrics added later.
TEST(Callbacks, LogsHaveAColumnPerMetric) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<CsvLogger>(folder / "log.csv"),
                 std::make_shared<JsonlLogger>(folder / "log.jsonl")};
  Learner learner({loaders().train, {}}, Net(), o);
  learner.fit(1);
  EXPECT_NE(slurp(folder / "log.csv").find(",nan,nan,"), std::string::npos);
  EXPECT_NE(slurp(folder / "log.jsonl").find("\"accuracy\":null"), std::string::npos);
  learner.metrics.clear();
  learner.fit(1);
  learner.metrics = {accuracy, top_k(2)};
  learner.data.valid = loaders().valid;
  learner.fit(1);
  const std::string csv = slurp(folder / "log.csv");
  EXPECT_EQ(std::ranges::count(csv, '\n'), 4);
  EXPECT_EQ(std::ranges::count(csv, ','), 4 * 5) << csv;
  learner.metrics.back().name = "top, 2";
  learner.fit(1);
  EXPECT_NE(slurp(folder / "log.csv").find(",accuracy,\"top, 2\",seconds\n"), std::string::npos);
}

// Validation alone does not change the logs.
TEST(Callbacks, LogsAreOfTrainings) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<JsonlLogger>(folder / "log.jsonl"),
                 std::make_shared<TensorBoard>(folder.path())};
  Learner(loaders(), Net(), o).fit(1);
  const std::string log = slurp(folder / "log.jsonl");
  const auto files = folder.count();
  Learner(loaders(), Net(), o).validate();
  EXPECT_EQ(slurp(folder / "log.jsonl"), log);
  EXPECT_EQ(folder.count(), files);
}

// The logs follow a fit that returns to an earlier checkpoint at a lower rate.
TEST(Callbacks, LogsGoBackWithACheckpoint) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "epoch.";
  spy->ask = [&](Learner& l) {
    if (l.state.epoch == 1) l.save(folder / "one.ckpt");
    if (l.state.epoch != 3) return;
    l.load(folder / "one.ckpt");
    l.optimizer->set_lr(1e-4);
  };
  o.callbacks = {spy, std::make_shared<JsonlLogger>(folder / "log.jsonl", true),
                 std::make_shared<TensorBoard>(folder / "events")};
  Learner learner(loaders(), Net(), o);
  learner.fit(4);
  const auto log = io::read_json_lines(folder / "log.jsonl");
  ASSERT_EQ(log.size(), 2u + 12);
  EXPECT_EQ(log[7][2], (io::JsonFields::value_type{"lr", 1e-4}));
  const std::filesystem::directory_iterator files(folder / "events");
  EXPECT_EQ(std::distance(files, {}), 2);
}

TEST(Callbacks, LogsHaveARowPerEpoch) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<CsvLogger>(folder / "log.csv"),
                 std::make_shared<JsonlLogger>(folder / "log.jsonl", true)};
  Learner learner(loaders(), Net(), o);
  learner.fit(2);
  const std::string csv = slurp(folder / "log.csv");
  EXPECT_TRUE(csv.starts_with("epoch,train_loss,valid_loss,accuracy,seconds\n0,")) << csv;
  EXPECT_EQ(std::ranges::count(csv, '\n'), 3);
  const std::string jsonl = slurp(folder / "log.jsonl");
  EXPECT_EQ(std::ranges::count(jsonl, '\n'), 2 + 12) << jsonl;
}

}  // namespace callbacks_test
}  // namespace mixtape::train
