// Learner in each precision: conversions, loss scales, skipped steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "autograd/ops.h"
#include "core/random.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#include "tests/support/training.h"
#include "train/callbacks.h"
#include "train/learner.h"

namespace mixtape::train {
using namespace internal;
namespace precision_test {

using namespace test;

// Every precision reaches the loss of f32.
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

// An optimizer that rounds by chance gets no masters, and the loss of f32 all the same.
TEST(Precision, WeightsOfBf16WithoutMasters) {
  for (const auto rounding : {optim::Rounding::Stochastic, optim::Rounding::Kahan}) {
    const auto loss_of = [&](bool narrow) {
      const Seed seed(1);
      LearnerOptions options = quiet();
      options.optimizer = [=](auto params) {
        return optim::AdamW(params, {.lr = 3e-3},
                            {.rounding = narrow ? rounding : optim::Rounding::Nearest});
      };
      Net net;
      Learner learner(loaders(), net, options);
      if (narrow) learner.to_fp16(MasterOptions{.dtype = bf16});
      learner.fit(4);
      EXPECT_EQ(net.up.weight.dtype(), narrow ? bf16 : f32);
      EXPECT_FALSE(learner.scaler.enabled());
      EXPECT_FALSE(learner.optimizer->multi_precision(0));
      return learner.history.epochs.back().train_loss;
    };
    EXPECT_NEAR(loss_of(true), loss_of(false), 0.04);
  }
  EXPECT_EQ(error([] { MixedPrecision(MasterOptions{.dtype = f32}); }),
            "dtype must be f16 or bf16, got f32");
}

TEST(Precision, KeepsWhatKahanRoundedOff) {
  LearnerOptions options = quiet();
  options.optimizer = [](auto params) {
    return optim::AdamW(params, {.lr = 3e-3}, {.rounding = optim::Rounding::Kahan});
  };
  Net net;
  Learner learner(loaders(), net, options);
  learner.to_fp16(MasterOptions{.dtype = bf16});
  learner.fit(1);
  const Tensor rest = learner.optimizer->state_dict().at("state.0.compensation").to(f32),
               sum = net.up.weight.detach().to(f32) + rest;
  EXPECT_GT(max(abs(rest)).item(), 0);
  learner.to_fp32();
  EXPECT_EQ(to_vector(net.up.weight), to_vector(sum));
  learner.to_fp16(MasterOptions{.dtype = bf16});  // and takes it back
  EXPECT_TRUE(allclose(learner.optimizer->masters()[0], sum, 1e-5, 0));
}

TEST(Precision, MastersAreOfAllParametersOrNone) {
  const optim::CommonOptions rounding{.rounding = optim::Rounding::Kahan};
  for (const bool some : {false, true}) {
    LearnerOptions options = quiet();
    options.optimizer = [=](auto params) {
      optim::AdamW opt({params[0]}, {}, rounding);
      params.erase(params.begin());
      opt.add_group(params, {}, some ? optim::CommonOptions() : rounding);
      return opt;
    };
    Net net;
    Learner learner(loaders(), net, options);
    EXPECT_EQ(error([&] { learner.to_fp16(MasterOptions{.flat_master = true, .dtype = bf16}); }),
              some
                  ? "all groups must round to nearest, with masters, or none: groups 0 and 1 differ"
                  : "flat_master with an optimizer that rounds without masters: there are none to "
                    "flatten");
    EXPECT_EQ(net.up.weight.dtype(), f32);
  }
}

TEST(Precision, IsTheLastChoice) {
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
  EXPECT_EQ(learner.callbacks().size(), 1u);  // one MixedPrecision after several choices
  learner.step_options.clip_norm = 0.5;
  learner.to_bf16().to_fp32();
  EXPECT_EQ(learner.step_options.clip_norm, 0.5) << "the program's own";
  const auto masters = std::make_shared<MixedPrecision>(MasterOptions{.clip = 1.5});
  learner.add(masters);
  learner.add(masters);
  EXPECT_EQ(learner.step_options.clip_norm, 1.5);
  EXPECT_EQ(learner.callbacks().size(), 1u);
  learner.to_fp32();
  EXPECT_EQ(learner.step_options.clip_norm, 0.5) << "as before";
}

TEST(Precision, MayBeChosenAmongTheCallbacks) {
  const Seed seed(0);
  LearnerOptions options = quiet();
  options.callbacks = {std::make_shared<MixedPrecision>(AmpOptions{.init_scale = 1024})};
  Learner learner(loaders(), Net(), options);
  EXPECT_EQ(learner.scaler.scale_value(), 1024);
  ASSERT_TRUE(learner.autocast.has_value());
  EXPECT_EQ(learner.autocast->low->dtype, f16);
  learner.add(std::make_shared<MixedPrecision>(MasterOptions{}));
  EXPECT_FALSE(learner.autocast.has_value());
  EXPECT_EQ(learner.model().parameters()[0].dtype(), f16);
  EXPECT_TRUE(learner.optimizer->multi_precision(0));
  learner.fit(1);
  EXPECT_EQ(learner.history.steps.back().scale, 65536);
  learner.compile(options);  // and the earlier choice is kept
  EXPECT_EQ(learner.scaler.scale_value(), 1024);
  EXPECT_EQ(learner.model().parameters()[0].dtype(), f32);
  learner.to_fp32();
  EXPECT_EQ(learner.callbacks().size(), 1u);
}

TEST(Precision, HasTheRequestedScale) {
  Learner learner(loaders(), Net(), quiet());
  const auto scale = [&](const auto& options) {
    learner.to_fp16(options);
    const amp::ScalerOptions& o = learner.scaler.options();
    return std::vector<double>{o.init_scale, o.growth_factor, o.backoff_factor,
                               double(o.growth_interval), o.max_scale};
  };
  using Scale = std::vector<double>;
  EXPECT_EQ(scale(AmpOptions{}), (Scale{65536, 2, 0.5, 2000, INFINITY}));
  EXPECT_EQ(
      scale(AmpOptions{
          .init_scale = 1024, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 7}),
      (Scale{1024, 4, 0.25, 7, INFINITY}));
  EXPECT_EQ(scale(MasterOptions{}), (Scale{65536, 2, 0.5, 1000, 1 << 24}));
  EXPECT_EQ(scale(MasterOptions{.loss_scale = 128, .max_noskip = 7, .max_scale = 4096}),
            (Scale{128, 2, 0.5, 7, 4096}));
  EXPECT_EQ(scale(MasterOptions{.dynamic = false})[0], 512);
  EXPECT_EQ(scale(MasterOptions{.loss_scale = 64, .dynamic = false})[0], 64);
  EXPECT_ERROR(learner.to_fp16({.clip = -1}), "clip must be >= 0, got -1");
  EXPECT_ERROR(learner.to_fp16({.loss_scale = -1}), "loss_scale must be >= 0, got -1");
}

TEST(Precision, HasTheRequestedMasters) {
  const auto each = {std::tuple(MasterOptions{}, f32, false),
                     std::tuple(MasterOptions{.flat_master = true}, f32, true),
                     std::tuple(MasterOptions{.loss_fp32 = false}, f16, false)};
  for (const auto& [options, dtype, flat] : each) {
    const Seed seed(1);
    LearnerOptions o = quiet();
    DType read = f64;
    o.loss = [&](const Tensor& output, const Tensor& y) {
      read = output.dtype();
      return cross_entropy(output, y);
    };
    Learner learner(loaders(), Net(), o);
    learner.to_fp16(options);
    learner.train_batch(learner.data.train->batch(0));
    EXPECT_EQ(read, dtype);
    const std::vector<Tensor> masters = learner.optimizer->masters();
    EXPECT_EQ(masters[0].storage() == masters[1].storage(), flat);
  }
}

// The optimizer keeps 16-bit copies.
TEST(Precision, CastsNoWeightsFromTheSecondBatchOn) {
  struct WeightCasts : Observer {
    std::vector<Tensor> weights;
    int count = 0;
    void after(const Call& call, const Tensor&) override {
      count += call.op.name == "cast" && std::ranges::any_of(weights, [&](const Tensor& w) {
                 return w.storage() == call.inputs[0]->storage();
               });
    }
  };
  for (const DType low : {f16, bf16}) {
    const Seed seed(1);
    Learner learner(loaders(), Net(), quiet());
    learner.to(low);
    std::vector<int> counts;
    for (int i = 0; i < 3; ++i) {
      WeightCasts casts;
      casts.weights = learner.optimizer->params();
      const Observe watch(casts);
      learner.train_batch(learner.data.train->batch(0));
      counts.push_back(casts.count);
    }
    EXPECT_EQ(counts, (std::vector<int>{2, 0, 0})) << name(low);
  }
}

// Returning to f32 restores the masters' full precision.
TEST(Precision, ComesBackFromMasters) {
  const Seed seed(1);
  Net net;
  Learner learner(loaders(), net, quiet());
  learner.to_fp16(MasterOptions{}).fit(1);
  const Tensor narrow = net.up.weight.detach();
  Tensor master;
  for (const auto& [name, t] : learner.optimizer->state_dict())
    if (name == "state.0.master") master = t.clone();
  learner.to_fp32();
  EXPECT_TRUE(all(eq(net.up.weight, master)).item());
  EXPECT_TRUE(all(eq(net.up.weight.to(f16), narrow)).item());
  EXPECT_FALSE(all(eq(net.up.weight, narrow.to(f32))).item());
}

// Masters start from the f32 weights, also in another optimizer.
TEST(Precision, MastersBeginAsTheWeightsAre) {
  const Seed seed(1);
  Net net;
  const auto first = to_vector(net.up.weight);
  for (const bool flat : {false, true}) {
    Learner learner(loaders(), net, quiet());
    learner.to_fp16(MasterOptions{.flat_master = flat});
    EXPECT_EQ(net.up.weight.dtype(), f16);
    learner.to_fp32();
    EXPECT_EQ(to_vector(net.up.weight), first);
  }
  Learner learner(loaders(), net, quiet());
  learner.to_fp16(MasterOptions{}).fit(1);
  const auto trained = to_vector(learner.optimizer->masters()[0]);
  learner.compile(quiet());
  EXPECT_EQ(net.up.weight.dtype(), f16);
  EXPECT_EQ(to_vector(learner.optimizer->masters()[0]), trained);
  learner.fit(1);
  EXPECT_NE(to_vector(learner.optimizer->masters()[0]), trained);
}

// A huge loss overflows: the step is skipped, and a static scale stays.
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

TEST(Precision, OverflowsHaveTheNamesOfTheModel) {
  const Seed seed(1);
  LearnerOptions o = quiet();
  o.loss = [](const Tensor& output, const Tensor& y) { return cross_entropy(output, y) * 1e35; };
  Learner learner(loaders(), Net(), o);
  learner.to_fp16();
  learner.fit(1);
  std::vector<std::string> names;
  for (const auto& bad : learner.scaler.last_overflow()) names.push_back(bad.name);
  EXPECT_NE(std::ranges::find(names, "up.weight"), names.end());
}

}  // namespace precision_test
}  // namespace mixtape::train
