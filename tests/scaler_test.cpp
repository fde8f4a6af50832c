// GradScaler: its state machine, its arithmetic, and that a skipped step touches nothing.

#include "amp/scaler.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/format.h"
#include "optim/optim.h"

namespace mixtape::amp {
namespace {

using Cause = StepResult::Cause;
using State = StepResult::State;
constexpr double inf = std::numeric_limits<double>::infinity();

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
#define EXPECT_ERROR(statement, text)                            \
  do {                                                           \
    const std::string message = error_of([&] { statement; });    \
    EXPECT_NE(message.find(text), std::string::npos) << message; \
  } while (false)

Tensor parameter(std::initializer_list<double> v, DType t = f32) {
  return from(v, {static_cast<int64_t>(v.size())}, t).set_requires_grad();
}
Tensor values(const Shape& shape, double seed) {
  Tensor t(shape, f32);
  for (int64_t i = 0; i < t.numel(); ++i) t.set(i, std::sin(seed + 0.7 * double(i)));
  return t;
}
std::vector<uint32_t> bits(const Tensor& t) {
  const float* p = t.contiguous().data<float>();
  std::vector<uint32_t> b;
  for (int64_t i = 0; i < t.numel(); ++i) b.push_back(std::bit_cast<uint32_t>(p[i]));
  return b;
}

// One optimizer over one parameter whose gradients a test sets by hand.
struct Loop {
  Tensor p = parameter({1, 2, 3});
  optim::SGD sgd{{p}, {.lr = 0.125}};
  GradScaler scaler;

  explicit Loop(const ScalerOptions& options) : scaler(options) {}
  StepResult run(double grad, double loss = 1) {
    scaler.scale(sum(p) * loss).backward();
    p.set_grad(full({3}, grad));
    const StepResult result = scaler.step(sgd);
    scaler.update();
    return result;
  }
};

// --- construction ---

TEST(Options, AreChecked) {
  const auto made = [](const ScalerOptions& o) { return [o] { GradScaler s(o); }; };
  EXPECT_ERROR(made({.init_scale = 0})(), "init_scale is 0, not a positive number that f32 holds");
  EXPECT_ERROR(made({.init_scale = -2})(), "init_scale is -2");
  EXPECT_ERROR(made({.init_scale = inf})(), "init_scale is inf");
  EXPECT_ERROR(made({.init_scale = NAN})(), "init_scale is nan");
  EXPECT_ERROR(made({.init_scale = 1e39})(), "init_scale is 1e+39");
  EXPECT_ERROR(made({.growth_factor = 1})(), "growth_factor is 1, not above 1");
  EXPECT_ERROR(made({.growth_factor = inf})(), "growth_factor is inf");
  EXPECT_ERROR(made({.backoff_factor = 1})(), "backoff_factor is 1, not between 0 and 1");
  EXPECT_ERROR(made({.backoff_factor = 0})(), "backoff_factor is 0");
  EXPECT_ERROR(made({.growth_interval = 0})(), "growth_interval is 0, not at least 1");
  EXPECT_ERROR(made({.min_scale = 1e6})(),
               "min_scale is 1000000, not between 0 and the initial scale of 65536");
  EXPECT_ERROR(made({.max_scale = 1024})(), "max_scale is 1024, below the initial scale of 65536");
  EXPECT_ERROR(made({.hysteresis = 0})(), "hysteresis is 0, not at least 1");
  EXPECT_ERROR(made({.max_consecutive_skips = -1})(), "max_consecutive_skips is -1");
  EXPECT_EQ(error_of(made({.growth_factor = 1, .enabled = false})), "no error") << "no effect";
}

TEST(Options, OnlyF16IsScaled) {
  EXPECT_TRUE(GradScaler(f16).enabled());
  EXPECT_FALSE(GradScaler(bf16).enabled());
  EXPECT_FALSE(GradScaler(f32, {.init_scale = 4}).enabled());
  EXPECT_FALSE(GradScaler(f16, {.enabled = false}).enabled()) << "R6";
}

// --- the scale ---

TEST(Scale, MovesAsTheVectorsSay) {
  Loop loop({.init_scale = 4, .growth_interval = 2});
  std::vector<double> scales, growth;
  for (const bool found : {false, false, true, false, false}) {
    EXPECT_EQ(bool(loop.run(found ? inf : 1)), !found);
    scales.push_back(loop.scaler.scale_value());
    growth.push_back(double(loop.scaler.growth_tracker()));
  }
  EXPECT_EQ(scales, (std::vector<double>{4, 8, 4, 4, 8}));
  EXPECT_EQ(growth, (std::vector<double>{1, 0, 0, 1, 0}));
  EXPECT_EQ(loop.scaler.counters().updates, 5);
  EXPECT_EQ(loop.scaler.counters().skipped, 1);
}

TEST(Scale, StopsGrowingWhereF32EndsOrTheUserSays) {  // R5
  Loop loop({.init_scale = 3e38, .growth_interval = 1});
  for (int i = 0; i < 3; ++i) loop.run(0);
  EXPECT_EQ(loop.scaler.scale_value(), double(3e38f));
  Loop limited({.init_scale = 4, .growth_interval = 1, .max_scale = 16});
  for (int i = 0; i < 5; ++i) limited.run(1);
  EXPECT_EQ(limited.scaler.scale_value(), 16);
}

TEST(Scale, GrowsByTheFactorAfterTheInterval) {  // R3
  Loop loop({.init_scale = 4096, .growth_interval = 10});
  for (int i = 0; i < 39; ++i) loop.run(1);
  EXPECT_EQ(loop.scaler.scale_value(), 4096 * 8);
}

TEST(Scale, InverseOfAPowerOfTwoIsExact) {
  GradScaler scaler;
  EXPECT_ERROR((void)scaler.inverse_scale(), "inverse_scale: loss 0 was never scaled");
  (void)scaler.scale(ones({}));
  EXPECT_EQ(scaler.inverse_scale().item(), 0x1p-16);
  scaler.update(3);
  EXPECT_EQ(scaler.inverse_scale().item(), double(1 / 3.0f));
}

TEST(Scale, SettlesAfterExactlyTheSkipsItTakes) {  // R2
  Loop loop({});
  int skips = 0;
  for (int i = 0; i < 20; ++i) skips += !loop.run(loop.scaler.scale_value() > 3000 ? inf : 1);
  EXPECT_EQ(skips, 5);
  EXPECT_EQ(loop.scaler.scale_value(), 2048);
}

TEST(Scale, OfAPlainSumOverflowsOnceAndHalves) {  // R9
  const Tensor a = values({4, 4}, 1).set_requires_grad(),
               b = from(std::vector<double>(16, 0.25), {4, 4});
  optim::SGD sgd({a}, {.lr = 0.1});
  GradScaler scaler;
  std::vector<bool> stepped;
  for (int i = 0; i < 2; ++i) {
    Tensor loss;
    {
      const Autocast on({.low = f16});
      const Tensor h = matmul(a, b);  // its gradient is 65536: more than f16 holds
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

TEST(Scale, WidensTheLossAndStaysOnTheTape) {
  GradScaler scaler;
  const Tensor x = parameter({3}, f16);
  const Tensor scaled = scaler.scale(sum(x.reshape({1, 1})));
  EXPECT_EQ(scaled.dtype(), f32);
  EXPECT_EQ(scaled.item(), 3 * 65536.0) << "more than f16 holds";
  EXPECT_EQ(scaler.scale(parameter({2}, f64)).dtype(), f64);
  const std::vector<Tensor> both = scaler.scale({ones({}), ones({2})});
  EXPECT_EQ(both[1].shape(), Shape{2});
  EXPECT_EQ(both[1].at(1), 65536);
  EXPECT_ERROR((void)scaler.scale(from({1}, {}, i64)), "scale: a loss of i64 elements");
  const Autocast on({.low = f16, .overrides = {{"mul", Precision::Low}}});
  EXPECT_EQ(scaler.scale(ones({})).dtype(), f32) << "no policy acts on it";
}

TEST(Scale, CanBeSet) {
  Loop loop({.init_scale = 4, .growth_interval = 3});
  loop.run(1);
  loop.scaler.update(1024);
  EXPECT_EQ(loop.scaler.scale_value(), 1024);
  EXPECT_EQ(loop.scaler.growth_tracker(), 1);
  EXPECT_ERROR(loop.scaler.update(0), "update: new_scale is 0");
  EXPECT_ERROR(loop.scaler.update(inf), "new_scale is inf");
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
  EXPECT_ERROR(scaler.unscale(sgd),
               "unscale: the gradients of sgd were unscaled already since the last update()");
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_ERROR(scaler.step(sgd), "step: sgd has already stepped since the last update()");
  EXPECT_ERROR(scaler.unscale(sgd), "unscale: sgd has already stepped since the last update()");
  scaler.update();
  EXPECT_TRUE(scaler.step(sgd)) << "update() clears all";
  EXPECT_ERROR(scaler.step(sgd, {.clip_norm = -1}), "step: clip_norm is -1");
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
  optim::SGD plain({p}, {.lr = 0.5}), masters({p}, {.lr = 0.5, .multi_precision = true});
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

TEST(Unscale, ChecksWhatComesOut) {  // R8
  for (const bool explicitly : {false, true}) {
    const Tensor p = parameter({1});
    optim::SGD sgd({p}, {.lr = 1});
    GradScaler scaler({.init_scale = 0x1p-100});
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, 1e30));  // finite, but 1e30 * 2^100 is not
    if (explicitly) scaler.unscale(sgd);
    EXPECT_EQ(scaler.step(sgd).cause(), Cause::Gradients);
    EXPECT_EQ(p.at(0), 1);
  }
}

// --- skipping ---

struct Made {
  std::string name;
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<Tensor>)> make;
};
const std::vector<Made>& optimizers() {
  using P = std::vector<Tensor>;
  static const std::vector<Made> all = {
      {"momentum",
       [](P p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1});
       }},
      {"nesterov",
       [](P p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"adam",
       [](P p) {
         return std::make_unique<optim::Adam>(p,
                                              optim::AdamOptions{.lr = 0.1, .weight_decay = 0.1});
       }},
      {"adamw",
       [](P p) {
         return std::make_unique<optim::AdamW>(p,
                                               optim::AdamWOptions{.lr = 0.1, .weight_decay = 0.1});
       }},
  };
  return all;
}
std::vector<std::vector<double>> state(const optim::Optimizer& o) {
  std::vector<std::vector<double>> all;
  for (const auto& [name, t] : o.state_dict()) all.push_back(to_vector(t));
  return all;
}

TEST(Skip, LeavesEveryBitAsItIs) {  // R1
  for (const Made& m : optimizers())
    for (const double bad : {inf, -inf, std::nan("")})
      for (const bool unscaled : {false, true})
        for (const bool clipped : {false, true}) {
          const Tensor p = parameter({1, -2, 3}), q = parameter({4});
          const auto opt = m.make({p, q});
          GradScaler scaler;
          const auto step = [&](double g) {
            (void)scaler.scale(ones({}));
            p.set_grad(from({65536, g, 0}, {3}));
            q.set_grad(full({1}, 65536));
            if (unscaled) scaler.unscale(*opt);
            const StepResult r =
                scaler.step(*opt, clipped ? StepOptions{.clip_norm = 1} : StepOptions{});
            scaler.update(65536);
            return r;
          };
          EXPECT_TRUE(step(1));
          const auto before_p = bits(p), before_q = bits(q);
          const auto before = state(*opt);
          const StepResult r = step(bad);
          EXPECT_EQ(r.state(), State::Skipped);
          EXPECT_EQ(r.cause(), Cause::Gradients);
          EXPECT_EQ(bits(p), before_p) << m.name;
          EXPECT_EQ(bits(q), before_q) << m.name;
          EXPECT_EQ(state(*opt), before) << m.name;
          EXPECT_TRUE(step(1));
          EXPECT_NE(bits(p), before_p);
        }
}

TEST(Skip, DoesNotCountAsAStepOfAdam) {
  const Tensor p = parameter({1});
  optim::Adam adam({p}, {.lr = 0.1});
  GradScaler scaler;
  for (const double g : {inf, 1.0, 1.0}) {
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, g));
    (void)scaler.step(adam);
    scaler.update();
  }
  double steps = 0;
  for (const auto& [name, t] : adam.state_dict())
    if (name.ends_with("step") || name.ends_with("steps")) steps = t.item();
  EXPECT_EQ(steps, 2);
}

TEST(Skip, ResultOutlivesTheUpdate) {
  Loop loop({});
  const StepResult bad = loop.run(inf), good = loop.run(1);
  EXPECT_EQ(bad.state(), State::Skipped);
  EXPECT_EQ(good.state(), State::Stepped);
  EXPECT_EQ(good.cause(), Cause::None);
  if (bad) FAIL();
}

TEST(Skip, KeepsASchedule) {
  Loop loop({});
  optim::Cosine schedule(loop.sgd, {.total_steps = 10});
  for (const double g : {1.0, inf, 1.0}) schedule.step(loop.run(g));
  EXPECT_EQ(schedule.steps(), 2);
}

TEST(Skip, ForALossThatIsNotFiniteKeepsTheScale) {
  Loop loop({.init_scale = 64, .growth_interval = 2});
  loop.run(1);
  for (const double loss : {inf, std::nan("")}) {
    const StepResult r = loop.run(loss, loss);
    EXPECT_EQ(r.state(), State::Skipped);
    EXPECT_EQ(r.cause(), Cause::Loss);
  }
  EXPECT_EQ(loop.run(1, inf).cause(), Cause::Loss) << "whatever the gradients are";
  EXPECT_EQ(loop.scaler.scale_value(), 64);
  EXPECT_EQ(loop.scaler.growth_tracker(), 1);
  EXPECT_EQ(to_vector(loop.p)[0], 1 - 0.125 / 64);
  EXPECT_TRUE(loop.run(1)) << "and is over with the iteration";
}

TEST(Skip, ALossThatOnlyOverflowsWhenScaledBacksOff) {
  Loop loop({});
  EXPECT_EQ(loop.run(inf, 1e36).cause(), Cause::Gradients);
  EXPECT_EQ(loop.scaler.scale_value(), 32768);
}

TEST(Skip, ALossWithoutHistoryIsNobodysBusiness) {
  Loop loop({});
  (void)loop.scaler.scale(full({}, NAN));
  EXPECT_TRUE(loop.run(1));
}

TEST(Collapse, AfterTooManySkips) {  // R10: never steps with what is not finite
  Loop loop({.init_scale = 64, .max_consecutive_skips = 3});
  loop.scaler.name_parameters(loop.sgd, {"fc.weight"});
  loop.run(inf);
  loop.run(1);
  loop.run(inf);
  loop.run(inf, 7);
  std::string text;
  try {
    loop.run(inf, 7);
  } catch (const ScaleCollapse& e) {
    text = e.what();
  }
  EXPECT_NE(text.find("3 steps in a row were skipped"), std::string::npos) << text;
  EXPECT_NE(text.find("last loss: 42"), std::string::npos) << text;
  EXPECT_NE(text.find("recent scales: 32 32 16 8 4"), std::string::npos) << text;
  EXPECT_NE(text.find("sgd parameter 0: fc.weight"), std::string::npos) << text;
  EXPECT_TRUE(loop.run(1)) << "whoever catches it may go on";
}

TEST(Collapse, SaysWhenTheLossIsToBlame) {
  Loop loop({.max_consecutive_skips = 1});
  EXPECT_ERROR(loop.run(1, NAN),
               "last loss: nan: it is the forward pass that fails, and no scale can help");
}

TEST(Collapse, BelowTheMinimum) {
  Loop loop({.init_scale = 4, .min_scale = 2});
  loop.run(inf);
  EXPECT_THROW(loop.run(inf), ScaleCollapse);
  EXPECT_ERROR(loop.run(inf), "the loss scale would fall below 2");
  EXPECT_EQ(loop.scaler.scale_value(), 2);
  Loop tiny({.init_scale = std::numeric_limits<float>::min()});
  EXPECT_THROW(tiny.run(inf), ScaleCollapse);
  EXPECT_EQ(tiny.scaler.scale_value(), std::numeric_limits<float>::min()) << "never zero";  // R5
}

TEST(Overflow, IsAttributedToParameters) {
  const Tensor p = parameter({1}), q = parameter({2, 3}), none = parameter({4});
  optim::SGD sgd({p, none, q}, {.lr = 0.1});
  GradScaler scaler;
  const auto step = [&](double gp, double gq) {
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, gp));
    q.set_grad(from({1, gq}, {2}));
    (void)scaler.step(sgd);
    scaler.update();
  };
  step(1, 1);
  EXPECT_TRUE(scaler.last_overflow().empty());
  step(1, NAN);
  step(1, 1);
  auto o = scaler.last_overflow();
  ASSERT_EQ(o.size(), 1u);
  EXPECT_EQ(o[0].parameter, 2u);
  EXPECT_EQ(o[0].optimizer, "sgd");
  EXPECT_EQ(o[0].name, "");
  scaler.name_parameters(sgd, {"a", "b", "c"});
  step(inf, inf);
  o = scaler.last_overflow();
  ASSERT_EQ(o.size(), 2u);
  EXPECT_EQ(o[0].name, "a");
  EXPECT_EQ(o[1].name, "c");
  EXPECT_ERROR(scaler.name_parameters(sgd, {"a"}), "1 names for 3 parameters");
}

// --- clipping ---

TEST(Clip, FusedEqualsClippingBetweenUnscaleAndStep) {
  for (const Made& m : optimizers())
    for (const double norm : {0.5, 1e6}) {
      std::vector<std::vector<double>> results, norms;
      for (const int how : {0, 1, 2}) {
        const Tensor p = values({7, 5}, 1).set_requires_grad(),
                     q = values({9}, 2).set_requires_grad();
        const auto opt = m.make({p, q});
        GradScaler scaler;
        for (int i = 0; i < 3; ++i) {
          scaler.scale(sum(p * p * p) + sum(q * q)).backward();
          Tensor total;
          if (how == 0) {
            scaler.unscale(*opt);
            total = optim::clip_grad_norm({p, q}, norm);
            EXPECT_TRUE(scaler.step(*opt));
          } else {
            if (how == 2) scaler.unscale(*opt);
            const StepResult r = scaler.step(*opt, {.clip_norm = norm});
            EXPECT_TRUE(r);
            total = r.norm();
          }
          if (i == 0) norms.push_back(to_vector(total));
          scaler.update();
          opt->zero_grad();
        }
        results.push_back(to_vector(p));
      }
      for (size_t i = 0; i < results[0].size(); ++i) {
        EXPECT_NEAR(results[0][i], results[1][i], 2e-6) << m.name;
        EXPECT_NEAR(results[0][i], results[2][i], 2e-6) << m.name;
      }
      EXPECT_NEAR(norms[0][0], norms[1][0], 1e-5);
    }
}

TEST(Clip, WorksWithoutScaling) {
  const Tensor p = parameter({0});
  optim::SGD sgd({p}, {.lr = 1});
  GradScaler off(bf16);
  p.set_grad(full({1}, 10));
  const StepResult r = off.step(sgd, {.clip_norm = 1});
  EXPECT_TRUE(r);
  EXPECT_EQ(r.norm().item(), 10);
  EXPECT_NEAR(p.at(0), -1, 1e-6);
}

// --- off ---

TEST(Disabled, IsTheSameCodeAndTheSameBits) {
  std::vector<std::vector<uint32_t>> results;
  for (const bool with : {false, true}) {
    const Tensor w = values({4, 4}, 1).set_requires_grad(), x = values({8, 4}, 2);
    optim::Adam adam({w}, {.lr = 0.01});
    GradScaler scaler(bf16, {.init_scale = 7});
    for (int i = 0; i < 5; ++i) {
      const Tensor loss = mean(square(linear(x, w)));
      if (with) {
        EXPECT_TRUE(scaler.scale(loss).is_same(loss));
        scaler.scale(loss).backward();
        scaler.unscale(adam);
        EXPECT_TRUE(scaler.step(adam));
        scaler.update();
      } else {
        loss.backward();
        adam.step();
      }
      adam.zero_grad();
    }
    EXPECT_EQ(scaler.scale_value(), 1);
    EXPECT_TRUE(scaler.state_dict().empty());
    results.push_back(bits(w));
  }
  EXPECT_EQ(results[0], results[1]);
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 0.1});
  EXPECT_EQ(GradScaler(bf16).step(sgd).state(), State::NoGrads);
}

// --- several ---

TEST(Several, OptimizersSkipOnTheirOwnAndShareTheScale) {  // also R7: any flag that is not zero
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 0.5}), b({q}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 8});
  const auto step = [&](double gp, double gq) {
    (void)scaler.scale(ones({}));
    p.set_grad(full({1}, gp));
    q.set_grad(full({1}, gq));
    const bool sa = bool(scaler.step(a)), sb = bool(scaler.step(b));
    scaler.update();
    return std::pair(sa, sb);
  };
  EXPECT_EQ(step(inf, 8), std::pair(false, true));
  EXPECT_EQ(scaler.scale_value(), 4);
  EXPECT_EQ(p.at(0), 1);
  EXPECT_EQ(q.at(0), 0.5);
  EXPECT_EQ(step(inf, NAN), std::pair(false, false));
  EXPECT_EQ(scaler.scale_value(), 2) << "one update, one backoff";
  EXPECT_EQ(step(1, 1), std::pair(true, true));
}

TEST(Several, FlagsAboveOneSkipToo) {  // R7
  const Tensor p = parameter({1});
  optim::AdamW adam({p}, {.lr = 0.5});
  p.set_grad(ones({1}));
  adam.step({.skip = full({}, 2)});
  EXPECT_EQ(p.at(0), 1);
}

TEST(Several, LossesMayHaveScalesOfTheirOwn) {
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 0.5}), b({q}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 8, .growth_interval = 1});
  scaler.scale(sum(p)).backward();
  EXPECT_ERROR(scaler.step(b, {.loss = 1}), "loss 1 was never scaled");
  scaler.scale(sum(q), 1).backward();
  q.set_grad(full({1}, inf));
  EXPECT_TRUE(scaler.step(a));
  scaler.unscale(b, 1);
  EXPECT_ERROR(scaler.step(b, {.loss = 0}),
               "the gradients of sgd were unscaled as those of loss 1, not 0");
  EXPECT_FALSE(scaler.step(b));
  scaler.update();
  EXPECT_EQ(scaler.scale_value(0), 16);
  EXPECT_EQ(scaler.scale_value(1), 4);
  EXPECT_EQ(p.at(0), 0.5);
  EXPECT_EQ(q.at(0), 1);
}

TEST(Several, AGan) {
  const Tensor g = values({4, 4}, 1).set_requires_grad(), d = values({1, 4}, 2).set_requires_grad();
  const Tensor z = values({8, 4}, 3), real = values({8, 4}, 4);
  optim::Adam opt_g({g}, {.lr = 0.01}), opt_d({d}, {.lr = 0.01});
  GradScaler scaler({.init_scale = 1024});
  const auto before_g = bits(g), before_d = bits(d);
  for (int i = 0; i < 3; ++i) {
    Tensor loss_d, loss_g;
    {
      const Autocast on({.low = f16});
      const Tensor fake = tanh(linear(z, g));
      loss_d = mean(softplus(linear(detach(fake), d))) + mean(softplus(-linear(real, d)));
      loss_g = mean(softplus(-linear(fake, d)));
    }
    scaler.scale(loss_d).backward();
    EXPECT_TRUE(scaler.step(opt_d));
    opt_g.zero_grad();
    scaler.scale(loss_g).backward();
    EXPECT_TRUE(scaler.step(opt_g));
    scaler.update();
    opt_d.zero_grad();
  }
  EXPECT_NE(bits(g), before_g);
  EXPECT_NE(bits(d), before_d);
}

TEST(Several, AGradientPenalty) {
  const Tensor x = values({8, 4}, 3);
  std::vector<std::vector<double>> grads;
  for (const bool scaled : {false, true}) {
    const Tensor w = values({4, 4}, 1).set_requires_grad();
    optim::SGD sgd({w}, {.lr = 1});
    GradScaler scaler({.enabled = scaled});
    const Tensor loss = mean(square(tanh(linear(x, w))));
    const Tensor g = grad({scaler.scale(loss)}, {w}, {.create_graph = true})[0] *
                     (scaled ? scaler.inverse_scale() : ones({}));
    scaler.scale(loss + sum(square(g))).backward();
    scaler.unscale(sgd);
    grads.push_back(to_vector(w.grad()));
    EXPECT_TRUE(scaler.step(sgd));
  }
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_NEAR(grads[0][i], grads[1][i], 1e-5);
}

// --- state ---

TEST(State, GoesRoundBeforeAndAfterTheFirstLoss) {
  Loop loop({.init_scale = 4, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  loop.run(1);
  loop.run(1);
  loop.run(1);
  loop.run(1);
  const optim::StateDict dict = loop.scaler.state_dict();
  std::vector<std::string> names;
  for (const auto& [name, t] : dict) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"scale", "growth_factor", "backoff_factor",
                                             "growth_interval", "growth_tracker"}));
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

TEST(State, KeepsTheScalesOfAllLosses) {
  GradScaler scaler({.init_scale = 8});
  (void)scaler.scale(ones({}), 3);
  GradScaler other;
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.scale_value(3), 8);
  EXPECT_EQ(scaler.state_dict().back().first, "growth_tracker.3");
}

TEST(State, RefusesWhatDoesNotFit) {
  GradScaler scaler;
  EXPECT_ERROR(scaler.load_state_dict({}),
               "load_state_dict: the state is empty: it was saved by a disabled scaler");
  const auto with = [&](const std::string& name, double value) {
    optim::StateDict d = scaler.state_dict();
    for (auto& [n, t] : d)
      if (n == name) t = from({value}, {}, f64);
    return d;
  };
  optim::StateDict missing = scaler.state_dict(), extra = missing;
  missing.pop_back();
  extra.emplace_back("momentum", ones({}));
  EXPECT_ERROR(scaler.load_state_dict(missing), "the state has no 'growth_tracker'");
  EXPECT_ERROR(scaler.load_state_dict(extra), "the state has an unknown 'momentum'");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_factor", 0.5)),
               "growth_factor is 0.5, not above 1");
  EXPECT_ERROR(scaler.load_state_dict(with("scale", NAN)), "the scale of loss 0 is nan");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_tracker", -1)),
               "'growth_tracker' is -1, not a count");
  EXPECT_ERROR(scaler.load_state_dict(with("growth_interval", NAN)),
               "'growth_interval' is nan, not a count");
  EXPECT_EQ(scaler.scale_value(), 65536) << "and nothing changed";
  EXPECT_EQ(scaler.options().growth_factor, 2);
  GradScaler off(bf16);
  off.load_state_dict(missing);
}

// --- all together ---

TEST(Training, ReachesTheSameLossInF16) {
  const Tensor x = values({64, 8}, 1), target = reshape(mean(sin(x), {1}), {64, 1});
  std::map<DType, double> last;
  for (const DType low : {f32, f16, bf16}) {
    const Tensor w1 = (values({16, 8}, 2) * 0.4).detach().set_requires_grad(),
                 w2 = (values({1, 16}, 3) * 0.3).detach().set_requires_grad(),
                 b = zeros({16}).set_requires_grad();
    optim::AdamW adam({w1, w2, b}, {.lr = 1e-2});
    GradScaler scaler(low);
    for (int i = 0; i < 150; ++i) {
      adam.zero_grad();
      Tensor loss;
      {
        const Autocast on({.low = low});
        loss = mse_loss(linear(tanh(linear(x, w1, b)), w2), target);
      }
      scaler.scale(loss).backward();
      (void)scaler.step(adam, {.clip_norm = 1});
      scaler.update();
      last[low] = loss.item();
      EXPECT_TRUE(i > 0 || loss.item() > 0.02);
    }
  }
  EXPECT_LT(last[f32], 2e-3);
  EXPECT_NEAR(last[f16], last[f32], 1e-3);
  EXPECT_NEAR(last[bf16], last[f32], 2e-3);
}

}  // namespace
}  // namespace mixtape::amp
