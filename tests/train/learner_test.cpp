// Learner: fitting, custom passes and losses, Keras's interface, predictions, and errors.

#include "train/learner.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/format.h"
#include "core/random.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"

namespace mixtape::train {
namespace learner_test {

using namespace test;

TEST(Learner, Trains) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  const Scores before = learner.validate();
  learner.fit(5);
  const Scores after = learner.validate();
  EXPECT_LT(after.loss, 0.5 * before.loss);
  EXPECT_GT(after.metrics[0], 0.9);
  ASSERT_EQ(learner.history.epochs.size(), 5u);
  EXPECT_EQ(learner.history.epochs[4].valid_loss, after.loss);
  EXPECT_EQ(learner.history.steps.size(), 30u);
  EXPECT_EQ(learner.state.step, 30);
  EXPECT_TRUE(learner.model().is_training());  // validation restored the mode
}

TEST(Learner, TakesALossThatIsAModule) {
  const CrossEntropyOptions smooth{.label_smoothing = 0.1};
  const nn::CrossEntropyLoss named(smooth);
  std::vector<double> losses;
  for (const LossFunction& loss :
       {LossFunction([&](const Tensor& x, const Tensor& y) { return cross_entropy(x, y, smooth); }),
        LossFunction(named), LossFunction(nn::CrossEntropyLoss(smooth))}) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    o.loss = loss;
    losses.push_back(Learner(loaders(), Net(), o).validate().loss);
  }
  EXPECT_EQ(losses, std::vector<double>(3, losses[0]));
  LearnerOptions o = quiet();
  o.loss = nn::MSELoss();
  EXPECT_ERROR(Learner(loaders(), Net(), o).fit(1), "mse_loss");
}

TEST(Learner, LeavesFrozenParametersAlone) {
  const auto each = {+[](Learner&) {}, +[](Learner& l) { l.to_fp16(); },
                     +[](Learner& l) { l.to_fp16(MasterOptions{}); }};
  for (const auto choose : each) {
    const Seed seed(1);
    Net net;
    net.up.requires_grad_(false);
    Learner learner(loaders(), net, quiet());
    EXPECT_FALSE(net.up.weight.requires_grad());
    choose(learner);
    const auto at_first = to_vector(net.up.weight), head = to_vector(net.down.weight);
    learner.fit(1);
    const auto narrow = to_vector(from(at_first, net.up.weight.shape(), net.up.weight.dtype()));
    EXPECT_EQ(to_vector(net.up.weight), narrow);
    EXPECT_NE(to_vector(net.down.weight), head);
    net.up.requires_grad_(true);
    learner.fit(1);
    EXPECT_NE(to_vector(net.up.weight), narrow);
  }
}

TEST(Learner, FitsWithDefaults) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  learner.fit(1, {});
  EXPECT_EQ(learner.optimizer->lr(), 1e-2);
  learner.fit(1, 1);
  EXPECT_EQ(learner.optimizer->lr(), 1);
}

TEST(Learner, SumsAnyStatistic) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  const Tensor counts = learner.total(
      [](const Tensor& output, const Tensor& y) { return confusion_matrix(output, y, 3); });
  EXPECT_EQ(counts.shape(), (Shape{3, 3}));
  EXPECT_EQ(sum(counts).item(), 48);
  EXPECT_EQ((counts.at(0) + counts.at(4) + counts.at(8)) / 48, learner.validate().metrics[0]);
}

// Two images show the same digit or not; a third input is the weight of the pair.
struct Siamese : nn::Module<Siamese> {
  nn::Linear body{2, 8};
  std::pair<Tensor, Tensor> forward(const Tensor& a, const Tensor& b) const {
    return {tanh(body(a)), tanh(body(b))};
  }
  MIXTAPE_FIELDS(body)
};

TEST(Learner, TrainsAModelOfSeveralInputs) {
  const Seed seed(1);
  const Device cpu = Device::cpu();
  const Tensor a = randn({64, 2}, f32, cpu), b = randn({64, 2}, f32, cpu),
               sure = rand({64}, f32, cpu);
  const Tensor same = lt(sum(square(a - b), {1}), 2).to(f32);
  const TensorDataset pairs(a, same, {b, sure});
  Siamese net;
  LearnerOptions o = quiet();
  const Metric near{
      "near",
      [](const Tensor& d, const Tensor& y) {
        return stack({sum(eq(lt(d, 1).to(f32), y)).to(f64), full({}, double(y.numel()), f64)});
      },
      [](const Tensor& t, int64_t) { return t.at(0) / t.at(1); }};
  o.pass = [&](const Batch& batch) -> StepOutput {
    const auto [one, other] = net(batch.x, batch.more[0]);
    const Tensor d = sum(square(one - other), {1});
    const Tensor each = batch.y * d + (1 - batch.y) * relu(2 - d);
    return {mean(each * batch.more[1]), d};
  };
  EXPECT_ERROR(Learner(net, quiet()),
               "does not map one tensor to one: compute its loss in LearnerOptions::pass");
  for (const DType t : {f32, f16, bf16}) {
    o.metrics = {near};
    Learner learner({DataLoader(pairs, {.batch_size = 16, .workers = 1}), DataLoader(pairs)}, net,
                    o);
    learner.to(t);
    const Scores before = learner.validate();
    learner.fit(5, 0.01);
    EXPECT_LT(learner.validate().loss, before.loss) << name(t);
    EXPECT_GT(learner.validate().metrics[0], 0.5);
    EXPECT_NE(learner.summary().find("[16, 8]"), std::string::npos);
    EXPECT_ERROR(learner.predict(a), "does not map one tensor to one: predict from a loader");
    const auto [distances, targets] = learner.predict(*learner.data.valid);
    EXPECT_EQ(to_vector(targets), to_vector(same));
    EXPECT_NEAR(mean(eq(lt(distances, 1).to(f32), targets).to(f32)).item(),
                learner.validate().metrics[0], 1e-6);
  }
  o.pass = [&](const Batch& batch) -> StepOutput {
    EXPECT_EQ(batch.x.dtype(), f16);
    EXPECT_EQ(batch.more[0].dtype(), f16);
    const auto [one, other] = net(batch.x, batch.more[0]);
    return {mean(square((one - other).to(f32)))};
  };
  o.metrics = {};
  Learner whole({DataLoader(pairs, {.batch_size = 16}), {}}, net, o);
  whole.to_fp16(MasterOptions{});
  whole.fit(1, 0.01);
  EXPECT_ERROR(whole.predict(*whole.data.train),
               "no output to predict: LearnerOptions::pass returned");
}

TEST(Learner, TrainsWithoutTargets) {
  const Seed seed(1);
  const TensorDataset inputs(randn({64, 6}, f32, Device::cpu()), Tensor());
  Net net;
  LearnerOptions o = quiet();
  o.metrics = {};
  Learner plain({DataLoader(inputs), {}}, net, o);
  EXPECT_ERROR(plain.fit(1), "a batch has no targets to train on (LearnerOptions::pass can");
  o.pass = [&](const Batch& batch) -> StepOutput { return {mean(square(net(batch.x)))}; };
  Learner learner({DataLoader(inputs), DataLoader(inputs)}, net, o);
  const double before = learner.validate().loss;
  learner.fit(3, 0.05);
  EXPECT_LT(learner.validate().loss, before);
  learner.metrics = {accuracy};
  EXPECT_ERROR(learner.validate(), "metrics need a batch with output");
  learner.pass = [&](const Batch& batch) -> StepOutput {
    return {mean(net(batch.x)), net(batch.x)};
  };
  EXPECT_ERROR(learner.validate(), "metrics need a batch with targets");
  learner.pass = [](const Batch&) -> StepOutput { return {}; };
  EXPECT_ERROR(learner.fit(1), "LearnerOptions::pass returned no loss");
  LearnerOptions lossless = quiet();
  lossless.loss = [](const Tensor&, const Tensor&) { return Tensor(); };
  EXPECT_ERROR(Learner(loaders(), Net(), lossless).fit(1), "LearnerOptions::loss returned no loss");
}

TEST(Learner, SummarizesWhatTheFirstBatchBecomes) {
  Learner learner(loaders(), Net(), quiet());
  const std::string table = learner.summary();
  EXPECT_NE(table.find("[16, 16]"), std::string::npos) << table;
  EXPECT_NE(table.find("[16, 3]"), std::string::npos) << table;
  EXPECT_FALSE(learner.state.output);
}

TEST(Learner, RefersToAModelThatHasAName) {
  const Seed seed(1);
  Net net;
  const Tensor before = net.up.weight.detach().clone();
  Learner learner(loaders(), net, quiet());
  EXPECT_EQ(&learner.model(), &net);
  learner.fit(1);
  EXPECT_FALSE(all(eq(net.up.weight, before)).item());
}

TEST(Learner, TakesAModelChosenAtRunTime) {
  const Seed seed(1);
  nn::Any any = Net();
  const Net copy = any.get<Net>().clone();
  Net same = copy.clone();
  Learner one(loaders(), std::move(any), quiet()), two(loaders(), same, quiet());
  for (Learner* learner : {&one, &two}) {
    const Seed again(2);
    learner->to(bf16).fit(1, 1e-2);
  }
  EXPECT_EQ(one.history.epochs[0].valid_loss, two.history.epochs[0].valid_loss);
  EXPECT_EQ(one.model().state_dict()[0].first, "up.weight");
  EXPECT_ERROR(Learner(loaders(), nn::Any()), "the nn::Any holds no module");
}

TEST(Learner, PrintsARowPerEpoch) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  std::FILE* const file = std::tmpfile();
  o.out = file;
  Learner learner(loaders(), Net(), o);
  learner.fit(2);
  std::rewind(file);
  char text[500] = {};
  const size_t n = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  const std::string_view table(text, n);
  EXPECT_TRUE(table.starts_with("epoch     train_loss  valid_loss    accuracy     time\n"))
      << table;
  EXPECT_EQ(std::ranges::count(table, '\n'), 3);
  EXPECT_NE(table.find(fmt::format("\n1       {:>12.6f}", learner.history.epochs[1].train_loss)),
            std::string_view::npos)
      << table;
}

TEST(Keras, CompilesFitsAndEvaluates) {
  const Seed seed(1);
  const TensorDataset points = clusters(96, 1);
  Learner model{Net()};
  LearnerOptions o = quiet();
  o.metrics = {accuracy, top_k(2)};
  model.compile(o);
  model.fit(points.x(), points.y(), {.batch_size = 16, .epochs = 4, .validation_split = 0.25});
  EXPECT_EQ(model.history.steps.size(), 4u * 5);  // 72 train, in batches of 16
  const Scores scores = model.evaluate(points.x(), points.y());
  EXPECT_GT(scores.metrics[0], 0.9);
  EXPECT_GE(scores.metrics[1], scores.metrics[0]);
  EXPECT_EQ(model.predict(points.x(), 7).shape(), (Shape{96, 3}));
}

// Each epoch has its own order, also in a second fit.
TEST(Keras, KeepsShufflingInLaterFits) {
  const Seed seed(1);
  const TensorDataset points = clusters(96, 1);
  Learner model(Net(), quiet());
  const auto order = [&] {
    model.fit(points.x(), points.y(), {.batch_size = 96});
    return fmt::format("{}", model.state.y);
  };
  const std::string first = order();
  EXPECT_NE(order(), first);
}

TEST(Keras, ShufflesAsConfigured) {
  const Seed seed(1);
  const TensorDataset points = clusters(96, 1);
  const auto seen = [&](const FitArrays& options) {
    Learner model(Net(), quiet());
    model.fit(points.x(), points.y(), options);
    return to_vector(model.state.x);
  };
  const auto in_order = to_vector(points.x());
  EXPECT_EQ(seen({.batch_size = 96, .shuffle = false}), in_order);
  const auto order = seen({.batch_size = 96, .seed = 1});
  EXPECT_NE(order, in_order);
  EXPECT_EQ(seen({.batch_size = 96, .seed = 1}), order);
  EXPECT_NE(seen({.batch_size = 96, .seed = 2}), order);
}

TEST(Learner, PredictsForALoaderInItsOrder) {
  const Seed seed(1);
  const TensorDataset points = clusters(50, 1);
  Learner learner(loaders(), Net(), quiet());
  DataLoader shuffled(points, {.batch_size = 8, .shuffle = true});
  const Predictions found = learner.predict(shuffled);
  EXPECT_EQ(found.output.shape(), (Shape{50, 3}));
  const Tensor outputs = learner.predict(points.x());
  shuffled.set_epoch(0);
  int64_t at = 0;
  for (const auto& batch : shuffled)
    for (int64_t i = 0; i < batch.x.size(0); ++i, ++at) {
      EXPECT_EQ(found.y.at(at), batch.y.at(i));
      const Tensor row = learner.predict(narrow(batch.x, 0, i, 1));
      EXPECT_LT(max(abs(select(found.output, 0, at) - row)).item(), 1e-5);
    }
  EXPECT_EQ(at, 50);

  const Predictions without =
      learner.predict(DataLoader(TensorDataset(points.x(), Tensor()), {.batch_size = 8}));
  EXPECT_LT(max(abs(without.output - outputs)).item(), 1e-5);
  EXPECT_FALSE(without.y);
  EXPECT_ERROR(learner.predict(DataLoader(points, {.batch_size = 64, .drop_last = true})),
               "the data to predict from has 50 examples, too few for a batch");
}

TEST(Learner, CompilesAgainAfterTraining) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<GradientClip>(0.5)};
  Learner learner(loaders(), Net(), o);
  learner.fit_one_cycle(1);
  EXPECT_TRUE(learner.schedule && learner.step_options.clip_norm);
  learner.compile(quiet());
  EXPECT_FALSE(learner.schedule);  // it belonged to the former optimizer
  EXPECT_FALSE(learner.step_options.clip_norm);
  learner.train_batch(learner.data.train->batch(0));
}

TEST(Learner, IsAsItWasAfterWhatItRefused) {
  const Seed seed(1);
  Learner learner(loaders(), Net(), quiet());
  learner.to_fp16();
  EXPECT_ERROR(learner.to_fp16({.growth_factor = 1}),
               "growth_factor must be finite and > 1, got 1");
  const TensorDataset points = clusters(48, 3);
  EXPECT_ERROR(learner.fit(points.x(), points.y(), {.batch_size = 0}),
               "batch_size must be > 0, got 0");
  EXPECT_ERROR(learner.fit(points.x(), points.y(), {.validation_split = 1}),
               "validation_split must be in [0, 1), got 1");
  EXPECT_ERROR(learner.fit(-1), "epochs must be >= 0, got -1");
  const ScheduleMaker none = [](optim::Optimizer&, int64_t) { return nullptr; };
  EXPECT_ERROR(learner.fit_one_cycle(1, 1, {.schedule = none}),
               "fit_one_cycle sets the schedule itself");
  learner.fit(1);
  EXPECT_EQ(learner.history.steps.size(), 6u);
  learner.compile(quiet());
}

TEST(Learner, IsAsItWasAfterOptionsThatWereRefused) {
  const TempFolder folder;
  spit(folder / "file", "");
  for (const auto choose : precisions) {
    const auto train = [&](bool refused) {
      const Seed seed(1);
      Learner learner(loaders(), Net(), quiet());
      choose(learner);
      learner.fit(1);
      LearnerOptions bad = quiet();
      bad.loss = {};
      if (refused) {
        bad.folder = folder / "file";
        EXPECT_ERROR(learner.compile(bad), "file: ");
        bad.folder.clear();
        bad.callbacks = {nullptr};
        EXPECT_ERROR(learner.compile(bad), "a callback is null");
        bad.callbacks.clear();
        bad.optimizer = [](auto params) { return optim::AdamW(params, {.lr = -1}); };
        EXPECT_ERROR(learner.compile(bad), "lr must be >= 0, got -1");
        bad.optimizer = [](const auto&) { return optim::SGD({ones({1}).set_requires_grad()}); };
        EXPECT_ERROR(learner.compile(bad), "sgd has none of the model's parameters");
      }
      learner.fit(1);
      return bytes(learner);
    };
    EXPECT_EQ(differing(train(false), train(true)), "");
  }
}

TEST(Learner, IsAsItWasAfterAnEvaluationThatFailed) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.metrics = {top_k(4)};
  Learner learner(loaders(), Net(), o);
  learner.state.batches = 77;
  EXPECT_ERROR(learner.validate(), "top_k: k must be at most 3, got 4");
  EXPECT_EQ(learner.state.batches, 77);
  EXPECT_FALSE(learner.state.x);
  EXPECT_ERROR(learner.predict(ones({2, 5})),
               "up: linear: the input has 5 features, the weight [16, 6] takes 6");
  EXPECT_FALSE(learner.state.x);
  EXPECT_TRUE(learner.model().is_training());
}

TEST(Learner, LeavesEachModuleInItsMode) {
  const Seed seed(1);
  Net net;
  Learner learner(loaders(), net, quiet());
  net.norm.eval();
  learner.validate();
  EXPECT_TRUE(net.is_training() && net.drop.is_training());
  EXPECT_FALSE(net.norm.is_training());
}

TEST(Learner, TakesLoadersByName) {
  Learner learner(Loaders{.train = std::move(loaders().train)}, Net(), quiet());
  EXPECT_FALSE(learner.data.valid);
}

TEST(Learner, SaysWhatIsMissing) {
  LearnerOptions half = quiet();
  half.metrics = {{"recall", accuracy.statistic, {}}};
  EXPECT_ERROR(Learner(loaders(), Net(), half), "metric \"recall\" has no .value");
  half.metrics = {accuracy, accuracy};
  EXPECT_ERROR(Learner(loaders(), Net(), half), "the metric name \"accuracy\" is taken");
  half.metrics = {{"loss", accuracy.statistic, accuracy.value}};  // a key of the log
  EXPECT_ERROR(Learner(loaders(), Net(), half), "the metric name \"loss\" is taken");
  half.metrics[0].name = "confusion";  // a file of the run folder
  EXPECT_ERROR(Learner(loaders(), Net(), half), "the metric name \"confusion\" is taken");
  for (const std::string& name : {std::string("pr\xe9"
                                              "cision"),
                                  std::string(201, 'a')}) {
    half.metrics[0].name = name;
    EXPECT_ERROR(Learner(loaders(), Net(), half),
                 "a metric name must be UTF-8 of at most 200 bytes");
  }
  Learner learner(Net(), quiet());
  EXPECT_ERROR(learner.fit(1), "fit needs training data");
  EXPECT_ERROR(learner.validate(), "validate needs validation data");
  {
    const DefaultDevice none(Device::meta());
    EXPECT_ERROR(Learner(loaders(), Net(), quiet()).fit(1),
                 "nothing can be learnt on meta:cpu, where tensors have no values (amp::plan() "
                 "measures a step)");
  }
  EXPECT_ERROR(learner.score("valid_loss"), "is unknown before an epoch has ended");
  EXPECT_ERROR(learner.to(f64), "amp_mode must be f16, bf16 or f32, got f64");
  EXPECT_ERROR(learner.to_fp16({.recipe = amp::Mx{}}),
               "a recipe needs amp_mode = bf16 or f32, got f16");
  EXPECT_ERROR(learner.fit_one_cycle(1, 1, {.resume = "nowhere.ckpt"}), "fit needs training data");
  EXPECT_ERROR(learner.summary(), "summary needs training data (nn::summary takes inputs instead)");
  EXPECT_ERROR(learner.predict(ones({0, 6})), "no examples to predict");
  Learner full(loaders(), Net(), quiet());
  full.fit(1);
  EXPECT_ERROR(full.score("f1"),
               "no value is named \"f1\"; there are train_loss, valid_loss, accuracy");
  EXPECT_ERROR(full.fit(1, {.resume = "nowhere.ckpt"}), "nowhere.ckpt");
  struct Blind : Callback {
    void on_batch_begin(Learner& l) override { l.state.y = {}; }
  };
  full.add(std::make_shared<Blind>());
  EXPECT_ERROR(full.fit(1), "a batch has no targets to train on");
  EXPECT_ERROR(full.validate(), "a batch has no targets to validate");
  full.data.valid.emplace(clusters(3, 1), DataLoaderOptions{.batch_size = 8, .drop_last = true});
  const std::string none = "the validation data has 3 examples, too few for a batch";
  EXPECT_ERROR(full.validate(), none);
  EXPECT_ERROR(full.fit(1), none);
  EXPECT_ERROR(full.total([](const Tensor& out, const Tensor&) { return sum(out); }), none);
  EXPECT_ERROR(full.evaluate(zeros({0, 6}), zeros({0}, i64)), "0 examples, too few for a batch");
}

TEST(Learner, SumsNothingOverNoBatch) {
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "vbatch";
  spy->ask = [](Learner& l) { l.skip(); };
  o.callbacks = {spy};
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.total([](const Tensor& out, const Tensor&) { return sum(out); }),
               "total: every batch was skipped");
  EXPECT_TRUE(std::isnan(learner.validate().loss));
}

// Two learners train batch by batch; each loss uses the other's model.
TEST(Learner, TrainsAGan) {
  const Seed seed(1);
  const auto linear = [] { return nn::Sequential(nn::Linear(2, 8), nn::Tanh(), nn::Linear(8, 1)); };
  auto critic = linear();
  auto maker = nn::Sequential(nn::Linear(2, 8), nn::Tanh(), nn::Linear(8, 2));
  LearnerOptions o = quiet();
  o.loss = [](const Tensor& out, const Tensor& real) {
    return binary_cross_entropy_with_logits(out, real);
  };
  Learner critics(critic, o);
  o.loss = [&](const Tensor& fake, const Tensor& real) {
    return binary_cross_entropy_with_logits(critic(fake), real);
  };
  Learner makers(maker, o);
  critics.to_fp16();
  makers.to_fp16();
  const Tensor yes = ones({16, 1}), no = zeros({16, 1});
  for (int i = 0; i < 60; ++i) {
    const Tensor fake = makers.predict(randn({16, 2}));
    critics.train_batch({cat({randn({16, 2}) * 0.3 + 2, fake}), cat({yes, no})});
    makers.train_batch({randn({16, 2}), yes});
    critic.zero_grad();  // the generator's loss went through the critic
  }
  EXPECT_GT(mean(makers.predict(randn({200, 2}))).item(),
            1.0);  // starts near 0; real points are at 2
}

}  // namespace learner_test
}  // namespace mixtape::train
