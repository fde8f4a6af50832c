// GradScaler: a skipped step changes nothing and has a reason; a collapse has a diagnosis.

#include "core/dlpack.h"
#include "core/dlpack_abi.h"
#include "core/stream.h"
#include "core/warn.h"

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace scaler_skip_test {

TEST(Skip, LeavesEveryBitAsItIs) {
  for (const auto& [name, make] : optim::problems)
    for (const DType dtype : {f32, f16})
      for (const bool unscaled : {false, true})
        for (const bool clipped : {false, true}) {
          const auto params = optim::problem(dtype);
          const auto opt = make(params, {.multi_precision = dtype == f16});
          GradScaler scaler({.init_scale = 16});
          uint32_t t = 0;
          const auto step = [&](double factor) {
            (void)scaler.scale(ones({}));
            optim::set_grads(params, ++t, dtype, 16);
            const Tensor g = params[1].grad();
            g.set(2, g.at(2) * factor);
            if (unscaled) scaler.unscale(*opt);
            const StepResult r =
                scaler.step(*opt, clipped ? StepOptions{.clip_norm = 1} : StepOptions{});
            scaler.update(16);
            return r;
          };
          for (int i = 0; i < 2; ++i) EXPECT_TRUE(step(1)) << name;
          const std::string before = optim::bits(*opt);
          for (const double bad : {inf, -inf, std::nan("")}) {
            const StepResult r = step(bad);
            EXPECT_EQ(r.state(), State::Skipped) << name;
            EXPECT_EQ(r.cause(), Cause::Gradients) << name;
            EXPECT_TRUE(optim::bits(*opt) == before) << name;
          }
          EXPECT_TRUE(step(1)) << name;
          EXPECT_FALSE(optim::bits(*opt) == before) << name;
        }
}

// Gradients change after the product that made them, and so does their factor.
TEST(Skip, NoticesWhatBecameOfTheGradientOfAWeight) {
  // (Weights of zero, and a small rate: losses stay finite where gradients do not.)
  const Tensor w = zeros({3, 2}).set_requires_grad(), b = zeros({3}).set_requires_grad();
  optim::SGD sgd({w, b}, {.lr = 1e-4});
  GradScaler scaler({.init_scale = 16});
  const auto backward = [&](double size) {
    scaler.scale(sum(linear(full({4, 2}, size), w, b))).backward();
  };
  const auto step = [&](double next_scale) {
    const Cause cause = scaler.step(sgd).cause();
    scaler.update(next_scale);
    sgd.zero_grad();
    return cause;
  };
  backward(1);
  EXPECT_EQ(step(16), Cause::None);
  backward(1e38);  // times 16 it overflows
  EXPECT_EQ(step(16), Cause::Gradients);
  backward(1);
  w.grad().set(2, inf);  // by hand
  EXPECT_EQ(step(16), Cause::Gradients);
  backward(1);
  backward(1e38);  // in the second pass only
  EXPECT_EQ(step(0x1p-10), Cause::Gradients);
  backward(1e38);  // a thousandth of its gradient is finite, the gradient is not
  EXPECT_EQ(step(16), Cause::Gradients);
  backward(1);
  EXPECT_EQ(step(16), Cause::None);
}

// Another library may write without bumping the version.
TEST(Skip, TrustsNoGradientThatWasLent) {
  if (!DefaultDevice::current().is_host()) GTEST_SKIP() << "the host writes";
  const Tensor w = zeros({3, 2}).set_requires_grad(), b = zeros({3}).set_requires_grad();
  optim::SGD sgd({w, b}, {.lr = 1e-4});
  GradScaler scaler({.init_scale = 16});
  scaler.scale(sum(linear(ones({4, 2}), w, b))).backward();
  DLManagedTensor* const lent = to_dlpack(w.grad());
  static_cast<float*>(lent->dl_tensor.data)[1] = float(inf);
  lent->deleter(lent);
  EXPECT_EQ(scaler.step(sgd).cause(), Cause::Gradients);
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
  optim::Cosine schedule(loop.sgd, {.total_steps = 20});
  const int n = 3 + int(optim::Schedule::lag);  // updates until a skipped step is taken back
  for (int i = 0; i < n; ++i) schedule.step(loop.run(i == 1 ? inf : 1));
  EXPECT_EQ(schedule.steps(), n - 1);
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

TEST(Skip, ForALossMadeOfGradientsIsForThose) {
  Loop loop({.init_scale = 64});
  (void)loop.scaler.scale(sum(loop.p));
  (void)loop.scaler.inverse_scale();
  EXPECT_EQ(loop.run(1, inf).cause(), Cause::Gradients);
  EXPECT_EQ(loop.scaler.scale_value(), 32);
  EXPECT_EQ(loop.run(1, inf).cause(), Cause::Loss) << "none were asked for in this iteration";
  EXPECT_EQ(loop.scaler.scale_value(), 32);
}

TEST(Skip, ALossWithoutHistoryIsIgnored) {
  Loop loop({});
  (void)loop.scaler.scale(full({}, NAN));
  EXPECT_TRUE(loop.run(1));
}

TEST(Collapse, AfterTooManySkips) {
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
  EXPECT_NE(text.find("last loss: 41.9"), std::string::npos) << text;
  EXPECT_NE(text.find("recent scales: 32 32 16 8 4"), std::string::npos) << text;
  EXPECT_NE(text.find("sgd parameter 0: fc.weight"), std::string::npos) << text;
  EXPECT_TRUE(loop.run(1)) << "a caller that catches it may go on";
}

TEST(Collapse, IsForetoldOnce) {
  for (const bool of_loss : {true, false}) {
    std::vector<std::string> told;
    const OnWarning all([&](const std::string& text) { told.push_back(text); });
    Loop loop({});
    const auto skip = [&](int times) {
      for (int i = 0; i < times; ++i) of_loss ? loop.run(1, NAN) : loop.run(inf);
    };
    skip(49);
    EXPECT_TRUE(loop.run(1));
    skip(49);
    EXPECT_TRUE(told.empty()) << "each time a step came between";
    skip(30);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_NE(told[0].find("50 steps in a row were skipped"), std::string::npos) << told[0];
    EXPECT_NE(told[0].find(of_loss ? "no scale can help" : "sgd parameter 0"), std::string::npos);
  }
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
  EXPECT_EQ(tiny.scaler.scale_value(), std::numeric_limits<float>::min()) << "never zero";
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
  const int64_t waits = synchronizations();
  auto o = scaler.last_overflow();
  EXPECT_LE(synchronizations() - waits, 1) << "one copy, not one for each parameter";
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
  EXPECT_ERROR(scaler.name_parameters(sgd, {"a"}), "3 parameters need as many names, got 1");
}

}  // namespace scaler_skip_test
}  // namespace mixtape::amp
