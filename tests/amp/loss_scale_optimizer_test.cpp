// LossScaleOptimizer: trains as a GradScaler does by hand, and refuses misuse.

#include <thread>

#include "autograd/checkpoint.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "tests/support/optim.h"
#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace loss_scale_optimizer_test {

using optim::bits;

struct Net : nn::Module<Net> {
  nn::Linear in{5, 8}, out{8, 3};
  Tensor forward(const Tensor& x) const { return out(tanh(in(x))); }
  MIXTAPE_FIELDS(in, out)
};
Net net() {
  const Seed seed(3);
  return {};
}
Tensor loss_of(const Net& n, double factor = 1) {
  const Autocast on({.low = f16});
  return mean(square(n(values({4, 5})))) * factor;
}
optim::AdamW adamw(const Net& n) { return optim::AdamW(n.parameters(), {.lr = 0.05}); }

TEST(LossScaleOptimizer, TrainsAsAScalerDoesByHand) {
  const Net by_hand = net(), minimized = net(), in_halves = net();
  optim::AdamW opt = adamw(by_hand);
  GradScaler scaler({.growth_interval = 2});
  LossScaleOptimizer one = enable_mixed_precision(
                         adamw(minimized), {.loss_scale = ScalerOptions{.growth_interval = 2}}),
                     two = enable_mixed_precision(
                         adamw(in_halves), {.loss_scale = ScalerOptions{.growth_interval = 2}});
  int64_t steps = 0;
  for (int t = 0; t < 8; ++t) {
    const double factor = t == 3 ? 1e30 : t == 5 ? inf : 1;
    opt.zero_grad();
    scaler.scale(loss_of(by_hand, factor)).backward();
    const StepResult expected = scaler.step(opt);
    scaler.update();
    steps += bool(expected);

    EXPECT_EQ(one.minimize(loss_of(minimized, factor)).cause(), expected.cause()) << t;
    const auto gradients = two.compute_gradients(loss_of(in_halves, factor));
    EXPECT_EQ(two.apply_gradients(gradients).cause(), expected.cause()) << t;
    EXPECT_EQ(bits(one.inner()), bits(opt));
    EXPECT_EQ(bits(two.inner()), bits(opt));
    for (const LossScaleOptimizer* o : {&one, &two}) {
      EXPECT_EQ(o->loss_scale(), scaler.scale_value());
      EXPECT_EQ(o->iterations(), steps);
    }
  }
  EXPECT_EQ(steps, 6);
}

// Clamped, a gradient that overflowed looks like any other.
TEST(LossScaleOptimizer, SkipsGradientsThatWereMadeFinite) {
  const Net n = net();
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n));
  (void)opt.minimize(loss_of(n));
  const std::string before = bits(opt.inner());
  const auto clamped = [&](double factor) {
    auto gradients = opt.compute_gradients(loss_of(n, factor));
    for (Tensor& g : gradients) g = clamp(where(isnan(g), 0, g), -0.01, 0.01);
    return gradients;
  };
  EXPECT_FALSE(bool(opt.apply_gradients(clamped(1e30))));
  EXPECT_EQ(opt.loss_scale(), 32768);
  EXPECT_EQ(bits(opt.inner()), before);
  (void)clamped(1e30);  // one of two losses
  EXPECT_FALSE(bool(opt.apply_gradients(clamped(1))));
  EXPECT_TRUE(bool(opt.apply_gradients(clamped(1))));
}

TEST(LossScaleOptimizer, SkipsSoWhenTheFirstTryFailed) {
  const Tensor p = parameter({1});
  auto opt = enable_mixed_precision(optim::SGD({p}, {.lr = 0.5}));
  const std::vector<Tensor> gradients = {clamp(opt.compute_gradients(sum(p * 1e38))[0], -1, 1)};
  EXPECT_ERROR(opt.apply_gradients(gradients, {.clip_norm = -1}), "clip_norm must be >= 0, got -1");
  EXPECT_FALSE(bool(opt.apply_gradients(gradients)));
  EXPECT_EQ(p.item(), 1);
}

TEST(LossScaleOptimizer, LooksAtEachOfTheParametersThatJoin) {
  const Tensor p = parameter({1}), q = parameter({2}), r = parameter({3});
  auto opt = enable_mixed_precision(optim::SGD({p}, {.lr = 0.5}));
  auto& sgd = static_cast<optim::SGD&>(opt.inner());
  (void)opt.compute_gradients(sum(p * 1e38));
  sgd.add_group({q}, {.lr = 0.5});
  EXPECT_FALSE(bool(opt.apply_gradients(opt.compute_gradients(sum(p * q)))));
  EXPECT_EQ(opt.scaler().last_overflow().size(), 1u);
  std::vector<Tensor> gradients = opt.compute_gradients(sum(p * q));
  sgd.add_group({r}, {.lr = 0.5});
  gradients.push_back(ones({1}));
  EXPECT_TRUE(bool(opt.apply_gradients(gradients)));
  EXPECT_EQ(r.item(), 2.5);
}

TEST(LossScaleOptimizer, AFixedScaleStaysWhateverIsLoaded) {
  const Net n = net();
  const LossScaleOptimizer dynamic = enable_mixed_precision(adamw(n));
  LossScaleOptimizer fixed = enable_mixed_precision(adamw(n), {.loss_scale = 512.0});
  fixed.load_state_dict(dynamic.state_dict());
  EXPECT_EQ(fixed.loss_scale(), 512);
}

TEST(LossScaleOptimizer, ForgetsALossWhoseBackwardFailed) {
  const Net n = net();
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n));
  EXPECT_ANY_THROW(opt.minimize(n.in.bias * NAN));  // not one number
  EXPECT_EQ(opt.minimize(loss_of(n)).state(), StepResult::State::Stepped);
}

TEST(LossScaleOptimizer, GivesTrueGradients) {
  const Net n = net();
  LossScaleOptimizer opt =
      enable_mixed_precision(optim::SGD(n.parameters(), {.lr = 0.5}), {.loss_scale = 1024});
  const auto gradients = opt.compute_gradients(sum(n.out.bias * 3.0));
  ASSERT_EQ(gradients.size(), 4u);
  EXPECT_FALSE(gradients[0]);
  EXPECT_EQ(to_vector(gradients[3]), (std::vector<double>{3, 3, 3}));
  EXPECT_FALSE(n.out.bias.grad()) << "they are the caller's";

  // Gradients of two losses, averaged.
  const auto others = opt.compute_gradients(sum(n.out.bias * 5.0));
  const auto before = to_vector(n.out.bias);
  std::vector<Tensor> mean(4);
  mean[3] = (gradients[3] + others[3]) / 2.0;
  EXPECT_TRUE(bool(opt.apply_gradients(mean)));
  const auto after = to_vector(n.out.bias);
  for (size_t i = 0; i < 3; ++i) EXPECT_FLOAT_EQ(float(after[i]), float(before[i] - 0.5 * 4));
  EXPECT_FALSE(n.out.bias.grad());
  EXPECT_EQ(opt.iterations(), 1);
}

TEST(LossScaleOptimizer, GivesNoGradientsOfFrozenParameters) {
  const Tensor p = parameter({1}), q = parameter({2}).set_requires_grad();
  auto opt = enable_mixed_precision(optim::SGD({p, q}, {.lr = 0.5}));
  p.set_requires_grad(false);
  const std::vector<Tensor> gradients = opt.compute_gradients(sum(p * q));
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_FALSE(gradients[0]);
  EXPECT_EQ(gradients[1].item(), 1);
  opt.apply_gradients(gradients);
  EXPECT_EQ(p.item(), 1);
  EXPECT_EQ(q.item(), 1.5);
}

TEST(LossScaleOptimizer, GradientsThatAreNotAppliedSkipNoStep) {
  const Tensor p = parameter({1});
  auto opt = enable_mixed_precision(optim::SGD({p}, {.lr = 0.5}));
  const StateDict begin = opt.state_dict();
  for (const bool loads : {false, true}) {
    (void)opt.compute_gradients(sum(p * 1e38));
    (void)opt.compute_gradients(sum(p * inf));
    loads ? opt.load_state_dict(begin) : opt.abandon();
    EXPECT_TRUE(bool(opt.apply_gradients(opt.compute_gradients(sum(p)))));
    EXPECT_EQ(opt.loss_scale(), 65536);
  }
}

TEST(LossScaleOptimizer, ClipsInTheStep) {
  const Net n = net();
  LossScaleOptimizer opt = enable_mixed_precision(optim::SGD(n.parameters(), {.lr = 1}));
  const auto before = to_vector(n.out.bias);
  const StepResult result = opt.minimize(sum(n.out.bias * 3.0), {.clip_norm = 1.0});
  EXPECT_NEAR(result.norm().item(), 3 * std::sqrt(3), 1e-5);
  EXPECT_NEAR(n.out.bias.at(0), before[0] - 1 / std::sqrt(3), 1e-5);
}

TEST(LossScaleOptimizer, KeepsAFixedScale) {
  const Net n = net();
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n), {.loss_scale = 128});
  for (int t = 0; t < 6; ++t) {
    EXPECT_EQ(bool(opt.minimize(loss_of(n, t % 2 ? 1e38 : 1))), t % 2 == 0);
    EXPECT_EQ(opt.loss_scale(), 128);
  }
  EXPECT_EQ(opt.iterations(), 3);
}

TEST(LossScaleOptimizer, CountsWithoutAScaleToo) {
  const Net n = net();
  LossScaleOptimizer opt =
      enable_mixed_precision(adamw(n), {.loss_scale = ScalerOptions{.enabled = false}});
  EXPECT_TRUE(bool(opt.minimize(loss_of(n))));
  EXPECT_TRUE(bool(opt.apply_gradients(opt.compute_gradients(loss_of(n)))));
  EXPECT_EQ(opt.apply_gradients(std::vector<Tensor>(4)).state(), State::NoGrads);
  EXPECT_EQ(opt.loss_scale(), 1);
  EXPECT_EQ(opt.iterations(), 2);
}

TEST(LossScaleOptimizer, GivesTheOptimizerBack) {
  const Net n = net();
  optim::AdamW plain = adamw(n);
  LossScaleOptimizer opt = enable_mixed_precision(std::move(plain));
  (void)opt.minimize(loss_of(n));
  LossScaleOptimizer moved = std::move(opt);
  EXPECT_ERROR(opt.minimize(loss_of(n)), "there is no optimizer in here: it was moved from");
  EXPECT_ERROR(plain.step(), "this adamw has no parameters: it was moved from");
  (void)moved.minimize(loss_of(n));
  const optim::Optimizer* const inner = &moved.inner();
  const auto back = disable_mixed_precision(std::move(moved));
  EXPECT_EQ(back.get(), inner);
  EXPECT_EQ(optim::state(*back, "state.0.step"), 2);
}

template <class O>
concept CanBeWrapped = requires(O o) { enable_mixed_precision(std::move(o)); };
static_assert(CanBeWrapped<optim::SGD> && !CanBeWrapped<LossScaleOptimizer>);

TEST(LossScaleOptimizer, RefusesAScaleBesideItsOwn) {
  const Net n = net();
  EXPECT_ERROR(
      enable_mixed_precision(optim::SGD(n.parameters(), {}, {.rescale_grad = 0.5})),
      "enable_mixed_precision: sgd has a loss scale of its own: rescale_grad must be 1, got 0.5");
  EXPECT_ERROR(LossScaleOptimizer(nullptr), "there is no optimizer");
  EXPECT_ERROR(enable_mixed_precision(adamw(n), {.loss_scale = "static"}),
               "loss_scale must be \"dynamic\" or a number, got 'static'");
  EXPECT_ERROR(enable_mixed_precision(adamw(n), {.loss_scale = 0}),
               "loss_scale must be > 0, got 0");
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n));
  EXPECT_ERROR(opt.apply_gradients({}), "4 parameters need as many gradients, got 0");
  EXPECT_ERROR(opt.apply_gradients(std::vector<Tensor>(4)), "loss 0 was never scaled");
}

TEST(LossScaleOptimizer, ResumesExactly) {
  const Net a = net();
  Net b = net();
  LossScaleOptimizer whole =
      enable_mixed_precision(adamw(a), {.loss_scale = ScalerOptions{.growth_interval = 3}});
  for (int t = 0; t < 4; ++t) (void)whole.minimize(loss_of(a, t == 1 ? 1e30 : 1));
  LossScaleOptimizer resumed = enable_mixed_precision(adamw(b));
  (void)resumed.minimize(loss_of(b));  // its own state is replaced
  b.load_state_dict(optim::snapshot(a.state_dict()));
  resumed.load_state_dict(optim::snapshot(whole.state_dict()));
  EXPECT_EQ(resumed.iterations(), 3);
  for (int t = 0; t < 4; ++t) {
    (void)whole.minimize(loss_of(a));
    (void)resumed.minimize(loss_of(b));
  }
  EXPECT_EQ(bits(whole.inner()), bits(resumed.inner()));
  EXPECT_EQ(whole.loss_scale(), resumed.loss_scale());
  EXPECT_EQ(whole.iterations(), resumed.iterations());
}

TEST(LossScaleOptimizer, LoadsNothingThatDoesNotFit) {
  const Net n = net();
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n));
  (void)opt.minimize(loss_of(n));
  const std::string before = bits(opt.inner());
  const auto load_with = [&](const std::string& name, double value) {
    StateDict dict = optim::snapshot(opt.state_dict());
    std::erase_if(dict, [&](const auto& entry) { return entry.first == name; });
    dict.emplace_back(name, optim::scalar(value));
    return test::full_error([&] { opt.load_state_dict(dict); });
  };
  const auto expect = [](const std::string& message, const std::string& text) {
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  expect(load_with("scaler.scale", 0),
         "the scale of loss 0 must be positive and finite in f32, got 0");
  expect(load_with("optimizer.group.0.lr", -1), "lr must be >= 0, got -1");
  expect(load_with("iterations", -1),
         "iterations must be a whole number from 0 to 9007199254740992, got -1");
  expect(load_with("model.weight", 1), "unexpected key 'model.weight'");
  expect(test::full_error([&] { opt.load_state_dict({}); }), "iterations is missing");
  EXPECT_EQ(bits(opt.inner()), before);
  EXPECT_EQ(opt.loss_scale(), 65536);
  EXPECT_EQ(opt.iterations(), 1);
}

TEST(LossScaleOptimizer, LoadsAPolicyOnceAndOnlyIfAllFits) {
  struct Counting : LossScalePolicy {
    int loads = 0;
    double next(const Update& u) override { return u.scale; }
    StateDict state_dict() const override { return {{"good", optim::scalar(1)}}; }
    void load_state_dict(const StateDict&) override { ++loads; }
  };
  const Net n = net();
  const auto policy = std::make_shared<Counting>();
  LossScaleOptimizer opt =
      enable_mixed_precision(adamw(n), {.loss_scale = ScalerOptions{.policy = policy}});
  StateDict dict = optim::snapshot(opt.state_dict());
  EXPECT_TRUE(dict.contains("scaler.policy.good"));
  opt.load_state_dict(dict);
  EXPECT_EQ(policy->loads, 1);
  std::erase_if(dict, [](const auto& entry) { return entry.first == "optimizer.group.0.lr"; });
  EXPECT_ANY_THROW(opt.load_state_dict(dict));
  EXPECT_EQ(policy->loads, 1);
}

// --- gradients taken behind the scaler's back ---

struct Warnings {
  std::vector<std::string> told;
  OnWarning on{[this](const std::string& text) { told.push_back(text); }};
};

TEST(Unscaled, BackwardFromAnF16RegionWarnsOnce) {
  const Net n = net();
  Warnings warnings;
  LossScaleOptimizer opt = enable_mixed_precision(adamw(n));
  (void)opt.minimize(loss_of(n));
  (void)opt.apply_gradients(opt.compute_gradients(loss_of(n)));
  GradScaler scaler;
  scaler.scale(loss_of(n)).backward();
  EXPECT_EQ(warnings.told.size(), 0u);
  loss_of(n).backward();
  loss_of(n).backward();
  ASSERT_EQ(warnings.told.size(), 1u);
  EXPECT_NE(warnings.told[0].find("but the loss was not scaled"), std::string::npos);
}

TEST(Unscaled, SoDoesARegionThatCachesNoCasts) {
  const Net n = net();
  Warnings warnings;
  const auto loss = [&] {
    const Autocast on({.low = f16, .cache = false});
    return mean(square(n(values({4, 5}))));
  };
  GradScaler().scale(loss()).backward();
  EXPECT_EQ(warnings.told.size(), 0u);
  loss().backward();
  EXPECT_EQ(warnings.told.size(), 1u);
}

TEST(Unscaled, NoOtherLossSilencesTheWarning) {
  const Net n = net(), other = net();
  Warnings warnings;
  const Tensor loss = loss_of(n);
  std::thread([&, device = DefaultDevice::current()] {
    const DefaultDevice here(device);
    GradScaler scaler;
    scaler.scale(loss_of(other)).backward();
  }).join();
  loss.backward();
  EXPECT_EQ(warnings.told.size(), 1u);

  Warnings of_one_thread;
  const Autocast on({.low = f16});
  const Tensor scaled = mean(n(values({4, 5}))), unscaled = mean(square(n(values({4, 5}))));
  GradScaler().scale(scaled).backward();
  EXPECT_EQ(of_one_thread.told.size(), 0u);
  unscaled.backward();
  EXPECT_EQ(of_one_thread.told.size(), 1u);
}

TEST(Unscaled, WhatNeedsNoScaleDrawsNoWarning) {
  const Net n = net();
  Warnings warnings;
  const auto loss_in = [&](DType low) {
    const Autocast on({.low = low});
    return mean(square(n(values({4, 5}))));
  };
  loss_in(bf16).backward();
  loss_in(f32).backward();
  GradScaler off({.enabled = false});  // the program's decision
  off.scale(loss_in(f16)).backward();
  GradScaler scaler;  // two regions, one loss
  const Tensor first = loss_in(f16), second = loss_in(f16);
  scaler.scale(first + second).backward();
  EXPECT_EQ(warnings.told.size(), 0u);
}

TEST(Unscaled, ARegionOpenedAgainInBackwardIsTheSame) {
  const Net n = net();
  Warnings warnings;
  GradScaler scaler;
  const Tensor x = values({4, 5}).set_requires_grad();
  Tensor loss;
  {
    const Autocast on({.low = f16});
    loss = mean(square(checkpoint([&](const Tensor& x) { return n(x); }, x)));
  }
  scaler.scale(loss).backward();
  EXPECT_TRUE(bool(n.in.weight.grad()));
  EXPECT_EQ(warnings.told.size(), 0u);
}

}  // namespace loss_scale_optimizer_test
}  // namespace mixtape::amp
