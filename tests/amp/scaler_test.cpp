// GradScaler: its options, its arithmetic, its state machine and its state.

#include "autograd/checkpoint.h"
#include "core/warn.h"

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace scaler_test {

struct ScalerReference {
  const char *name, *overflows;
  double init, growth, backoff;
  int64_t interval;
  std::vector<double> scales, trackers;
};
const ScalerReference references[] = {
#include "tests/data/scaler_reference.inc"
};

// --- construction ---

TEST(Options, AreChecked) {
  const auto made = [](const ScalerOptions& o) { return [o] { GradScaler s(o); }; };
  EXPECT_ERROR(made({.init_scale = 0})(), "init_scale must be positive and finite in f32, got 0");
  EXPECT_ERROR(made({.init_scale = -2})(), "in f32, got -2");
  EXPECT_ERROR(made({.init_scale = inf})(), "in f32, got inf");
  EXPECT_ERROR(made({.init_scale = NAN})(), "in f32, got nan");
  EXPECT_ERROR(made({.init_scale = 1e39})(), "in f32, got 1e+39");
  EXPECT_ERROR(made({.growth_factor = 1})(), "growth_factor must be finite and > 1, got 1");
  EXPECT_ERROR(made({.growth_factor = inf})(), "growth_factor must be finite and > 1, got inf");
  EXPECT_ERROR(made({.backoff_factor = 1})(), "backoff_factor must be in (0, 1), got 1");
  EXPECT_ERROR(made({.backoff_factor = 0})(), "backoff_factor must be in (0, 1), got 0");
  EXPECT_ERROR(made({.growth_interval = 0})(), "growth_interval must be >= 1, got 0");
  EXPECT_ERROR(made({.min_scale = 1e6})(),
               "min_scale must be from 0 to init_scale = 65536, got 1000000");
  EXPECT_ERROR(made({.max_scale = 1024})(), "max_scale must be >= init_scale = 65536, got 1024");
  EXPECT_ERROR(made({.hysteresis = 0})(), "hysteresis must be >= 1, got 0");
  EXPECT_ERROR(made({.max_consecutive_skips = -1})(), "max_consecutive_skips must be >= 0, got -1");
  EXPECT_EQ(test::error(made({.growth_factor = 1, .enabled = false})), "no error") << "no effect";
}

TEST(Options, OnlyF16IsScaled) {
  EXPECT_TRUE(GradScaler(f16).enabled());
  EXPECT_ERROR(GradScaler(i64), "GradScaler: low must be f16, bf16 or f32, got i64");
  EXPECT_FALSE(GradScaler(bf16).enabled());
  EXPECT_FALSE(GradScaler(f32, {.init_scale = 4}).enabled());
  EXPECT_FALSE(GradScaler(f16, {.enabled = false}).enabled());
  const auto from_braces = []<class S>(S none) {  // ambiguous with g++, options with clang
    if constexpr (requires { S({}); }) none = S({});
    return none;
  };
  EXPECT_TRUE(from_braces(GradScaler()).enabled());
}

// --- the scale ---

// The table omits two intended differences: a loss that is not finite keeps the scale, and the
// scale does not fall to 0 (both in scaler_skip_test.cpp).
TEST(Scale, MovesAsPyTorchs) {
  for (const ScalerReference& r : references) {
    Loop loop({.init_scale = r.init,
               .growth_factor = r.growth,
               .backoff_factor = r.backoff,
               .growth_interval = r.interval});
    std::vector<double> scales, trackers;
    int64_t skipped = 0;
    for (const char* c = r.overflows; *c; ++c) {
      EXPECT_EQ(bool(loop.run(*c == '1' ? inf : 0)), *c == '0') << r.name;
      scales.push_back(loop.scaler.scale_value());
      trackers.push_back(double(loop.scaler.growth_tracker()));
      skipped += *c == '1';
    }
    EXPECT_EQ(scales, r.scales) << r.name;
    EXPECT_EQ(trackers, r.trackers) << r.name;
    EXPECT_EQ(loop.scaler.counters().updates, int64_t(scales.size())) << r.name;
    EXPECT_EQ(loop.scaler.counters().skipped, skipped) << r.name;
  }
}

TEST(Scale, StopsGrowingWhereF32EndsOrTheUserSays) {
  Loop loop({.init_scale = 3e38, .growth_interval = 1});
  for (int i = 0; i < 3; ++i) loop.run(0);
  EXPECT_EQ(loop.scaler.scale_value(), double(3e38f));
  Loop limited({.init_scale = 4, .growth_interval = 1, .max_scale = 16});
  for (int i = 0; i < 5; ++i) limited.run(1);
  EXPECT_EQ(limited.scaler.scale_value(), 16);
}

TEST(Scale, InverseOfAPowerOfTwoIsExact) {
  GradScaler scaler;
  EXPECT_ERROR(
      (void)scaler.inverse_scale(),
      "inverse_scale: loss 0 was never scaled: call scale(loss) first, in a statement before");
  (void)scaler.scale(ones({}));
  EXPECT_EQ(scaler.inverse_scale().item(), 0x1p-16);
  EXPECT_EQ(scaler.scale_tensor().item(), 0x1p16);
  scaler.update(3);
  EXPECT_EQ(scaler.inverse_scale().item(), double(1 / 3.0f));
}

TEST(Scale, WidensTheLossAndStaysOnTheTape) {
  GradScaler scaler;
  const Tensor x = parameter({3}, f16);
  const Tensor scaled = scaler.scale(sum(x.reshape({1, 1})));
  EXPECT_EQ(scaled.dtype(), f32);
  EXPECT_EQ(scaled.item(), 3 * 65536.0) << "more than f16 holds";
  EXPECT_EQ(scaler.scale(parameter({2}, f64)).dtype(), f64);
  EXPECT_EQ(scaler.inverse_scale().device(), x.device()) << "made where the first loss is";
  const std::vector<Tensor> both = scaler.scale({ones({}), ones({2})});
  EXPECT_EQ(both[1].shape(), Shape{2});
  EXPECT_EQ(both[1].at(1), 65536);
  EXPECT_ERROR((void)scaler.scale(from({1}, {}, i64)),
               "scale: the loss must be a float tensor, got i64");
  const Autocast on({.low = f16, .overrides = {{"mul", Precision::Low}}});
  EXPECT_EQ(scaler.scale(ones({})).dtype(), f32) << "no policy acts on it";
}

TEST(Scale, CanBeSet) {
  Loop loop({.init_scale = 4, .growth_interval = 3});
  loop.run(1);
  loop.scaler.update(1024);
  EXPECT_EQ(loop.scaler.scale_value(), 1024);
  EXPECT_EQ(loop.scaler.growth_tracker(), 1);
  EXPECT_ERROR(loop.scaler.update(0),
               "update: new_scale must be positive and finite in f32, got 0");
  EXPECT_ERROR(loop.scaler.update(inf), "in f32, got inf");

  Loop limited({.init_scale = 4, .min_scale = 2, .max_scale = 8});
  limited.run(1);
  limited.scaler.update(8);
  EXPECT_ERROR(limited.scaler.update(1.5), "update: new_scale must be from 2 to 8, got 1.5");
  EXPECT_ERROR(limited.scaler.update(8.5), "from 2 to 8, got 8.5");
  EXPECT_EQ(limited.scaler.scale_value(), 8);
}

// The addresses stay, so that a recorded step can be run again.
TEST(Scale, StaysWhereItIsInMemory) {
  Loop loop({.init_scale = 4, .growth_interval = 1});
  loop.run(1);
  const void* const place = loop.scaler.inverse_scale().raw();
  loop.run(inf);
  loop.scaler.update(64);
  loop.scaler.load_state_dict(loop.scaler.state_dict());
  loop.run(1);
  EXPECT_EQ(loop.scaler.inverse_scale().raw(), place);
  EXPECT_EQ(loop.scaler.scale_value(), 128);
}

TEST(Scale, WaitsForHysteresis) {
  Loop loop({.init_scale = 64, .growth_interval = 100, .hysteresis = 2});
  std::vector<double> scales;
  for (const double g : {inf, 1.0, inf, inf, inf, 1.0, inf}) {
    loop.run(g);
    scales.push_back(loop.scaler.scale_value());
  }
  EXPECT_EQ(scales, (std::vector<double>{64, 64, 64, 32, 16, 16, 16}));
}

// --- the state machine ---

TEST(Stages, BelongToAnOptimizerAndNotToItsPlace) {
  const Tensor p = parameter({1}), q = parameter({1});
  GradScaler scaler({.init_scale = 4});
  const auto gradients = [&] {
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, 4));
    q.set_grad(full({1}, 4));
  };
  gradients();
  optim::SGD sgd({p}, {.lr = 1});
  scaler.unscale(sgd);
  optim::SGD moved = std::move(sgd);
  const double before = p.at(0);
  EXPECT_TRUE(scaler.step(moved));
  EXPECT_FLOAT_EQ(p.at(0), before - 1) << "divided once";
  moved = optim::SGD({q}, {.lr = 1});
  EXPECT_TRUE(scaler.step(moved)) << "another optimizer";
  scaler.update(4);

  gradients();
  scaler.unscale(moved);
  moved.add_group({p}, {.lr = 1});
  EXPECT_ERROR(scaler.step(moved), "sgd has 2 parameters, of which 1 were unscaled");
}

TEST(Stages, RefuseGradientsOfNoScaledLoss) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  (void)scaler.scale(ones({}));
  p.set_grad(ones({1}));
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  const double before = p.at(0);
  EXPECT_ERROR(scaler.step(sgd), "step: no loss was scaled since the last update()");
  EXPECT_ERROR(scaler.unscale(sgd), "unscale: no loss was scaled since the last update()");
  EXPECT_EQ(p.at(0), before);
  EXPECT_TRUE(scaler.step(sgd, {.unscaled = true}));
  EXPECT_EQ(p.at(0), before - 1);
}

TEST(Stages, AreEnforced) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 0.1});
  GradScaler scaler;
  p.set_grad(ones({1}));
  EXPECT_ERROR(scaler.unscale(sgd),
               "unscale: loss 0 was never scaled: call scale(loss).backward() first");
  EXPECT_ERROR(scaler.step(sgd), "step: loss 0 was never scaled");
  EXPECT_ERROR(scaler.update(), "update: no loss was ever scaled");
  (void)scaler.scale(ones({}));
  scaler.unscale(sgd);
  EXPECT_ERROR(
      scaler.unscale(sgd),
      "unscale: the gradients of sgd were unscaled already since the last update(): call step() "
      "and update() once for each unscale(), or abandon() to go on without a step");
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_ERROR(
      scaler.step(sgd),
      "step: sgd has already stepped since the last update(): call update() after the step");
  EXPECT_ERROR(scaler.unscale(sgd), "unscale: sgd has already stepped since the last update()");
  scaler.update();
  (void)scaler.scale(ones({}));
  EXPECT_TRUE(scaler.step(sgd)) << "update() clears all";
  EXPECT_ERROR(scaler.step(sgd, {.clip_norm = -1}), "step: clip_norm must be >= 0, got -1");
}

// --- what gradients carry ---

TEST(Carried, NothingIsAddedBetweenUnscaleAndStep) {
  for (const bool clip : {false, true})
    for (const bool drop : {false, true}) {
      const Tensor p = parameter({1, 2});
      optim::SGD sgd({p}, {.lr = 1});
      GradScaler scaler;
      scaler.scale(sum(p)).backward();
      scaler.unscale(sgd);
      if (clip) optim::clip_grad_norm({p}, 1);
      if (drop) sgd.zero_grad();
      scaler.scale(sum(p)).backward();
      EXPECT_ERROR(scaler.step(sgd),
                   "a scaled loss has added to it since unscale(), which belongs after the last "
                   "backward(); after an exception, call abandon()");
      EXPECT_EQ(to_vector(p), (std::vector<double>{1, 2}));
    }
}

TEST(Carried, WhatElseBecomesOfTrueGradientsIsFree) {
  const OnWarning never([](const std::string& text) { ADD_FAILURE() << text; });
  const Tensor p = parameter({1, 2}), q = parameter({3});
  optim::SGD a({p}, {.lr = 1}), b({q}, {.lr = 1});
  GradScaler scaler;
  for (int i = 0; i < 2; ++i) {  // the second time, into gradients that are zeros
    scaler.scale(sum(p) / 2).backward();
    scaler.scale(sum(p) / 2).backward();
    scaler.unscale(a);
    sum(p).backward();                // of a loss that was not scaled
    scaler.scale(sum(q)).backward();  // of another optimizer
    scaler.step(a);
    scaler.step(b);
    scaler.update();
    a.zero_grad(false);
    b.zero_grad();
  }
  EXPECT_EQ(to_vector(p), (std::vector<double>{-3, -2}));
  EXPECT_EQ(q.at(0), 1);
  scaler.scale(sum(p)).backward();
  {
    const NoGrad off;
    mul_(p.grad(), scaler.inverse_scale());  // divided by hand
  }
  scaler.step(a, {.unscaled = true});
  EXPECT_EQ(to_vector(p), (std::vector<double>{-4, -3}));
  scaler.update();
  a.zero_grad();
  scaler.scale(sum(p)).backward();  // not divided
  EXPECT_ERROR(scaler.step(a, {.unscaled = true}),
               "the gradient of parameter 0 of sgd is scaled: nothing divided it");
  EXPECT_EQ(to_vector(p), (std::vector<double>{-4, -3}));
  scaler.abandon();
  // Given gradients may be scaled.
  p.set_grad({});
  (void)scaler.scale(sum(p));
  (p * 1.0).backward({.gradient = full({2}, 65536)});
  scaler.step(a);
  EXPECT_EQ(to_vector(p), (std::vector<double>{-5, -4}));
}

TEST(Carried, LossesOfOneBackwardPassAreTakenApart) {
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 1}), b({q}, {.lr = 1});
  GradScaler scaler, other;
  const auto square = [](const Tensor& x) { return sum(x * x) / 2; };
  const auto pass = [&](bool recomputed, const auto& total) {
    for (const Tensor& x : {p, q}) x.set_grad({}), x.set(0, 1);
    scaler.abandon();
    if (!recomputed) return total(square(p), square(q)).backward();
    const auto both = checkpoint(
        [&](const Tensor& x, const Tensor& y) { return std::vector<Tensor>{square(x), square(y)}; },
        p, q);
    total(both[0], both[1]).backward();
  };
  {
    const OnWarning never([](const std::string& text) { ADD_FAILURE() << text; });
    for (const bool recomputed : {false, true}) {
      pass(recomputed, [&](const Tensor& x, const Tensor& y) {
        return scaler.scale(x, 0) + scaler.scale(y, 1);
      });
      EXPECT_TRUE(scaler.step(a, {.loss = 0}));
      EXPECT_TRUE(scaler.step(b, {.loss = 1}));
      EXPECT_EQ(p.at(0) + q.at(0), 0);
      pass(recomputed, [&](const Tensor& x, const Tensor& y) { return scaler.scale(x) + y; });
      EXPECT_TRUE(scaler.step(a));
      b.step();
      EXPECT_EQ(p.at(0) + q.at(0), 0);
    }
  }
  std::vector<std::string> told;
  const OnWarning all([&](const std::string& text) { told.push_back(text); });
  pass(false, [&](const Tensor& x, const Tensor&) { return scaler.scale(x) + sum(p); });
  scaler.step(a);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("a loss was not scaled"), std::string::npos) << told[0];
  pass(false, [&](const Tensor& x, const Tensor&) { return scaler.scale(x) + other.scale(x); });
  EXPECT_ERROR(scaler.step(a), "carries several loss scales");
}

TEST(Carried, OneScaleAtATime) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler;
  scaler.scale(sum(p)).backward();
  scaler.update(1024);
  scaler.scale(sum(p)).backward();
  EXPECT_ERROR(scaler.step(sgd), "carries several loss scales");
  scaler.abandon();
  sgd.zero_grad();
  (void)scaler.scale(sum(p));
  scaler.scale(sum(p), 1).backward();
  EXPECT_ERROR(scaler.unscale(sgd), "carries another loss scale");
  EXPECT_ERROR(scaler.step(sgd), "carries another loss scale");
  EXPECT_TRUE(scaler.step(sgd, {.loss = 1}));
  EXPECT_EQ(p.at(0), 0);
  scaler.update();
  sgd.zero_grad();
  scaler.scale(scaler.scale(sum(p))).backward();
  EXPECT_ERROR(scaler.step(sgd), "carries several loss scales: a loss is scaled once");
}

TEST(Carried, AScaleThatIsSetToItselfStays) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 64});
  for (int i = 0; i < 2; ++i) {
    scaler.scale(sum(p)).backward();
    scaler.update(64);
  }
  scaler.scale(sum(p)).backward();
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(p.at(0), -2);
}

TEST(Carried, AScaleThatMayHaveMovedIsWarnedOf) {
  for (const bool fixed : {false, true}) {
    const Tensor p = parameter({1}), q = parameter({1});
    optim::SGD each({p}, {.lr = 1}), every_other({q}, {.lr = 1});
    const double least = fixed ? 64 : 0, most = fixed ? 64 : 1e9;
    GradScaler scaler(
        {.init_scale = 64, .growth_interval = 1, .min_scale = least, .max_scale = most});
    std::vector<std::string> told;
    const OnWarning all([&](const std::string& text) { told.push_back(text); });
    for (int i = 0; i < 4; ++i) {
      scaler.scale(sum(p) + sum(q)).backward();
      scaler.step(each);
      each.zero_grad();
      if (i % 2 == 1) {
        scaler.step(every_other);
        every_other.zero_grad();
      }
      scaler.update();
    }
    EXPECT_EQ(p.at(0), -3);
    EXPECT_EQ(q.at(0), fixed ? -3 : -2);  // 1 - (64 + 128) / 128 - (256 + 512) / 512
    ASSERT_EQ(told.size(), fixed ? 0u : 1u);
    if (!fixed) {
      EXPECT_NE(told[0].find("losses before and after an update()"), std::string::npos);
    }
  }
}

TEST(Carried, GradientsDividedWithoutReasonAreWarnedOf) {
  const auto warnings = [](const auto& body) {
    std::vector<std::string> told;
    const OnWarning all([&](const std::string& text) { told.push_back(text); });
    body();
    return told;
  };
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 1}), b({q}, {.lr = 1}), both({p, q}, {.lr = 1});
  const auto expect_told = [](const std::vector<std::string>& told, const char* what) {
    ASSERT_EQ(told.size(), 1u);
    EXPECT_NE(told[0].find(what), std::string::npos) << told[0];
  };
  expect_told(warnings([&] {
                GradScaler scaler;
                scaler.scale(sum(p)).backward();
                sum(q).backward();
                scaler.step(a);
                scaler.step(b);
              }),
              "at least in part, not multiplied by it");
  both.zero_grad();
  EXPECT_TRUE(warnings([&] {  // a parameter in two optimizers, which is divided once
                GradScaler scaler;
                scaler.scale(sum(p)).backward();
                scaler.unscale(a);
                scaler.unscale(both);
              })
                  .empty());
  both.zero_grad();
  expect_told(warnings([&] {
                GradScaler scaler;
                scaler.scale(sum(p) + sum(q)).backward();
                scaler.step(a);
                b.step();
              }),
              "the gradients are still multiplied by the loss scale");
  both.zero_grad();
  expect_told(warnings([&] {
                GradScaler scaler;
                scaler.scale(sum(p) + sum(q)).backward();
                optim::clip_grad_norm({p, q}, 1);
                scaler.step(both);
                both.zero_grad();
                scaler.update();
                scaler.scale(sum(p) + sum(q)).backward();
                scaler.unscale(both);
                optim::clip_grad_norm({p, q}, 1);
                scaler.step(both);
              }),
              "clipping gradients that are multiplied by the loss scale");
}

TEST(Stages, UpdateCountsWhatWasUnscaledButNotStepped) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 0.1});
  GradScaler scaler({.init_scale = 4});
  for (const double g : {inf, 1.0}) {
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, g));
    scaler.unscale(sgd);
    scaler.update();
    EXPECT_EQ(scaler.scale_value(), 2);
  }
  EXPECT_EQ(scaler.growth_tracker(), 1);
  EXPECT_EQ(p.at(0), 1);
}

// optimizer.step() would move weights by gradients that are S times too large.
TEST(Stages, AnUpdateWithoutAStepIsAnError) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler;
  scaler.scale(sum(p)).backward();
  EXPECT_ERROR(scaler.update(), "no optimizer has stepped since the last update()");
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
}

TEST(Stages, AStepThatFailedIsNone) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 0.5});
  GradScaler scaler;
  scaler.scale(sum(p)).backward();
  EXPECT_ERROR(scaler.step(sgd, {.loss = 7}), "loss 7 was never scaled");
  EXPECT_ERROR(scaler.update(), "no optimizer has stepped since the last update()");
  EXPECT_TRUE(scaler.step(sgd)) << "of loss 0, as before";
  EXPECT_EQ(p.at(0), 0.5);
  scaler.update();
}

TEST(Stages, AStepWithoutGradientsIsNoError) {
  const Tensor p = parameter({1});
  optim::Adam adam({p}, {.lr = 0.1});
  GradScaler scaler;
  (void)scaler.scale(ones({}));
  scaler.unscale(adam);
  const StepResult result = scaler.step(adam);
  EXPECT_EQ(result.state(), State::NoGrads);
  EXPECT_FALSE(result);
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 0) << "an iteration without gradients is neither good nor bad";
  EXPECT_EQ(p.at(0), 1);
}

TEST(Stages, GradientsOfF16ParametersNeedMasters) {
  const Tensor p = parameter({1, 2}, f16);
  optim::SGD plain({p}, {.lr = 0.5}), masters({p}, {.lr = 0.5}, {.multi_precision = true});
  GradScaler scaler;
  scaler.scale(sum(p)).backward();
  EXPECT_ERROR(scaler.unscale(plain), "parameter 0 of sgd is f16 and so is its gradient");
  EXPECT_ERROR(scaler.step(plain),
               "let the optimizer keep f32 copies with {.multi_precision = true}");
  p.set_grad(full({2}, 32768, f16));
  scaler.unscale(masters);
  EXPECT_EQ(p.grad().dtype(), f32);
  EXPECT_EQ(p.grad().at(0), 0.5);
  EXPECT_TRUE(scaler.step(masters));
  EXPECT_EQ(to_vector(p), (std::vector<double>{0.75, 1.75}));
}

TEST(Unscale, IsExactAndAddsUp) {
  const Tensor p = parameter({1, 2}), q = parameter({3, 4}, bf16), none = parameter({5});
  optim::SGD sgd({p, q, none}, {.lr = 1});
  GradScaler scaler;
  for (int i = 0; i < 3; ++i)
    scaler.scale(sum(p * 0.1) + sum(cast(q, f32))).backward();  // accumulates
  scaler.unscale(sgd);
  EXPECT_EQ(p.grad().at(1), double(3 * 0.1f)) << "powers of two change no bits";
  EXPECT_EQ(q.grad().at(0), 3);
  EXPECT_FALSE(none.grad());
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(none.at(0), 5);
}

TEST(Unscale, LooksAtEveryElement) {
  for (const int64_t n : {1, 15, 64, 100})
    for (int64_t bad = 0; bad < n; bad += n < 20 ? 1 : 7)
      for (const bool explicitly : {false, true}) {
        const Tensor p = zeros({n}).set_requires_grad(), g = ones({n});
        g.set(bad, inf);
        p.set_grad(g);
        optim::SGD sgd({p}, {.lr = 1});
        GradScaler scaler({.init_scale = 4});
        (void)scaler.scale(ones({}));
        if (explicitly) {
          scaler.unscale(sgd);
          for (int64_t i = 0; i < n; ++i) ASSERT_EQ(p.grad().at(i), i == bad ? inf : 0.25);
        }
        EXPECT_FALSE(scaler.step(sgd)) << bad << " of " << n;
      }
}

TEST(Unscale, KeepsTheBitsOfAStepWithoutAScaler) {
  const Tensor x = randn({5, 3}), w = randn({4, 3}).set_requires_grad(),
               b = randn({4}).set_requires_grad();
  const Tensor v = w.detach().clone().set_requires_grad(), c = b.detach().clone();
  c.set_requires_grad();
  optim::Adam adam({w, b}), plain({v, c});
  GradScaler scaler({.init_scale = 1024, .growth_interval = 1});
  for (int i = 0; i < 3; ++i) {
    scaler.scale(sum(linear(x, w, b))).backward();
    sum(linear(x, v, c)).backward();
    scaler.unscale(adam);
    EXPECT_TRUE(scaler.step(adam));
    scaler.update();  // which doubles the scale
    plain.step();
    EXPECT_EQ(bits(w), bits(v));
    EXPECT_EQ(bits(w.grad()), bits(v.grad())) << "the true ones";
    adam.zero_grad();
    plain.zero_grad();
  }
}

// The norm is that of the true gradients, whose powers f32 holds.
TEST(Unscale, KeepsNormsOfHighOrderInRange) {
  const Tensor p = parameter({1, 2, 3});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler scaler({.init_scale = 65536});
  scaler.scale(sum(p * p * 0.5)).backward();
  scaler.unscale(sgd);
  EXPECT_NEAR(optim::clip_grad_norm({p}, 1, {.norm_type = 64}).item(), 3, 1e-5);
  EXPECT_NEAR(p.grad().at(2), 1, 1e-5);
}

// --- state ---

TEST(State, GoesRoundBeforeAndAfterTheFirstLoss) {
  Loop loop({.init_scale = 4, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  loop.run(1);
  loop.run(1);
  loop.run(1);
  loop.run(1);
  const StateDict dict = loop.scaler.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, t] : dict) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"growth_factor", "backoff_factor", "growth_interval",
                                             "scale", "growth_tracker", "hysteresis_tracker",
                                             "consecutive_skips"}));
  for (const bool lazy : {true, false}) {
    Loop other({});
    if (!lazy) other.run(1);
    other.scaler.load_state_dict(dict);
    EXPECT_EQ(other.scaler.scale_value(), 16);
    EXPECT_EQ(other.scaler.growth_tracker(), 1);
    EXPECT_EQ(other.scaler.options().growth_factor, 4);
    EXPECT_EQ(other.scaler.options().backoff_factor, 0.25);
    other.run(1);
    EXPECT_EQ(other.scaler.growth_tracker(), 2);
    other.run(1);
    EXPECT_EQ(other.scaler.scale_value(), 64);
    EXPECT_EQ(other.scaler.inverse_scale().item(), 1 / 64.0);
  }
}

TEST(State, BeginsAnIteration) {
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 0.5});
  GradScaler scaler;
  const StateDict begin = scaler.state_dict();
  scaler.scale(sum(p)).backward();
  EXPECT_TRUE(scaler.step(sgd));
  scaler.load_state_dict(begin);
  sgd.zero_grad();
  scaler.scale(sum(p)).backward();
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_EQ(p.at(0), 0);
}

TEST(State, MayBePyTorchs) {
  const auto number = [](double x, DType dtype) { return full({}, x, dtype); };
  Loop loop({});
  loop.scaler.load_state_dict({{"scale", number(128, f64)},
                               {"growth_factor", number(4, f64)},
                               {"backoff_factor", number(0.25, f64)},
                               {"growth_interval", number(3, i64)},
                               {"_growth_tracker", number(2, i64)}});
  EXPECT_EQ(loop.scaler.scale_value(), 128);
  loop.run(1);
  EXPECT_EQ(loop.scaler.scale_value(), 512);
}

TEST(State, KeepsTheScalesOfAllLosses) {
  GradScaler scaler({.init_scale = 8});
  (void)scaler.scale(ones({}), 3);
  GradScaler other;
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.scale_value(3), 8);
  EXPECT_EQ(scaler.state_dict().back().first, "consecutive_skips.3");
}

TEST(State, GoesOnInTheMiddleOfAStreak) {
  const ScalerOptions options{.hysteresis = 3, .max_consecutive_skips = 4};
  for (const int cut : {-1, 1, 2}) {
    auto scaler = std::make_unique<GradScaler>(options);
    const Tensor p = ones({4}).set_requires_grad();
    optim::SGD opt({p}, {.lr = 1e-3});
    const auto step = [&] {
      opt.zero_grad();
      scaler->scale(sum(p) * 1e35).backward();
      (void)scaler->step(opt);
      scaler->update();
      hear(*scaler);
    };
    for (int i = 0; i < 3; ++i) {
      step();
      if (i + 1 != cut) continue;
      const StateDict state = scaler->state_dict();
      scaler = std::make_unique<GradScaler>(options);
      scaler->load_state_dict(state);
    }
    EXPECT_EQ(scaler->scale_value(), 32768) << "after three in a row, cut after " << cut;
    EXPECT_THROW(step(), ScaleCollapse) << cut;
  }
  GradScaler old;  // older files have no streaks
  StateDict state = old.state_dict();
  std::erase_if(state, [](const auto& entry) { return entry.first == "consecutive_skips"; });
  old.load_state_dict(state);
}

TEST(State, StaysWithinTheLimitsOfWhoLoads) {
  const GradScaler from;
  GradScaler low({.init_scale = 512, .max_scale = 512}),
      high({.init_scale = 0x1p20, .min_scale = 0x1p17});
  low.load_state_dict(from.state_dict());
  high.load_state_dict(from.state_dict());
  EXPECT_EQ(low.scale_value(), 512);
  EXPECT_EQ(high.scale_value(), 0x1p17);
}

TEST(State, RefusesWhatDoesNotFit) {
  GradScaler scaler;
  EXPECT_ERROR(scaler.load_state_dict({}),
               "load_state_dict: the state is empty: a disabled scaler saved it");
  const auto with = [&](const std::string& name, double value) {
    StateDict d = scaler.state_dict();
    for (auto& [n, t] : d)
      if (n == name) t = from({value}, {}, f64);
    return d;
  };
  GradScaler two(f16, {.init_scale = 8});
  two.scale(ones({}), 1);
  two.load_state_dict(GradScaler(f16, {.init_scale = 32}).state_dict());
  EXPECT_EQ(two.state_dict().size(), scaler.state_dict().size()) << "loss 1 begins anew";
  StateDict missing = scaler.state_dict(), extra = missing;
  std::erase_if(missing, [](const auto& entry) { return entry.first == "growth_tracker"; });
  extra.emplace_back("momentum", ones({}));
  EXPECT_ERROR(scaler.load_state_dict(missing), "growth_tracker is missing");
  EXPECT_ERROR(scaler.load_state_dict(extra), "unexpected key 'momentum'");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_factor", 0.5)),
               "growth_factor must be finite and > 1, got 0.5");
  EXPECT_ERROR(scaler.load_state_dict(with("scale", NAN)),
               "the scale of loss 0 must be positive and finite in f32, got nan");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_tracker", -1)),
               "growth_tracker must be a whole number from 0 to 1073741824, got -1");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_tracker", 1e10)),
               "growth_tracker must be a whole number from 0 to 1073741824, got 10000000000");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_interval", NAN)),
               "growth_interval must be a whole number from 0 to 9007199254740992, got nan");
  EXPECT_EQ(scaler.scale_value(), 65536) << "and nothing changed";
  EXPECT_EQ(scaler.options().growth_factor, 2);
  GradScaler off(bf16);
  off.load_state_dict(missing);
}

}  // namespace scaler_test
}  // namespace mixtape::amp
