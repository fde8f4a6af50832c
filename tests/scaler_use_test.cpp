// GradScaler as people use it: clipping, several optimizers and losses, training.

#include <optional>

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace {

// --- clipping ---

TEST(Clip, FusedEqualsClippingBetweenUnscaleAndStep) {
  for (const Made& m : optimizers())
    for (const double norm : {0.5, 1e6}) {
      std::vector<std::vector<double>> results, norms;
      for (const int how : {0, 1, 2}) {
        const Tensor p = waves({7, 5}, 1).set_requires_grad(),
                     q = waves({9}, 2).set_requires_grad();
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
  std::vector<std::vector<double>> grads;
  for (const bool scaled : {false, true}) {
    const Tensor w = waves({4, 4}, 1).set_requires_grad();
    optim::SGD sgd({w}, {.lr = 1});
    GradScaler scaler({.enabled = scaled});
    const Tensor loss = mean(square(tanh(linear(x, w))));
    const Tensor scaled_g = grad({scaler.scale(loss)}, {w}, {.create_graph = true})[0];
    const Tensor g = scaled_g * scaler.inverse_scale();
    scaler.scale(loss + sum(square(g))).backward();
    scaler.unscale(sgd);
    grads.push_back(to_vector(w.grad()));
    EXPECT_TRUE(scaler.step(sgd));
  }
  for (size_t i = 0; i < grads[0].size(); ++i) EXPECT_NEAR(grads[0][i], grads[1][i], 1e-5);
}

// --- all together ---

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

// R12: what the optimizer wrote is what the next forward pass reads.
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

}  // namespace
}  // namespace mixtape::amp
