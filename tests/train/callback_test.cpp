// Callback: the events of a training, skip() and stop(), exceptions, and accumulated gradients.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/random.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"
#include "train/callbacks.h"

namespace mixtape::train {
namespace callback_test {

using namespace test;

std::string events(const std::string& at, std::function<void(Learner&)> ask) {
  const Seed seed(1);
  Learner learner(loaders(16, 8), Net(), quiet());
  learner.data.valid.emplace(clusters(6, 2), DataLoaderOptions{.batch_size = 6});
  const auto spy = std::make_shared<Spy>();
  spy->at = at;
  spy->ask = std::move(ask);
  learner.add(spy);
  learner.fit(1);
  return spy->seen;
}

// Callbacks own what they can reach, but a loop needs its data.
TEST(Callbacks, MayNotRemoveDataInUse) {
  const std::string says = "a callback removed the data that were in use";
  const auto removed = [&](const std::string& at, auto which) {
    EXPECT_ERROR(events(at, [&](Learner& l) { (l.data.*which).reset(); }), says);
  };
  for (const char* at : {"train", "epoch", "batch", "loss", "batch."}) removed(at, &Loaders::train);
  for (const char* at : {"valid", "vbatch", "vloss", "vbatch."}) removed(at, &Loaders::valid);
  Learner learner(loaders(), Net(), quiet());
  const auto spy = std::make_shared<Spy>();
  spy->at = "batch.";
  spy->ask = [](Learner& l) { l.data.train.reset(); };
  learner.add(spy);
  EXPECT_ERROR(learner.lr_find(), says);
  learner.optimizer.reset();
  EXPECT_ERROR(learner.fit(1), "there is no optimizer: compile() makes one");
}

// Nor may it lose the optimizer, or leave a schedule with one that is gone.
TEST(Callbacks, MayNotRemoveTheOptimizer) {
  for (const char* at : {"train", "epoch", "batch", "loss", "backward", "backward.", "step",
                         "step.", "batch.", "valid", "vbatch.", "valid.", "epoch."})
    EXPECT_ERROR(events(at, [](Learner& l) { l.optimizer.reset(); }),
                 "there is no optimizer: compile() makes one");
  Learner custom(loaders(), Net(), quiet());
  custom.optimizer.reset();
  const std::string none = "there is no optimizer";
  EXPECT_ERROR(custom.train_batch({randn({2, 2}), zeros({2}, i64)}), none);
  EXPECT_ERROR(custom.to_fp16(), none);
  EXPECT_ERROR(custom.state_dict(), none);
  custom.validate();
  for (const bool whole : {false, true}) {  // compile() replaces it in every precision
    custom.compile(quiet());
    whole ? custom.to_fp16(MasterOptions{}) : custom.to_fp16();
    custom.optimizer.reset();
    custom.compile(quiet());
    EXPECT_EQ(custom.fit(1), FitResult::Finished);
  }
  const auto replaced = [](bool on_plateau, const FitOptions& options, bool with_schedule) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    const auto spy = std::make_shared<Spy>();
    spy->at = "epoch";
    spy->ask = [&](Learner& l) {
      if (l.state.epoch != 1) return;
      l.optimizer = std::make_unique<optim::SGD>(l.model().parameters());
      if (with_schedule) l.schedule = options.schedule(*l.optimizer, 12);
    };
    learner.add(spy);
    if (on_plateau) learner.add(std::make_shared<ReduceLrOnPlateau>());
    learner.fit(2, options);
    return std::string(learner.optimizer->name());
  };
  const FitOptions falling{.schedule = [](optim::Optimizer& opt, int64_t steps) {
    return std::make_unique<optim::Cosine>(opt, optim::CosineOptions{.total_steps = steps});
  }};
  EXPECT_EQ(replaced(false, {}, false), "sgd");
  EXPECT_EQ(replaced(false, falling, true), "sgd");
  EXPECT_ERROR(replaced(false, falling, false),
               "a callback replaced the optimizer of the schedule cosine");
  EXPECT_ERROR(replaced(true, {}, false), "whose rates ReduceLrOnPlateau lowers");
}

TEST(Callbacks, SeeEveryEventAndMaySkip) {
  const std::string batch = " batch loss backward backward. step step. batch.",
                    valid = " valid vbatch vloss vbatch. valid.";
  const auto skip = [](Learner& l) { l.skip(); };
  EXPECT_EQ(events("", {}), "train epoch" + batch + batch + valid + " epoch. train.");
  EXPECT_EQ(events("epoch", skip), "train epoch" + valid + " epoch. train.");
  EXPECT_EQ(events("batch", skip),
            "train epoch batch batch. batch batch." + valid + " epoch. train.");
  const std::string to_loss = " batch loss batch.", to_back = " batch loss backward batch.",
                    to_grads = " batch loss backward backward. batch.",
                    to_step = " batch loss backward backward. step batch.";
  const auto whole = [&](const std::string& b) {
    return "train epoch" + b + b + valid + " epoch. train.";
  };
  EXPECT_EQ(events("loss", skip), whole(to_loss));
  EXPECT_EQ(events("backward", skip), whole(to_back));
  EXPECT_EQ(events("backward.", skip), whole(to_grads));
  EXPECT_EQ(events("step", skip), whole(to_step));
  EXPECT_EQ(events("step.", [](Learner& l) { l.stop(); }), "train epoch" + batch + " train.");
}

// A callback sees the unscaled objective, before the library's callbacks divide and scale it.
TEST(Callbacks, TheObjectiveIsTheirsBeforeItIsScaledAndDivided) {
  struct Penalty : Callback {
    double slope = 0;
    void on_backward_begin(Learner& l) override {
      l.state.objective = l.state.loss + 3 * sum(l.optimizer->params()[1]);
    }
    void on_step_begin(Learner& l) override { slope = l.optimizer->params()[1].grad().item(); }
  };
  for (const int64_t batches : {1, 2})
    for (const bool scaled : {false, true}) {
      const auto penalty = std::make_shared<Penalty>();
      LearnerOptions o = quiet();
      o.loss = [](const Tensor& output, const Tensor&) { return mean(output); };
      o.callbacks = {penalty, std::make_shared<GradientAccumulation>(batches)};
      Learner learner(nn::Linear(1, 1), o);
      if (scaled) learner.to_fp16();
      for (int64_t i = 0; i < batches; ++i) learner.train_batch({ones({2, 1}), ones({2, 1})});
      EXPECT_EQ(penalty->slope, 4) << batches << " " << scaled;
    }
}

// A skipped loss does not reach the scaler, so the next step is made.
TEST(Callbacks, ASkippedLossIsForgotten) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  double factor = NAN;
  o.loss = [&](const Tensor& out, const Tensor& y) { return cross_entropy(out, y) * factor; };
  const auto spy = std::make_shared<Spy>();
  spy->at = "backward";
  spy->ask = [](Learner& l) {
    if (std::isnan(l.state.loss.item())) l.skip();
  };
  o.callbacks = {spy};
  Learner learner(loaders(), Net(), o);
  learner.to_fp16();
  const Batch batch = learner.data.train->batch(0);
  learner.train_batch(batch);
  factor = 1;
  learner.train_batch(batch);
  EXPECT_EQ(learner.state.result.state(), amp::StepResult::State::Stepped);
}

// A callback added by another gets events from the next one on.
TEST(Callbacks, MayAddOthers) {
  const Seed seed(1);
  struct Earlier : Spy {
    int order() const override { return -1; }
  };
  const auto earlier = std::make_shared<Earlier>();
  const auto spy = std::make_shared<Spy>();
  spy->at = "train";
  spy->ask = [&](Learner& l) {
    if (l.callbacks().size() < 4) l.add(earlier);
  };
  LearnerOptions o = quiet();
  o.callbacks = {spy};
  Learner learner(loaders(16, 16), Net(), o);
  learner.data.valid.reset();
  learner.fit(1);
  EXPECT_EQ(learner.callbacks().size(), 2u);
  EXPECT_EQ("train " + earlier->seen, spy->seen);
}

// Without a check, each would begin the next until the stack ends.
TEST(Callbacks, MayNotFit) {
  const std::function<void(Learner&)> ways[] = {[](Learner& l) { l.fit(1); },
                                                [](Learner& l) { l.fit_one_cycle(1); },
                                                [](Learner& l) { l.lr_find(); }};
  for (const auto& way : ways) {
    Learner learner(loaders(), Net(), quiet());
    const auto spy = std::make_shared<Spy>();
    spy->at = "epoch";
    spy->ask = way;
    learner.add(spy);
    EXPECT_ERROR(learner.fit(1), "a fit's callbacks cannot begin another fit");
    spy->at = "batch";
    EXPECT_ERROR(learner.lr_find(), "a fit's callbacks cannot begin another fit");
  }
}

TEST(Callbacks, EndEvenAfterAnException) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  const auto spy = std::make_shared<Spy>();
  spy->at = "loss";
  spy->ask = [](Learner&) { throw std::runtime_error("enough"); };
  learner.add(spy);
  EXPECT_THROW(learner.fit(1), std::runtime_error);
  EXPECT_EQ(spy->seen, "train epoch batch loss train.");
}

// An exception in the first callback does not stop the others.
TEST(Callbacks, EndEvenAfterAnExceptionAtTheEnd) {
  for (const std::string at : {"valid.", "train."}) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    const auto first = std::make_shared<Spy>(), second = std::make_shared<Spy>();
    first->at = at;
    first->ask = [](Learner&) { throw std::runtime_error("enough"); };
    o.callbacks = {first, second, std::make_shared<EmaWeights>(optim::EmaOptions{.decay = 0.9})};
    Net net;
    Learner learner(loaders(), net, o);
    EXPECT_THROW(learner.fit(1), std::runtime_error);
    EXPECT_NE(second->seen.find(at), std::string::npos);
    EXPECT_TRUE(second->seen.ends_with("train."));
    EXPECT_TRUE(bytes(learner).contains("callback.EmaWeights.0.updates") == false) << at;
  }
}

// A fit drops gradients left by earlier batches.
TEST(Callbacks, AFitAfterAnExceptionBeginsAnew) {
  const auto weights = [](const std::string& at, void (*choose)(Learner&)) {
    const Seed seed(1);
    Net net;
    Learner learner(loaders(), net, quiet());
    choose(learner);
    if (!at.empty()) {
      const auto spy = std::make_shared<Spy>();
      spy->at = at;
      spy->ask = [](Learner& l) {
        if (l.state.step == 0) throw std::runtime_error("enough");
      };
      learner.add(spy);
      EXPECT_THROW(learner.fit(1), std::runtime_error);
      spy->at = "";
    }
    const Seed again(2);
    learner.fit_one_cycle(1, 1e-2);
    return net.up.weight.detach();
  };
  for (const auto choose : precisions)
    EXPECT_TRUE(all(eq(weights("backward.", choose), weights("loss", choose))).item());
}

TEST(Callbacks, ASkippedStepDropsItsGradients) {
  for (const auto choose : precisions) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    choose(learner);
    const auto spy = std::make_shared<Spy>();
    spy->at = "step";
    spy->ask = [](Learner& l) {
      if (l.state.step % 2 == 0) l.skip();
    };
    learner.add(spy);
    learner.fit(1);
    EXPECT_EQ(learner.history.steps.size(), 3u);
    EXPECT_EQ(learner.scaler.counters().updates, learner.scaler.enabled() ? 6 : 0);
    for (const Tensor& p : learner.optimizer->params()) EXPECT_FALSE(p.grad());
  }
}

// Four batches of 4 make the same step as one of 16.
TEST(Callbacks, AccumulatedGradientsAreThoseOfALargeBatch) {
  for (const bool scaled : {false, true}) {
    const auto weights_after = [&](int64_t batch, int64_t accumulate) {
      const Seed seed(1);
      Net net;
      net.eval();
      LearnerOptions o = quiet();
      o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0.1}); };
      if (accumulate > 1) o.callbacks = {std::make_shared<GradientAccumulation>(accumulate)};
      Loaders data;
      data.train.emplace(clusters(40, 1), DataLoaderOptions{.batch_size = batch});
      net.drop = nn::Dropout(0.0);
      Learner learner(std::move(data), net, o);
      if (scaled) learner.to_fp16({.init_scale = 1024});
      learner.autocast.reset();  // exact arithmetic: only the scale differs
      learner.fit(2);
      EXPECT_EQ(learner.history.steps.size(), 6u);  // 16, 16 and 8 examples, twice
      return net.up.weight.detach();
    };
    EXPECT_LT(max(abs(weights_after(4, 4) - weights_after(16, 1))).item(), 1e-6);
  }
}

// A skipped batch is not part of any step, even if it is the last of its group or of the epoch.
TEST(Callbacks, GradientsAccumulateOverBatchesThatRan) {
  struct Skipping : Callback {
    std::vector<double> slopes;
    void on_batch_begin(Learner& l) override {
      if (l.state.training && (l.state.step == 2 || l.state.step % 7 == 6)) l.skip();
    }
    void on_step_begin(Learner& l) override {
      slopes.push_back(l.optimizer->params()[1].grad().item());
    }
  };
  const Seed seed(1);
  const auto skipping = std::make_shared<Skipping>();
  LearnerOptions o = quiet();
  o.loss = [](const Tensor& output, const Tensor&) { return mean(output); };
  o.metrics.clear();
  o.callbacks = {skipping, std::make_shared<GradientAccumulation>(3)};
  Loaders data;
  data.train.emplace(
      TensorDataset(ones({14, 1}, f32, Device::cpu()), ones({14}, f32, Device::cpu())),
      DataLoaderOptions{.batch_size = 2});
  Learner learner(std::move(data), nn::Linear(1, 1), o);
  learner.fit(3);  // 0 1 3, 4 5 | 7, 8 9 10, 11 12 | 14, 15 16 17, and 18 19 of the next step
  EXPECT_EQ(skipping->slopes, std::vector<double>(5, 1));
}

TEST(Callbacks, GradientsAccumulateInCustomLoops) {
  const TensorDataset points = clusters(32, 1);
  const auto weights_after = [&](int64_t batches) {
    const Seed seed(1);
    Net net;
    net.drop = nn::Dropout(0.0);
    LearnerOptions o = quiet();
    o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0.1}); };
    o.callbacks = {std::make_shared<GradientAccumulation>(batches)};
    Learner learner(net, o);
    const int64_t n = 32 / batches;
    for (int64_t i = 0; i < batches; ++i)
      learner.train_batch({narrow(points.x(), 0, i * n, n), narrow(points.y(), 0, i * n, n)});
    return net.up.weight.detach();
  };
  EXPECT_LT(max(abs(weights_after(2) - weights_after(1))).item(), 1e-6);
}

// Shorter groups at the end of an epoch, and the schedule, apply only within a fit.
TEST(Callbacks, AnEndedFitDoesNotAffectCustomLoops) {
  const Seed seed(1);
  std::vector<int64_t> steps;
  const auto spy = std::make_shared<Spy>();
  spy->at = "step";
  spy->ask = [&](Learner& l) { steps.push_back(l.state.step); };
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<GradientAccumulation>(3), spy};
  Learner learner(loaders(64), Net(), o);
  learner.fit_one_cycle(1);  // 0 1 2, 3
  const double lr = learner.optimizer->lr();
  for (int i = 0; i < 9; ++i) learner.train_batch(learner.data.train->batch(0));
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 3, 6, 9, 12}));
  EXPECT_EQ(learner.optimizer->lr(), lr);
}

// A callback that predicts within a validation gets no events for the prediction.
TEST(Callbacks, APredictionInAValidationHasNoEvents) {
  struct Predicting : Callback {
    int ends = 0;
    void on_valid_end(Learner& l) override {
      ++ends;
      EXPECT_EQ(l.predict(l.data.valid->batch(0).x).size(0), l.data.valid->batch(0).x.size(0));
    }
  };
  LearnerOptions o = quiet();
  const auto predicting = std::make_shared<Predicting>();
  o.callbacks = {predicting};
  Learner learner(loaders(), Net(), o);
  learner.validate();
  EXPECT_EQ(predicting->ends, 1);
  learner.predict(*learner.data.valid);
  EXPECT_EQ(predicting->ends, 2);
}

// For example, smaller batches from some epoch on.
TEST(Callbacks, MayReplaceTheData) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>(), stopping = std::make_shared<Spy>();
  spy->at = "epoch";
  spy->ask = [](Learner& l) {
    if (l.state.epoch == 1) l.data.train = loaders(96, 4).train;
  };
  stopping->at = "batch.";
  stopping->ask = [](Learner& l) {
    if (l.state.step == 6 + 10) l.stop();
  };
  o.callbacks = {spy, stopping};
  Learner learner(loaders(96, 16), Net(), o);
  learner.fit(2);
  EXPECT_EQ(learner.state.step, 6 + 10);
  EXPECT_EQ(learner.state.batches, 24);
}

}  // namespace callback_test
}  // namespace mixtape::train
