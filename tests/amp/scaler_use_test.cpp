// GradScaler in use: clipping, several optimizers and losses, training.

#include <optional>

#include "core/warn.h"

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace scaler_use_test {

// --- clipping ---

TEST(Clip, FusedEqualsClippingBetweenUnscaleAndStep) {
  for (const auto& [name, make] : optim::problems)
    for (const double norm : {0.5, 1e6}) {
      std::vector<std::vector<double>> results, norms;
      for (const int how : {0, 1, 2}) {
        const Tensor p = waves({7, 5}, 1).set_requires_grad(),
                     q = waves({9, 1}, 2).set_requires_grad();
        const auto opt = make({p, q});
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
        EXPECT_NEAR(results[0][i], results[1][i], 2e-6) << name;
        EXPECT_NEAR(results[0][i], results[2][i], 2e-6) << name;
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
    const Tensor w = waves({4, 4}, 1).set_requires_grad(), x = waves({8, 4}, 2);
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

TEST(Disabled, BFloat16HasNoUseForOptions) {
  GradScaler scaler(bf16, {.init_scale = -1,
                           .growth_factor = 0,
                           .backoff_factor = 7,
                           .growth_interval = 0,
                           .min_scale = 9,
                           .max_scale = 1,
                           .hysteresis = 0,
                           .max_consecutive_skips = 1});
  const Tensor p = parameter({1});
  optim::SGD sgd({p}, {.lr = 1});
  for (const double g : {1.0, inf, inf}) {
    const Tensor loss = sum(p);
    EXPECT_TRUE(scaler.scale(loss).is_same(loss));
    p.set_grad(full({1}, g));
    scaler.unscale(sgd);
    EXPECT_TRUE(scaler.step(sgd)) << "nothing is looked at";
    scaler.update();
    EXPECT_EQ(scaler.scale_value(), 1);
  }
  EXPECT_EQ(p.at(0), -inf);
  EXPECT_TRUE(scaler.last_overflow().empty());
}

// --- several ---

TEST(Several, OptimizersSkipOnTheirOwnAndShareTheScale) {
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

// A GAN: the loss of one network, then of the other.
TEST(Several, OptimizersMayShareAParameter) {
  enum Call { UnscaleA, UnscaleB, StepA, StepB, Clip };
  const auto after = [](std::initializer_list<Call> calls, DType t) {
    const Tensor p = parameter({1}, t), q = parameter({1}, t), r = parameter({1}, t);
    const optim::CommonOptions common{.multi_precision = is_half(t)};
    optim::SGD a({p, q}, {.lr = 1}, common), b({p, r}, {.lr = 1}, common);
    GradScaler scaler({.init_scale = 4});
    for (int i = 0; i < 2; ++i) {  // the second time from gradients of the first
      scaler.scale(sum(p + q + r)).backward();
      for (const Call call : calls) {
        if (call == UnscaleA) scaler.unscale(a);
        if (call == UnscaleB) scaler.unscale(b);
        if (call == StepA || call == StepB) {
          EXPECT_TRUE(scaler.step(call == StepA ? a : b));
        }
        if (call == Clip) optim::clip_grad_norm({p, q}, 1e6);
      }
      scaler.update();
      for (optim::Optimizer* o : std::initializer_list<optim::Optimizer*>{&a, &b})
        o->zero_grad(/*set_to_none=*/false);
    }
    return std::vector<double>{p.at(0), q.at(0), r.at(0)};
  };
  const OnWarning none([](const std::string& text) { ADD_FAILURE() << text; });
  const std::vector<double> right{-3, -1, -1};
  for (const DType t : {f32, f16, f64}) {
    EXPECT_EQ(after({StepA, StepB}, t), right) << name(t);
    EXPECT_EQ(after({UnscaleA, StepA, StepB}, t), right) << name(t);
    EXPECT_EQ(after({UnscaleA, UnscaleB, StepA, StepB}, t), right) << name(t);
    EXPECT_EQ(after({UnscaleB, UnscaleA, StepA, StepB}, t), right) << name(t);
    EXPECT_EQ(after({UnscaleA, Clip, StepA, StepB}, t), right) << name(t);
    EXPECT_EQ(after({UnscaleA, Clip, UnscaleB, StepB, StepA}, t), right) << name(t);
    EXPECT_EQ(after({StepA, UnscaleB, StepB}, t), right) << name(t);
  }
}

// As in a GAN, where the second loss is computed after the first step.
TEST(Several, LossesBetweenStepsAreUnscaledAlsoForASharedParameter) {
  for (const bool to_none : {true, false}) {
    const Tensor p = parameter({1}), q = parameter({1});
    optim::SGD a({p}, {.lr = 1}), b({p, q}, {.lr = 1});
    GradScaler scaler({.init_scale = 4});
    scaler.scale(sum(p)).backward();
    scaler.unscale(a);
    EXPECT_TRUE(scaler.step(a));
    b.zero_grad(to_none);
    scaler.scale(sum(p + q)).backward();
    EXPECT_TRUE(scaler.step(b));
    EXPECT_EQ(p.at(0), -1);
    EXPECT_EQ(q.at(0), 0);
  }
}

TEST(Several, OptimizersOfAnOverflowedParameterBothSkip) {
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 1}), b({p, q}, {.lr = 1});
  GradScaler scaler({.init_scale = 4});
  scaler.scale(sum(p * inf + q)).backward();
  scaler.unscale(a);
  EXPECT_FALSE(scaler.step(a));
  EXPECT_FALSE(scaler.step(b));
  EXPECT_EQ(p.at(0) + q.at(0), 2);
}

TEST(Several, OptimizersSkipForTheLossesBeforeTheirStep) {
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 0.5}), b({q}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 8});
  const auto step = [&](double lp, double lq) {
    (void)scaler.scale(sum(p) * lp);
    p.set_grad(full({1}, 1));
    const auto of_a = scaler.step(a).cause();
    (void)scaler.scale(sum(q) * lq);
    q.set_grad(full({1}, 1));
    const auto of_b = scaler.step(b).cause();
    scaler.update();
    return std::pair(of_a, of_b);
  };
  using enum StepResult::Cause;
  EXPECT_EQ(step(inf, 1), std::pair(Loss, None));
  EXPECT_EQ(step(1, inf), std::pair(None, Loss));
  EXPECT_EQ(step(1, 1), std::pair(None, None));
  EXPECT_EQ(scaler.scale_value(), 8);
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
  const Tensor g = waves({4, 4}, 1).set_requires_grad(), d = waves({1, 4}, 2).set_requires_grad();
  const Tensor z = waves({8, 4}, 3), real = waves({8, 4}, 4);
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
  const Tensor x = waves({8, 4}, 3);
  for (const DType low : {f32, f16}) {
    std::vector<std::vector<double>> grads;
    for (const bool scaled : {false, true}) {
      const Tensor w = waves({4, 4}, 1).set_requires_grad();
      optim::SGD sgd({w}, {.lr = 1});
      GradScaler scaler({.init_scale = 1024, .enabled = scaled});
      const auto loss_of = [&] {
        const Autocast on({.low = low});
        return mean(square(tanh(linear(x, w))));
      };
      const Tensor loss = loss_of();
      const Tensor scaled_g = grad({scaler.scale(loss)}, {w}, {.create_graph = true})[0];
      const Tensor g = scaled_g * scaler.inverse_scale();
      scaler.scale(loss + sum(square(g))).backward();
      scaler.unscale(sgd);
      grads.push_back(to_vector(w.grad()));
      EXPECT_TRUE(scaler.step(sgd));
    }
    for (size_t i = 0; i < grads[0].size(); ++i)
      EXPECT_NEAR(grads[0][i], grads[1][i], low == f16 ? 1e-3 : 1e-5);
  }
}

TEST(Several, AGradientPenaltyThatOverflowsFindsItsScale) {
  const Tensor x = waves({8, 4}, 3), w = waves({4, 4}, 1).set_requires_grad();
  optim::SGD sgd({w}, {.lr = 0.1});
  GradScaler scaler;  // its scale is infinite in f16
  bool stepped = false;
  for (int i = 0; i < 5; ++i) {
    sgd.zero_grad();
    Tensor loss;
    {
      const Autocast on({.low = f16});
      loss = sum(tanh(linear(x, w)));
    }
    const Tensor g = grad({scaler.scale(loss)}, {w}, {.create_graph = true})[0];
    scaler.scale(loss + sum(square(g * scaler.inverse_scale()))).backward();
    stepped = bool(scaler.step(sgd));
    scaler.update();
  }
  EXPECT_TRUE(stepped) << scaler.scale_value();
}

TEST(Several, BackwardsAddUpToOneStep) {
  const Tensor x = waves({8, 4}, 3);
  std::vector<std::vector<double>> weights;
  for (const int64_t parts : {1, 4}) {
    const Tensor w = waves({4, 4}, 1).set_requires_grad();
    optim::AdamW adam({w}, {.lr = 0.1});
    GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
    const auto step = [&](double factor) {  // of the last part
      adam.zero_grad();
      for (int64_t i = 0; i < parts; ++i) {
        const Autocast on({.low = f16});
        const Tensor part = narrow(x, 0, i * 8 / parts, 8 / parts);
        const Tensor loss = mean(square(linear(part, w))) * (i + 1 < parts ? 1 : factor);
        scaler.scale(loss / double(parts)).backward();
      }
      const bool stepped = bool(scaler.step(adam));
      scaler.update();
      return stepped;
    };
    EXPECT_TRUE(step(1));
    EXPECT_EQ(scaler.growth_tracker(), 1) << "one update";
    const auto before = bits(w);
    EXPECT_FALSE(step(1e36)) << "one bad part spoils the step";
    EXPECT_EQ(bits(w), before);
    EXPECT_TRUE(step(1));
    weights.push_back(to_vector(w));
  }
  for (size_t i = 0; i < weights[0].size(); ++i) EXPECT_NEAR(weights[0][i], weights[1][i], 2e-3);
}

TEST(Several, AnOptimizerWithoutGradientsDelaysNoOther) {
  const Tensor p = parameter({1}), q = parameter({1});
  optim::SGD a({p}, {.lr = 0.5}), b({q}, {.lr = 0.5});
  GradScaler scaler({.init_scale = 8});
  scaler.scale(sum(p)).backward();
  EXPECT_EQ(scaler.step(b).state(), State::NoGrads);
  EXPECT_ERROR(scaler.step(b), "sgd has already stepped");
  EXPECT_EQ(scaler.step(a).state(), State::Stepped);
  scaler.update();
  EXPECT_EQ(scaler.growth_tracker(), 1);
  EXPECT_EQ(to_vector(q), std::vector<double>{1});
}

// --- all together ---

// A loss so small that in f16 every gradient of an activation is zero, though not in bf16.
TEST(Training, OfTinyGradientsNeedsTheScalerInF16Alone) {
  const Tensor x = waves({32, 8}, 3), target = gt(sum(x, {1}), 0.0).to(i64);
  struct Outcome {
    double before, after;
    bool moved;
  };
  const auto train = [&](DType low, bool scaled) {
    const OnWarning expected([](const std::string&) {});  // of f16 without a scaler
    const Tensor up = (waves({16, 8}, 1) * 0.5).set_requires_grad(),
                 down = (waves({2, 16}, 2) * 0.5).set_requires_grad();
    const auto start = to_vector(up);
    optim::Adam adam({up, down}, {.lr = 0.02, .eps = 1e-30});
    GradScaler scaler({.enabled = scaled});
    const auto loss_of = [&] {
      const Autocast on({.low = low});
      return cross_entropy(linear(tanh(linear(x, up)), down), target);
    };
    const double before = loss_of().item();
    for (int i = 0; i < 40; ++i) {
      adam.zero_grad();
      scaler.scale(loss_of() * 1e-7).backward();
      (void)scaler.step(adam);
      scaler.update();
    }
    return Outcome{before, loss_of().item(), to_vector(up) != start};
  };
  for (const auto& [low, scaled] : {std::pair{f32, false}, {f16, true}, {bf16, false}}) {
    const Outcome o = train(low, scaled);
    EXPECT_LT(o.after, 0.5 * o.before) << name(low);
  }
  const Outcome lost = train(f16, false);
  EXPECT_FALSE(lost.moved);
  EXPECT_EQ(lost.after, lost.before);
}

TEST(Training, ReachesTheSameLossInF16) {
  const Tensor x = waves({64, 8}, 1), target = reshape(mean(sin(x), {1}), {64, 1});
  std::map<DType, double> last;
  for (const DType low : {f32, f16, bf16}) {
    const Tensor w1 = (waves({16, 8}, 2) * 0.4).detach().set_requires_grad(),
                 w2 = (waves({1, 16}, 3) * 0.3).detach().set_requires_grad(),
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

// The same bits as without interruption, though saved between two growths of the scale.
TEST(Training, ResumesInTheMidstOfGrowth) {
  const Tensor x = waves({8, 4}, 2);
  struct Run {
    Tensor w = waves({4, 4}, 1).set_requires_grad();
    optim::AdamW adam{{w}, {.lr = 0.05}};
    GradScaler scaler{{.init_scale = 64, .growth_interval = 5}};
    std::vector<double> scales = {};

    void step(const Tensor& x, double factor) {
      adam.zero_grad();
      Tensor loss;
      {
        const Autocast on({.low = f16});
        loss = mean(square(linear(x, w))) * factor;
      }
      scaler.scale(loss).backward();
      (void)scaler.step(adam, {.clip_norm = 1});
      scaler.update();
      scales.push_back(scaler.scale_value());
    }
  };
  const auto factor = [](int step) { return step == 4 || step == 11 ? 1e36 : 1; };
  for (const int stop : {3, 5, 8}) {
    Run whole, first, second;
    for (int i = 0; i < 18; ++i) whole.step(x, factor(i));
    for (int i = 0; i < stop; ++i) first.step(x, factor(i));
    {
      const NoGrad off;
      copy_(second.w, first.w);
    }
    second.adam.load_state_dict(first.adam.state_dict());
    second.scaler.load_state_dict(first.scaler.state_dict());
    for (int i = stop; i < 18; ++i) second.step(x, factor(i));
    EXPECT_EQ(bits(second.w), bits(whole.w)) << stop;
    first.scales.insert(first.scales.end(), second.scales.begin(), second.scales.end());
    EXPECT_EQ(first.scales, whole.scales) << stop;
    EXPECT_EQ(second.scaler.growth_tracker(), whole.scaler.growth_tracker());
  }
}

// A region does not affect a step, not even that of an optimizer that multiplies matrices.
TEST(Training, StepsAndClippingAreNeverAutocast) {
  for (const auto& [name, make] : optim::problems) {
    std::vector<std::string> states;
    for (const bool inside : {false, true}) {
      const auto params = optim::problem();
      const auto opt = make(params);
      std::optional<Autocast> on;
      if (inside) on.emplace(AutocastOptions{.low = f16, .overrides = {{"*", Precision::Low}}});
      for (uint32_t t = 1; t <= 2; ++t) {
        optim::set_grads(params, t, f32);
        const Tensor norm = optim::clip_grad_norm(params, 0.5);
        EXPECT_EQ(norm.dtype(), f32);
        EXPECT_EQ(norm.rank(), 0);
        opt->step();
      }
      states.push_back(optim::bits(*opt));
    }
    EXPECT_TRUE(states[0] == states[1]) << name;
  }
}

// The next forward pass reads the optimizer's results.
TEST(Training, MayHappenInsideOneRegion) {
  std::vector<std::vector<double>> weights;
  for (const bool one_region : {false, true}) {
    const Tensor w = waves({4, 4}, 1).set_requires_grad(), x = waves({8, 4}, 2);
    optim::SGD sgd({w}, {.lr = 0.1});
    GradScaler scaler(f16);
    std::optional<Autocast> on;
    for (int i = 0; i < 4; ++i) {
      if (!on) on.emplace(AutocastOptions{.low = f16});
      scaler.scale(mean(square(linear(x, w)))).backward();
      EXPECT_TRUE(scaler.step(sgd));
      scaler.update();
      sgd.zero_grad();
      if (!one_region) on.reset();
    }
    weights.push_back(to_vector(w));
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST(Training, ObserversSeeAndDecideWhetherALossWasFinite) {
  struct Losses : internal::Observer {
    std::vector<std::pair<int, double>> seen;
    bool says_bad = false;
    void scaled_loss(int id, const Tensor& nonfinite) override {
      seen.emplace_back(id, nonfinite.item());
      if (says_bad) nonfinite.set(0, 1);
    }
  } losses;
  const Tensor w = ones({2}).set_requires_grad();
  optim::SGD sgd({w}, {.lr = 0.1});
  GradScaler scaler;
  const Observe watch(losses);
  scaler.scale(sum(w)).backward();
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_EQ(losses.seen.back().second, 0);
  sgd.zero_grad();
  scaler.scale(sum(w) * std::numeric_limits<double>::infinity(), 3).backward();
  EXPECT_FALSE(scaler.step(sgd, {.loss = 3}));
  scaler.update();
  EXPECT_EQ(losses.seen.back(), std::pair(3, 1.0));
  sgd.zero_grad();
  losses.says_bad = true;
  scaler.scale(sum(w)).backward();
  EXPECT_EQ(scaler.step(sgd).cause(), StepResult::Cause::Loss);
  scaler.update();
  EXPECT_EQ(losses.seen.size(), 3u);
  EXPECT_EQ(scaler.scale_value(), 65536) << "a loss that is not finite leaves the scale";
}

}  // namespace scaler_use_test
}  // namespace mixtape::amp
