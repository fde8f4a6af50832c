// Learner as people type it: returned and assigned, with a LossScaleOptimizer, with targets that a
// callback makes, with a last batch that is too small, and a GAN under masters.

#include <gtest/gtest.h>

#include <limits>

#include "amp/loss_scale_optimizer.h"
#include "autograd/ops.h"
#include "core/random.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "optim/averaged.h"
#include "optim/by_name.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"
#include "train/callbacks.h"
#include "train/learner.h"

namespace mixtape::train {
namespace learner_use_test {

using namespace test;

Learner made(uint64_t seed_of_weights) {
  const Seed seed(seed_of_weights);
  return Learner(loaders(), Net(), quiet()).to_fp16({.growth_interval = 3});
}

TEST(LearnerUse, IsReturnedAndAssigned) {
  const auto trained = [](Learner& learner) {
    const Seed seed(2);
    learner.fit_one_cycle(2, 1e-2);
    return bytes(learner);
  };
  const Seed seed(1);
  Learner in_place(loaders(), Net(), quiet());
  in_place.to_fp16({.growth_interval = 3});
  const Bytes expected = trained(in_place);

  auto returned = made(1);
  EXPECT_EQ(differing(trained(returned), expected), "");
  Learner assigned = made(3);
  assigned.fit_one_cycle(1, 1e-2);
  assigned = made(1);
  EXPECT_EQ(assigned.schedule, nullptr);
  EXPECT_EQ(differing(trained(assigned), expected), "");
  // A learner moves with its history, schedule and scaler, and goes on.
  const Bytes before = bytes(assigned);
  Learner moved = std::move(assigned);
  EXPECT_EQ(differing(bytes(moved), before), "");
  EXPECT_EQ(differing(trained(moved), trained(returned)), "");

  for (const auto choose : {+[](Learner l) { return std::move(l).to_bf16(); },
                            +[](Learner l) { return std::move(l).to(bf16); },
                            +[](Learner l) { return std::move(l).to_fp16({.amp_mode = "BF16"}); }})
    EXPECT_EQ(choose(made(1)).autocast->low->dtype, bf16);
  EXPECT_FALSE(made(1).to_fp32().autocast.has_value());
  EXPECT_EQ(made(1).to_fp16(MasterOptions{}).model().parameters()[0].dtype(), f16);
}

// The largest number means as many as there are, and epochs until something stops the fit.
TEST(LearnerUse, TakesCountsOfAnySize) {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  const Seed seed(1);
  int64_t told = 0;
  const FitOptions scheduled{.schedule = [&](optim::Optimizer& opt, int64_t steps) {
    told = steps;
    return std::make_unique<optim::Polynomial>(opt, optim::PolynomialOptions{steps});
  }};
  const auto spy = std::make_shared<Spy>();
  spy->at = "step.";
  spy->ask = [](Learner& l) { l.stop(); };
  LearnerOptions o = quiet();
  o.callbacks = {spy};
  EXPECT_EQ(Learner(loaders(), Net(), o).fit(most, scheduled), FitResult::Stopped);
  EXPECT_EQ(told, most);

  for (const int64_t chunks : {0, 2}) {
    o.callbacks = {std::make_shared<GradientAccumulation>(most)};
    o.chunks = chunks;
    Learner learner(loaders(), Net(), o);
    learner.fit(2, scheduled);
    EXPECT_EQ(told, 2) << chunks;  // one for each epoch
    EXPECT_EQ(learner.state.step, 2 * learner.state.batches);
  }

  spy->at = "vbatch";
  spy->ask = [](Learner& l) { EXPECT_EQ(l.state.batches, 1); };
  o = quiet();
  o.callbacks = {spy};
  Learner learner(loaders(), Net(), o);
  const Tensor x = randn({5, 6});
  EXPECT_EQ(learner.predict(x, most).shape(), learner.predict(x, 5).shape());
}

TEST(LearnerUse, TakesALossScaleOptimizer) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) {
    return amp::enable_mixed_precision(optim::AdamW(params, {.lr = 1e-2}), {.loss_scale = 128});
  };
  Learner learner(loaders(), Net(), o);
  EXPECT_EQ(learner.optimizer->name(), "adamw");
  EXPECT_EQ(learner.autocast->low->dtype, f16);
  learner.fit(3);
  EXPECT_EQ(learner.scaler.scale_value(), 128);
  EXPECT_EQ(learner.history.steps[0].scale, 128);
  EXPECT_GT(learner.validate().metrics[0], 0.7);
  learner.to_bf16();  // the last choice counts
  EXPECT_FALSE(learner.scaler.enabled());

  learner.compile(o);  // and so does this one
  EXPECT_EQ(learner.scaler.options().init_scale, 128);
  learner.to_fp16({.init_scale = 4});
  LearnerOptions others = quiet();
  others.optimizer.reset();
  learner.compile(others);  // nothing about the optimizer: the precision stays
  EXPECT_EQ(learner.scaler.options().init_scale, 4);
  o.callbacks = {std::make_shared<MixedPrecision>(AmpOptions{.amp_mode = bf16})};
  EXPECT_EQ(Learner(loaders(), Net(), o).autocast->low->dtype, bf16);
}

// Makes probabilities of classes in training.
struct SoftTargets : Callback {
  void on_batch_begin(Learner& l) override {
    if (l.state.training) l.state.y = one_hot(l.state.y, 3).to(f32) * 0.7 + 0.1;
  }
};

TEST(LearnerUse, KeepsTheDefaultLossWithSoftTargets) {
  const auto history = [](const LossFunction& loss) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    o.callbacks = {std::make_shared<SoftTargets>()};
    o.loss = loss;
    Learner learner(loaders(), Net(), o);
    learner.fit(2);
    return std::pair(learner.history.epochs.back().train_loss,
                     learner.history.epochs.back().valid_loss);
  };
  EXPECT_EQ(history({}),
            history([](const Tensor& x, const Tensor& y) { return cross_entropy(x, y); }));
}

TEST(LearnerUse, TakesAnOptimizerByName) {
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::get("lion", params, {{"lr", 3e-4}}); };
  const Learner learner(loaders(), Net(), o);
  EXPECT_EQ(learner.optimizer->name(), "lion");
  EXPECT_EQ(learner.optimizer->lr(), 3e-4);
}

// Training goes on from the weights before, also from a checkpoint.
TEST(LearnerUse, ValidatesTheMeansOfAScheduleFreeOptimizer) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.optimizer = [](auto params) { return optim::ScheduleFreeAdamW(params, {.lr = 0.02}); };
  Learner learner(loaders(), Net(), o), other(loaders(), Net(), o);
  learner.fit(2);
  const auto weights = to_vector(learner.optimizer->params()[0]);
  const double loss = learner.history.epochs.back().valid_loss;
  EXPECT_EQ(learner.validate().loss, loss);
  EXPECT_EQ(to_vector(learner.optimizer->params()[0]), weights);
  learner.save(folder / "free.ckpt");
  other.load(folder / "free.ckpt");
  EXPECT_EQ(other.validate().loss, loss);
  EXPECT_EQ(to_vector(other.optimizer->params()[0]), weights);
  optim::Averaged(*learner.optimizer).keep();
  EXPECT_NE(to_vector(learner.optimizer->params()[0]), weights);
  const Predictions p = other.predict(*other.data.valid);
  EXPECT_NEAR(cross_entropy(p.output, p.y).item(), loss, 1e-6);
}

TEST(LearnerUse, DefaultLossOfFloatsIsTheMeanSquaredError) {
  const Seed seed(1);
  nn::Linear line(2, 1);
  Learner learner(line, quiet());
  learner.metrics.clear();
  const Tensor x = randn({40, 2}), y = randn({40, 1});
  EXPECT_NEAR(learner.evaluate(x, y).loss, mse_loss(line(x), y).item(), 1e-6);
}

TEST(LearnerUse, LastBatchOfOneIsLeftOut) {
  const auto net = [] {
    return nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Linear(8, 3));
  };
  const Seed seed(1);
  const TensorDataset data = clusters(33, 1);
  const auto steps = [&](int64_t examples, const FitArrays& options) {
    Learner learner(net(), quiet());
    learner.fit(slice(data.x(), 0, 0, examples), slice(data.y(), 0, 0, examples), options);
    return learner.state.step;
  };
  EXPECT_EQ(steps(33, {.batch_size = 32, .epochs = 2}), 2);
  EXPECT_EQ(steps(33, {.batch_size = 16}), 2);
  EXPECT_EQ(steps(32, {.batch_size = 30}), 2);  // two are enough
  EXPECT_EQ(steps(32, {.batch_size = 30, .drop_last = true}), 1);
  const char* const says =
      "1: smaller last batch of 1 (.drop_last omits it): batch_norm: training needs more than one "
      "value per channel";
  std::vector<std::string> warnings;
  const OnWarning listen([&](const std::string& text) { warnings.push_back(text); });
  EXPECT_ERROR(steps(33, {.batch_size = 32, .drop_last = false}), says);
  EXPECT_EQ(warnings, std::vector<std::string>{
                          "the last batch of an epoch has a single example of 33, or chunks of "
                          "one, and the BatchNorm1d 1 cannot train on one of shape [1, channels]: "
                          ".drop_last of the DataLoader omits it"});
  LearnerOptions o = quiet();
  o.metrics.clear();
  EXPECT_ERROR(Learner({DataLoader(data, {.batch_size = 32}), {}}, net(), o).fit(1), says);
  // A model without batch norms may learn from a single example, also from the only one.
  Learner plain(Net(), quiet());
  plain.fit(data.x(), data.y(), {.batch_size = 32, .drop_last = false});
  EXPECT_EQ(plain.state.step, 2);
  plain.fit(slice(data.x(), 0, 0, 1), slice(data.y(), 0, 0, 1), {.batch_size = 32});
  EXPECT_EQ(plain.state.step, 3);
  EXPECT_EQ(warnings.size(), 1u);
}

// Chunks train one by one, so a last batch of two or three has a chunk of one among two.
TEST(LearnerUse, LastBatchWithChunksOfOneIsLeftOut) {
  const Seed seed(1);
  int warnings = 0;
  const OnWarning listen([&](const std::string&) { ++warnings; });
  const auto steps = [&](int64_t examples, const FitArrays& options = {}) {
    LearnerOptions o = quiet();
    o.chunks = 2;
    Learner learner(nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::Linear(8, 3)), o);
    const TensorDataset data = clusters(examples, 1);
    learner.fit(data.x(), data.y(), options);
    return learner.history.steps.size();
  };
  EXPECT_EQ(steps(32), 1u);
  EXPECT_EQ(steps(33), 1u);
  EXPECT_EQ(steps(34), 1u);
  EXPECT_EQ(steps(35), 1u);
  EXPECT_EQ(steps(36), 2u);
  EXPECT_EQ(warnings, 0);
  EXPECT_EQ(steps(33, {.drop_last = false}), 1u) << "not enough for the chunks";
  EXPECT_EQ(warnings, 0);
  EXPECT_ERROR(steps(34, {.drop_last = false}), "training needs more than one value per channel");
  EXPECT_EQ(warnings, 1);
  EXPECT_ERROR(steps(2, {.batch_size = 2}), "training needs more than one value per channel");
  EXPECT_EQ(warnings, 1) << "the first batch says so";
}

// The generator's loss goes through the critic, whose own weights are f16 then.
TEST(LearnerUse, TrainsAGanUnderMasters) {
  const Seed seed(1);
  auto critic = nn::Sequential(nn::Linear(2, 16), nn::Tanh(), nn::Linear(16, 1));
  auto generator = nn::Sequential(nn::Linear(2, 16), nn::Tanh(), nn::Linear(16, 2));
  LearnerOptions gan = quiet();
  gan.metrics.clear();
  gan.optimizer = [](auto params) { return optim::Adam(params, {.lr = 1e-2}); };
  gan.loss = nn::BCEWithLogitsLoss();
  auto critics = Learner(critic, gan).to_fp16(MasterOptions{});
  gan.loss = [&](const Tensor& fake, const Tensor& real) {
    return binary_cross_entropy_with_logits(critic(fake.to(f16)).to(f32), real);
  };
  auto generators = Learner(generator, gan).to_fp16(MasterOptions{});

  const Tensor yes = ones({32, 1}), no = zeros({32, 1});
  for (int i = 0; i < 100; ++i) {
    const Tensor fake = generators.predict(randn({32, 2}));
    critics.train_batch({cat({randn({32, 2}) * 0.3 + 2, fake}), cat({yes, no})});
    generators.train_batch({randn({32, 2}), yes});
    critic.zero_grad();
  }
  EXPECT_GT(mean(generators.predict(randn({200, 2}))).item(), 1);
  EXPECT_GT(generators.scaler.counters().updates, 90);
  for (Learner* learner : {&critics, &generators}) {
    EXPECT_LT(learner->scaler.counters().skipped, 10);
    for (const Tensor& master : learner->optimizer->masters()) EXPECT_EQ(master.dtype(), f32);
    for (const Tensor& p : learner->optimizer->params()) EXPECT_EQ(p.dtype(), f16);
  }
}

}  // namespace learner_use_test
}  // namespace mixtape::train
