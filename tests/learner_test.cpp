// Learner: the loop, its moments, precisions, checkpoints, and Keras's road.
#include "train/learner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <csignal>
#include <filesystem>

#include "autograd/ops.h"
#include "core/random.h"
#include "nn/nn.h"
#include "optim/adam.h"
#include "optim/sgd.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "tests/support/training.h"
#include "train/callbacks.h"

namespace mixtape::train {
namespace {

using test::clusters;
using test::loaders;
using test::Net;
using test::quiet;
using test::TempFolder;

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
  EXPECT_TRUE(learner.model().is_training());  // validation left it as it was
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
  EXPECT_ERROR(Learner(loaders(), nn::Any()), "a learner of an Any that holds no module");
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

// Every way to train reaches the loss that f32 reaches.
TEST(Precision, AllTrainAlike) {
  const auto loss_of = [](const std::function<void(Learner&)>& choose) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    choose(learner);
    learner.fit(4);
    return learner.history.epochs.back().train_loss;
  };
  const double f32_loss = loss_of([](Learner&) {});
  EXPECT_NEAR(loss_of([](Learner& l) { l.to_fp16(); }), f32_loss, 0.02);
  EXPECT_NEAR(loss_of([](Learner& l) { l.to_bf16(); }), f32_loss, 0.04);
  EXPECT_NEAR(loss_of([](Learner& l) { l.to_fp16(MasterOptions{}); }), f32_loss, 0.02);
  EXPECT_NEAR(loss_of([](Learner& l) { l.to_fp16({.dynamic = false}); }), f32_loss, 0.02);
  EXPECT_NEAR(loss_of([](Learner& l) { l.to_fp16({.amp_mode = "bf16"}); }), f32_loss, 0.04);
  EXPECT_EQ(loss_of([](Learner& l) { l.to_fp16({.enabled = false}); }), f32_loss);
  EXPECT_EQ(loss_of([](Learner& l) { l.to_fp16().to_fp32(); }), f32_loss);
}

TEST(Precision, IsWhatWasChosenLast) {
  const Seed seed(1);
  Net net;
  Learner learner(loaders(), net, quiet());
  EXPECT_FALSE(learner.autocast || learner.scaler.enabled());
  learner.to_fp16({.init_scale = 1024});
  ASSERT_TRUE(learner.autocast.has_value());
  EXPECT_EQ(learner.scaler.options().init_scale, 1024);
  EXPECT_EQ(net.up.weight.dtype(), f32);
  learner.to_bf16();
  EXPECT_EQ(learner.autocast->low->dtype, bf16);
  EXPECT_FALSE(learner.scaler.enabled());
  learner.to_fp16(MasterOptions{.clip = 1.5});
  EXPECT_FALSE(learner.autocast.has_value());
  EXPECT_EQ(net.up.weight.dtype(), f16);
  EXPECT_EQ(net.norm.weight.dtype(), f32);
  EXPECT_EQ(learner.step_options.clip_norm, 1.5);
  learner.fit(1);
  EXPECT_EQ(learner.predict(ones({2, 6})).dtype(), f32);
  learner.to_fp32();
  EXPECT_EQ(net.up.weight.dtype(), f32);
  EXPECT_FALSE(learner.scaler.enabled() || learner.step_options.clip_norm);
  EXPECT_EQ(learner.callbacks().size(), 1u);  // one MixedPrecision, however often it was chosen
}

// An absurd loss overflows: such a step does not happen at all, and the static scale stays.
TEST(Precision, ASkippedStepChangesNothing) {
  for (const bool dynamic : {true, false}) {
    const Seed seed(1);
    Net net;
    LearnerOptions o = quiet();
    double factor = 1e30;
    o.loss = [&](const Tensor& output, const Tensor& y) {
      return cross_entropy(output, y) * factor;
    };
    Learner learner(loaders(), net, o);
    learner.to_fp16({.dynamic = dynamic});
    const Batch batch = learner.data.train->batch(0);
    const Tensor before = net.up.weight.detach().clone();
    learner.train_batch(batch);
    EXPECT_EQ(learner.state.result.state(), amp::StepResult::State::Skipped);
    EXPECT_TRUE(all(eq(net.up.weight, before)).item());
    EXPECT_EQ(learner.scaler.scale_value(), dynamic ? 32768 : 512);
    factor = 1;
    learner.train_batch(batch);
    EXPECT_EQ(learner.state.result.state(), amp::StepResult::State::Stepped);
    EXPECT_FALSE(all(eq(net.up.weight, before)).item());
    learner.history.settle();
    EXPECT_TRUE(learner.history.steps[0].skipped);
    EXPECT_FALSE(learner.history.steps[1].skipped);
    EXPECT_EQ(learner.history.steps[1].scale, dynamic ? 32768 : 512);
  }
}

// Notes every moment, and may ask for something at one of them.
struct Spy : Callback {
  std::string seen, at;
  std::function<void(Learner&)> ask;
  void note(std::string_view moment, Learner& l) {
    seen += seen.empty() ? "" : " ";
    seen += moment;
    if (moment == at) ask(l);
  }
  void on_train_begin(Learner& l) override { note("train", l); }
  void on_epoch_begin(Learner& l) override { note("epoch", l); }
  void on_batch_begin(Learner& l) override { note(l.state.training ? "batch" : "vbatch", l); }
  void on_loss_begin(Learner& l) override { note(l.state.training ? "loss" : "vloss", l); }
  void on_backward_begin(Learner& l) override { note("backward", l); }
  void on_backward_end(Learner& l) override { note("backward.", l); }
  void on_step_begin(Learner& l) override { note("step", l); }
  void on_step_end(Learner& l) override { note("step.", l); }
  void on_batch_end(Learner& l) override { note(l.state.training ? "batch." : "vbatch.", l); }
  void on_valid_begin(Learner& l) override { note("valid", l); }
  void on_valid_end(Learner& l) override { note("valid.", l); }
  void on_epoch_end(Learner& l) override { note("epoch.", l); }
  void on_train_end(Learner& l) override { note("train.", l); }
};

std::string moments(const std::string& at, std::function<void(Learner&)> ask) {
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

TEST(Callbacks, SeeEveryMomentAndMaySkip) {
  const std::string batch = " batch loss backward backward. step step. batch.",
                    valid = " valid vbatch vloss vbatch. valid.";
  const auto skip = [](Learner& l) { l.skip(); };
  EXPECT_EQ(moments("", {}), "train epoch" + batch + batch + valid + " epoch. train.");
  EXPECT_EQ(moments("epoch", skip), "train epoch" + valid + " epoch. train.");
  EXPECT_EQ(moments("batch", skip),
            "train epoch batch batch. batch batch." + valid + " epoch. train.");
  const std::string to_loss = " batch loss batch.", to_back = " batch loss backward batch.",
                    to_grads = " batch loss backward backward. batch.",
                    to_step = " batch loss backward backward. step batch.";
  const auto whole = [&](const std::string& b) {
    return "train epoch" + b + b + valid + " epoch. train.";
  };
  EXPECT_EQ(moments("loss", skip), whole(to_loss));
  EXPECT_EQ(moments("backward", skip), whole(to_back));
  EXPECT_EQ(moments("backward.", skip), whole(to_grads));
  EXPECT_EQ(moments("step", skip), whole(to_step));
  EXPECT_EQ(moments("step.", [](Learner& l) { l.stop(); }), "train epoch" + batch + " train.");
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

// Four batches of 4 make the step that one of 16 makes.
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

TEST(Callbacks, GradientsAccumulateInLoopsOfOthers) {
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

TEST(Callbacks, EarlyStoppingWaitsForItsPatience) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{.patience = 2})};
  o.optimizer = [](auto params) { return optim::SGD(params, {.lr = 0}); };  // nothing improves
  Learner learner(loaders(), Net(), o);
  learner.fit(10);
  EXPECT_EQ(learner.history.epochs.size(), 3u);
  learner.fit(10);  // anew
  EXPECT_EQ(learner.history.epochs.size(), 6u);
}

TEST(Callbacks, TerminateOnNanSaysWhere) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<TerminateOnNan>()};
  int calls = 0;
  o.loss = [&](const Tensor& out, const Tensor& y) {
    return cross_entropy(out, y) * (++calls == 3 ? NAN : 1.0);
  };
  Learner learner(loaders(), Net(), o);
  EXPECT_ERROR(learner.fit(1), "the loss of step 2 is");
  EXPECT_EQ(calls, 3);
}

TEST(Callbacks, LogsHaveARowPerEpoch) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  o.callbacks = {std::make_shared<CsvLogger>(folder / "log.csv"),
                 std::make_shared<JsonlLogger>(folder / "log.jsonl", true)};
  Learner learner(loaders(), Net(), o);
  learner.fit(2);
  const std::string csv = test::slurp(folder / "log.csv");
  EXPECT_TRUE(csv.starts_with("epoch,train_loss,valid_loss,accuracy,seconds\n0,")) << csv;
  EXPECT_EQ(std::ranges::count(csv, '\n'), 3);
  const std::string jsonl = test::slurp(folder / "log.jsonl");
  EXPECT_EQ(std::ranges::count(jsonl, '\n'), 2 + 12) << jsonl;
}

// All of a training's state as bytes.
std::map<std::string, std::vector<uint8_t>> bytes(Learner& l) {
  std::map<std::string, std::vector<uint8_t>> all;
  for (const auto& [name, t] : l.state_dict()) {
    const Tensor dense = t.contiguous().to(Device::cpu());
    const auto* const data = static_cast<const uint8_t*>(dense.host());
    all[name].assign(data, data + dense.numel() * int64_t(size_of(dense.dtype())));
  }
  return all;
}

// The names of what is not the same in both.
using Bytes = std::map<std::string, std::vector<uint8_t>>;
std::string differing(const Bytes& a, const Bytes& b) {
  std::string names;
  for (const auto& [name, data] : a)
    if (!b.contains(name) || b.at(name) != data) names += name + " ";
  for (const auto& [name, data] : b)
    if (!a.contains(name)) names += name + " ";
  return names;
}

using Choose = void (*)(Learner&);
const Choose precisions[] = {[](Learner&) {}, [](Learner& l) { l.to_fp16({.growth_interval = 3}); },
                             [](Learner& l) { l.to_bf16(); },
                             [](Learner& l) { l.to_fp16({.max_noskip = 3}); },
                             [](Learner& l) { l.to_fp16({.clip = 1, .flat_master = true}); }};

// Cut after any batch, saved, and gone on with in a fresh learner: the same bytes.
TEST(Checkpoints, ResumeBitForBit) {
  const TempFolder folder;
  const auto fresh = [](Choose choose, int64_t stop_at, const std::string& file) {
    LearnerOptions o = quiet();
    const auto spy = std::make_shared<Spy>();
    if (stop_at > 0) {
      spy->at = "batch.";
      spy->ask = [=](Learner& l) {
        if (l.state.step != stop_at) return;
        l.save(file);
        l.stop();
      };
    }
    o.callbacks = {spy, std::make_shared<EarlyStopping>()};
    auto learner = std::make_unique<Learner>(loaders(50, 16), Net(), o);
    choose(*learner);
    return learner;
  };
  const std::string file = folder / "cut.ckpt";
  for (const Choose choose : precisions) {
    const Seed seed(1);
    const auto whole = fresh(choose, 0, file);
    whole->fit_one_cycle(3, 1e-2);
    const auto expected = bytes(*whole);
    for (int64_t cut = 1; cut <= 12; ++cut) {
      {
        const Seed same(1);
        fresh(choose, cut, file)->fit_one_cycle(3, 1e-2);
      }
      const Seed other(7);
      const auto resumed = fresh(choose, 0, file);
      resumed->fit_one_cycle(3, 1e-2, {.resume = file});
      EXPECT_EQ(differing(bytes(*resumed), expected), "") << "cut after batch " << cut;
    }
  }
}

TEST(Checkpoints, RefuseWhatDoesNotFitAndChangeNothing) {
  const Seed seed(1);
  const TempFolder folder;
  const std::string file = folder / "a.ckpt";
  Learner learner(loaders(), Net(), quiet());
  learner.fit(1);
  learner.save(file);
  const auto before = bytes(learner);

  io::SafeTensors content = io::load(file);
  const auto with = [&](const io::Metadata& metadata, io::NamedTensors tensors) {
    io::save(file, tensors, metadata);
    return file;
  };
  const io::NamedTensors good(content.tensors.begin(), content.tensors.end());
  EXPECT_ERROR(learner.load(with({}, good)), "a.ckpt: not a checkpoint of a training");
  content.metadata.erase("crc32c");
  auto metadata = content.metadata;
  metadata["version"] = "2";
  EXPECT_ERROR(learner.load(with(metadata, good)),
               "a.ckpt: a checkpoint of version 2, and this library knows version 1");
  io::NamedTensors part;
  for (const auto& t : good)
    if (!t.first.starts_with("optimizer.group")) part.push_back(t);
  EXPECT_ERROR(learner.load(with(content.metadata, part)), "a.ckpt: ");
  part = good;
  for (auto& [name, tensor] : part)
    if (name == "model.up.weight") tensor = zeros({2, 2});
  EXPECT_ERROR(learner.load(with(content.metadata, part)), "up.weight");
  EXPECT_EQ(differing(bytes(learner), before), "");
  learner.load(with(content.metadata, good));
  EXPECT_EQ(differing(bytes(learner), before), "");
}

TEST(Checkpoints, AreWrittenByTheCallbackAndOnInterruption) {
  const Seed seed(1);
  const TempFolder folder;
  LearnerOptions o = quiet();
  const auto spy = std::make_shared<Spy>();
  spy->at = "backward";
  spy->ask = [](Learner& l) {
    if (l.state.step == 8) std::raise(SIGINT);
  };
  o.callbacks = {
      spy, std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder.path()})};
  Learner learner(loaders(), Net(), o);
  learner.fit(3);
  EXPECT_EQ(learner.state.step, 9);  // the step was finished, the fit was not
  EXPECT_EQ(learner.history.epochs.size(), 1u);
  Learner other(loaders(), Net(), quiet());
  other.fit(3, {.resume = folder / "last.ckpt"});
  EXPECT_EQ(other.state.step, 18);
  EXPECT_EQ(other.history.epochs.size(), 3u);
  EXPECT_TRUE(std::filesystem::exists(folder / "best.ckpt"));
}

// Whichever callback saves first: what it saves is what all have learnt from the epoch.
TEST(Checkpoints, HoldWhatAllCallbacksLearnt) {
  const Seed seed(1);
  const TempFolder first, second;
  LearnerOptions o = quiet();
  for (const TempFolder* folder : {&first, &second})
    o.callbacks.push_back(
        std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.folder = folder->path()}));
  Learner learner(loaders(), Net(), o);
  learner.fit(1);
  EXPECT_TRUE(test::slurp(first / "last.ckpt") == test::slurp(second / "last.ckpt"));
}

TEST(LrFind, LeavesAllAsItWas) {
  for (const Choose choose : precisions) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    choose(learner);
    learner.fit(1);
    const auto before = bytes(learner);
    const LrFind found = learner.lr_find({.steps = 30});
    EXPECT_EQ(differing(bytes(learner), before), "");
    ASSERT_GT(found.lr.size(), 5u);
    EXPECT_EQ(found.lr.front(), 1e-7);
    EXPECT_GT(found.suggested, 1e-7);
    EXPECT_LT(found.suggested, 10);
  }
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
  EXPECT_EQ(differing(bytes(learner), before), "");
  EXPECT_EQ(learner.history.epochs[0].seconds, seconds);
  EXPECT_TRUE(learner.schedule != nullptr);
}

TEST(LrFind, LeavesOutThoseThatOnlyLookOn) {
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

TEST(Learner, SaysWhatIsMissing) {
  Learner learner(Net(), quiet());
  EXPECT_ERROR(learner.fit(1), "fit without training data");
  EXPECT_ERROR(learner.validate(), "validate without validation data");
  EXPECT_ERROR(learner.score("valid_loss"), "before the end of an epoch");
  EXPECT_ERROR(learner.to(f64), "trained in f64, not f16, bf16 or f32");
  EXPECT_ERROR(learner.fit_one_cycle(1, 1, {.resume = "nowhere.ckpt"}), "");
  Learner full(loaders(), Net(), quiet());
  full.fit(1);
  EXPECT_ERROR(full.score("f1"),
               "no number is called \"f1\"; there are train_loss, valid_loss, accuracy");
  EXPECT_ERROR(full.fit(1, {.resume = "nowhere.ckpt"}), "nowhere.ckpt");
}

// Two learners, each with a loss that looks at the other's model, batch by batch.
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
    critic.zero_grad();  // the maker's loss went through the critic
  }
  EXPECT_GT(mean(makers.predict(randn({200, 2}))).item(), 1.0);  // it began near 0, real ones at 2
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
  EXPECT_ERROR(value(mse, scores, labels), "mse: output of shape");
  EXPECT_ERROR(value(top_k(4), scores, labels), "top_k: the 4 highest of 3 classes");
  EXPECT_ERROR(top_k(0), "top_k: k is 0, not at least 1");
  EXPECT_ERROR(confusion_matrix(scores, labels, 4), "scores of 3 classes, not 4");
}

}  // namespace
}  // namespace mixtape::train
