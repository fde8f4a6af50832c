// Bugs of other libraries' mixed precision, a test for each.

#include "core/stream.h"
#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace amp_regression_test {

constexpr double f32_max = std::numeric_limits<float>::max();

// fastai v1 stepped with gradients of zero, so momentum and weight decay moved the weights.
TEST(Regression, ASkippedStepMovesTheWeights) {
  const Tensor p = parameter({1, -2}), q = parameter({3});
  optim::SGD sgd({p}, {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
  optim::AdamW adamw({q}, {.lr = 0.1, .weight_decay = 0.1});
  GradScaler scaler({.init_scale = 1});
  for (const double bad : {0.0, inf, -inf, std::nan("")}) {
    (void)scaler.scale(ones({}));
    p.set_grad(full({2}, bad + 1));
    q.set_grad(full({1}, bad + 1));
    const auto before_p = bits(p), before_q = bits(q);
    const bool stepped_p = bool(scaler.step(sgd)), stepped_q = bool(scaler.step(adamw));
    scaler.update(1);
    EXPECT_EQ(stepped_p, bad == 0);
    EXPECT_EQ(stepped_q, bad == 0);
    EXPECT_EQ(bits(p) == before_p, bad != 0);
    EXPECT_EQ(bits(q) == before_q, bad != 0);
  }
}

// fastai v1 tested the sum of a gradient, which finite numbers can overflow.
TEST(Regression, LargeFiniteGradientsAreTakenForAnOverflow) {
  for (const bool unscaled : {false, true}) {
    const Tensor p = parameter({1, 1, 1});
    optim::SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 0x1p120});
    (void)scaler.scale(ones({}));
    p.set_grad(full({3}, f32_max));
    if (unscaled) scaler.unscale(sgd);
    EXPECT_TRUE(scaler.step(sgd));
    EXPECT_EQ(p.at(0), double(float(1 - f32_max * 0x1p-120)));
  }
}

// MXNet used a scale one update late: 6 skips, and 1024.
TEST(Regression, TheScaleLagsBehindOneUpdate) {
  Loop loop({});
  int skips = 0;
  for (int i = 0; i < 20; ++i) skips += !loop.run(loop.scaler.scale_value() > 3000 ? inf : 1);
  EXPECT_EQ(skips, 5);
  EXPECT_EQ(loop.scaler.scale_value(), 2048);

  Loop growing({.init_scale = 4, .growth_interval = 3});
  growing.run(1);
  growing.run(1);
  EXPECT_EQ(growing.scaler.scale(ones({})).item(), 4);
  growing.run(1);
  EXPECT_EQ(growing.scaler.scale(ones({})).item(), 8) << "the very next loss has the new scale";
}

// Flashlight added 2 per step once the scale, not the count, passed the interval.
TEST(Regression, TheScaleCreeps) {
  Loop loop({.init_scale = 4096, .growth_interval = 10});
  for (int i = 0; i < 39; ++i) loop.run(1);
  EXPECT_EQ(loop.scaler.scale_value(), 4096 * 8);
}

// Flashlight stopped at the first bad gradient, and the others kept their factor.
TEST(Regression, GradientsAfterABadOneStayScaled) {
  const Tensor p = parameter({1, 1}), q = parameter({1});
  optim::SGD sgd({p, q}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  (void)scaler.scale(ones({}));
  p.set_grad(from({inf, 8}, {2}));
  q.set_grad(from({4}, {1}));
  scaler.unscale(sgd);
  EXPECT_EQ(p.grad().at(1), 2);
  EXPECT_EQ(q.grad().at(0), 1);
}

// jmp's minimum became 1 when its state went through a compiled function.
TEST(Regression, LoadingForgetsTheMinimumAndTheMaximum) {
  const ScalerOptions options{.init_scale = 8,
                              .growth_interval = 1,
                              .min_scale = 4,
                              .max_scale = 16,
                              .hysteresis = 2,
                              .max_consecutive_skips = 9};
  Loop saved(options), loop(options);
  saved.run(1);
  loop.scaler.load_state_dict(saved.scaler.state_dict());
  loop.run(1);
  EXPECT_EQ(loop.scaler.scale_value(), 16);
  for (int i = 0; i < 3; ++i) loop.run(inf);
  EXPECT_EQ(loop.scaler.scale_value(), 4) << "of three overflows the first is forgiven";
  EXPECT_THROW(loop.run(inf), ScaleCollapse);
  EXPECT_EQ(loop.scaler.scale_value(), 4);
}

// Apex saved neither the interval nor the factors.
TEST(Regression, LoadingForgetsTheInterval) {
  Loop saved({.growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 7}), loop({});
  loop.scaler.load_state_dict(saved.scaler.state_dict());
  EXPECT_EQ(loop.scaler.options().growth_interval, 7);
  EXPECT_EQ(loop.scaler.options().growth_factor, 4);
  EXPECT_EQ(loop.scaler.options().backoff_factor, 0.25);
}

// Keras 3 lets the scale become 0 or inf, from where it never returns.
TEST(Regression, TheScaleBecomesZeroOrInfinite) {
  Loop up({.growth_interval = 1});
  for (int i = 0; i < 200; ++i) up.run(0);
  EXPECT_EQ(up.scaler.scale_value(), 0x1p127);
  Loop down({.init_scale = 0x1p-100});
  for (int i = 0; i < 50; ++i) {
    try {
      down.run(inf);
    } catch (const ScaleCollapse&) {
    }
  }
  EXPECT_EQ(down.scaler.scale_value(), 0x1p-126);
  EXPECT_TRUE(down.run(0));
}

// fastxtend overwrote the user's options.
TEST(Regression, DisabledIsForgotten) {
  for (const DType low : {f16, bf16, f32}) {
    GradScaler scaler(low, {.init_scale = 4, .enabled = false});
    EXPECT_FALSE(scaler.enabled()) << name(low);
    EXPECT_EQ(scaler.scale(ones({})).item(), 1);
    GradScaler moved = std::move(scaler);
    EXPECT_FALSE(moved.enabled());
  }
}

// fastxtend read the scale after each batch, and did not count skipped steps.
TEST(Regression, AStepWaitsForTheDeviceOrIsNotCounted) {
  Loop loop({.init_scale = 4, .growth_interval = 2});
  loop.run(1);
  const int64_t waits = synchronizations();
  for (int i = 0; i < 6; ++i) loop.run_ahead(i % 3 ? 1 : inf);
  EXPECT_EQ(synchronizations(), waits);
  EXPECT_EQ(loop.scaler.counters().updates, 7);
  EXPECT_EQ(loop.scaler.counters().skipped, 2);
}

TEST(Regression, NoOptimizerWaits) {
  for (const auto& [name, make] : optim::problems)
    for (const bool clips : {false, true}) {
      const auto params = optim::problem();
      const auto opt = make(params);
      GradScaler scaler({.init_scale = 4});
      const StepOptions options = clips ? StepOptions{.clip_norm = 1} : StepOptions{};
      for (int i = 0; i < 4; ++i) {
        (void)scaler.scale(ones({}));
        optim::set_grads(params, i, f32);
        const int64_t before = synchronizations();
        (void)scaler.step(*opt, options);
        scaler.update();
        if (i == 0) continue;  // makes the states
        EXPECT_EQ(synchronizations(), before) << name;
      }
    }
}

// PyTorch's fused Adam compared the flag with 1, but flags of two devices add up to 2.
TEST(Regression, AFlagAboveOneIsOverlooked) {
  for (const auto& [name, make] : optim::problems) {
    const auto params = optim::problem();
    const auto opt = make(params);
    optim::set_grads(params, 1, f32);
    opt->step({.skip = full({}, 2)});
    for (size_t i = 0; i < params.size(); ++i)
      EXPECT_EQ(to_vector(params[i]), to_vector(optim::problem()[i])) << name;
  }
}

// PyTorch tested gradients before dividing by S, which overflows for S below 1.
TEST(Regression, UnscalingMakesInfinities) {
  for (const bool explicitly : {false, true}) {
    const Tensor p = parameter({1});
    optim::SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 0x1p-100});
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, 1e30));
    if (explicitly) scaler.unscale(sgd);
    EXPECT_EQ(scaler.step(sgd).cause(), Cause::Gradients);
    EXPECT_EQ(p.at(0), 1);
  }
}

// The first scale is beyond f16's range: a plain sum overflows once by construction. (Not in a
// weight's gradient, which is never f16 here.)
TEST(Regression, APlainSumNeverTrains) {
  const Tensor a = waves({4, 4}, 1).set_requires_grad(),
               b = from(std::vector<double>(16, 0.25), {4, 4});
  optim::SGD sgd({a}, {.lr = 0.1});
  GradScaler scaler;
  std::vector<bool> stepped;
  for (int i = 0; i < 2; ++i) {
    Tensor loss;
    {
      const Autocast on({.low = f16});
      const Tensor h = matmul(a, b);  // its gradient is 65536
      loss = sum(h);
      EXPECT_EQ(h.dtype(), f16);
    }
    scaler.scale(loss).backward();
    stepped.push_back(bool(scaler.step(sgd)));
    scaler.update();
    sgd.zero_grad();
  }
  EXPECT_EQ(stepped, (std::vector<bool>{false, true}));
  EXPECT_EQ(scaler.scale_value(), 32768);
}

// optax applied a NaN after enough skipped steps.
TEST(Regression, NanIsAppliedInTheEnd) {
  Loop loop({.init_scale = 64, .min_scale = 16, .max_consecutive_skips = 3});
  const auto before = bits(loop.p);
  int collapses = 0;
  for (int i = 0; i < 40; ++i) {
    try {
      EXPECT_FALSE(loop.run(NAN));
    } catch (const ScaleCollapse&) {
      ++collapses;
    }
  }
  EXPECT_GT(collapses, 10);
  EXPECT_EQ(bits(loop.p), before);
}

// Apex replaced step(), so schedules ran ahead of the steps that happened.
TEST(Regression, AScheduleRunsAheadOfSkippedSteps) {
  Loop loop({});
  const int later = int(optim::Schedule::lag);  // updates until skipped steps are taken back
  optim::Cosine schedule(loop.sgd, {.total_steps = 20});
  for (const double g : {inf, 1.0, inf, 1.0, inf}) schedule.step(loop.run(g));
  for (int i = 0; i < later; ++i) schedule.step(loop.run(1));
  EXPECT_EQ(schedule.steps(), 2 + later);
}

// Apex tested incoming gradients, not their sum with existing ones.
TEST(Regression, AnAccumulatedOverflowIsOverlooked) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 1});
  for (int i = 0; i < 2; ++i) scaler.scale(sum(p * f32_max)).backward();
  EXPECT_FALSE(scaler.step(sgd));
  EXPECT_EQ(p.at(0), 1);
}

// PyTorch's copies of parameters are keyed by tensor alone: training in one region stood still.
TEST(Regression, ACopyInTheCacheIsStaleAfterAStep) {
  const Tensor w = parameter({1, 2, 3, 4}).reshape({2, 2}).detach().set_requires_grad(),
               x = ones({2, 2}, f16);
  optim::SGD sgd({w}, {.lr = 1});
  const Autocast on({.low = f16});
  std::vector<double> first;
  for (int i = 0; i < 3; ++i) {
    sgd.zero_grad();
    const Tensor y = linear(x, w);
    first.push_back(y.at(0));
    sum(y).backward();
    sgd.step();
  }
  EXPECT_EQ(first, (std::vector<double>{3, -1, -5}));
  EXPECT_EQ(on.cache_stats().casts, 3);
}

}  // namespace amp_regression_test
}  // namespace mixtape::amp
