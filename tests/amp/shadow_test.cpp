// Shadows: the 16-bit copies that an optimizer keeps for Autocast. Training must have the same bits
// with and without them.

#include "core/allocator.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "tests/support/amp.h"
#include "tests/support/optim.h"

namespace mixtape::amp {
using namespace internal;
namespace shadow_test {

struct Mlp : nn::Module<Mlp> {
  nn::Linear in{5, 7}, out{7, 3};
  Tensor forward(const Tensor& x) const { return out(gelu(in(x))); }
  MIXTAPE_FIELDS(in, out)
};
Mlp mlp() {
  const Seed seed(3);
  return {};
}

// A training step in a region, with a scaler if given. x is 16-bit, so that all casts are of
// parameters.
struct Step {
  Seen seen;
  CastCache::Stats stats;
  Step(const Mlp& net, optim::Optimizer& opt, DType low, double factor = 1) {
    const Observe watch(seen);
    opt.zero_grad();
    Tensor loss;
    {
      const Autocast on({.low = low});
      loss = mean(square(net(values({4, 5}, low)))) * factor;
      stats = on.cache_stats();
    }
    loss.backward();
    opt.step();
  }
  int casts() { return seen.count["cast"]; }
};

std::vector<double> weights(const Mlp& net) { return optim::all_values(net.parameters()); }

void expect_current(const Tensor& p, DType dtype) {
  ASSERT_TRUE(bool(p.shadow()));
  EXPECT_EQ(p.shadow().dtype(), dtype);
  EXPECT_EQ(to_vector(p.shadow()), to_vector(cast(p.detach(), dtype)));
}

TEST(Shadow, AStepCastsNoParameter) {
  for (const DType low : {f16, bf16}) {
    const Mlp with = mlp(), without = mlp();
    optim::AdamW a(with.parameters(), {.lr = 0.1}, {.shadow = low}),
        b(without.parameters(), {.lr = 0.1});
    const void* place = nullptr;
    for (int t = 0; t < 4; ++t) {
      Step step(with, a, low), plain(without, b, low);
      EXPECT_EQ(with.in.weight.shadow().raw() == place, t > 0) << "it is written where it lies";
      place = with.in.weight.shadow().raw();
      EXPECT_EQ(plain.casts(), 2) << "a bias is read as it is";
      EXPECT_EQ(step.casts(), t == 0 ? 2 : 0) << "the first step makes the copies";
      EXPECT_EQ(step.stats.casts, t == 0 ? 2 : 0);
      EXPECT_EQ(step.stats.hits, t == 0 ? 0 : 2);
      EXPECT_EQ(weights(with), weights(without));
    }
    for (const Tensor& p : with.parameters()) expect_current(p, low);
  }
}

TEST(Shadow, IsWrittenByTheKernelOfEveryOptimizer) {
  for (const DType dtype : {f16, bf16})
    for (const auto& [name, make] : optim::problems) {
      const auto params = optim::problem(), plain = optim::problem();
      const auto a = make(params, {.shadow = dtype}), b = make(plain);
      for (uint32_t t = 1; t <= 3; ++t) {
        optim::set_grads(params, t, f32);
        optim::set_grads(plain, t, f32);
        a->step();
        b->step();
        for (const Tensor& p : params) expect_current(p, dtype);
      }
      EXPECT_EQ(optim::bits(*a), optim::bits(*b)) << name;
    }
}

TEST(Shadow, StaysInItsPlaceOnceMade) {
  const auto params = optim::problem();
  optim::AdamW opt(params, {}, {.shadow = bf16});
  std::vector<const void*> before;
  for (uint32_t t = 1; t <= 3; ++t) {
    optim::set_grads(params, t, f32);
    opt.step();
    std::vector<const void*> now;
    for (const Tensor& p : params) now.push_back(p.shadow().raw());
    if (t > 1) {
      EXPECT_EQ(now, before);
    }
    before = now;
  }
}

TEST(Shadow, ASkippedStepLeavesBothAlone) {
  for (const int skipped : {0, 1, 2}) {
    const auto params = optim::problem();
    optim::Adam opt(params, {.lr = 0.1}, {.shadow = f16});
    for (int t = 0; t < 4; ++t) {
      const auto before = optim::all_values(params);
      optim::set_grads(params, uint32_t(t + 1), f32, t == skipped ? optim::inf : 1);
      opt.step({.skip = optim::scalar(t == skipped)});
      EXPECT_EQ(optim::all_values(params) == before, t == skipped);
      for (const Tensor& p : params) expect_current(p, f16);
    }
  }
}

TEST(Shadow, ServesAScalerThatSkips) {
  const Mlp with = mlp(), without = mlp();
  optim::SGD a(with.parameters(), {.lr = 0.1, .momentum = 0.9}, {.shadow = f16}),
      b(without.parameters(), {.lr = 0.1, .momentum = 0.9});
  GradScaler of_a({.init_scale = 1024}), of_b({.init_scale = 1024});
  for (int t = 0; t < 5; ++t) {
    Seen seen;
    const auto train = [&](const Mlp& net, optim::Optimizer& opt, GradScaler& scaler) {
      opt.zero_grad();
      Tensor loss;
      {
        const Autocast on({.low = f16});
        loss = mean(square(net(values({4, 5}, f16)))) * (t % 3 == 1 ? optim::inf : 1);
      }
      scaler.scale(loss).backward();
      (void)scaler.step(opt);
      scaler.update();
    };
    {
      const Observe watch(seen);
      train(with, a, of_a);
    }
    EXPECT_EQ(seen.count["cast"], t == 0 ? 2 : 0) << t;
    train(without, b, of_b);
    EXPECT_EQ(weights(with), weights(without));
    for (const Tensor& p : with.parameters()) expect_current(p, f16);
  }
}

// --- writes that the optimizer did not make ---

TEST(Shadow, IsNoLongerUsedAfterAnyOtherWrite) {
  const Tensor x = values({4, 5}, bf16);
  const Mlp other = [] {
    const Seed seed(8);
    return Mlp();
  }();
  const std::vector<std::function<void(Mlp&)>> writes = {
      [](Mlp& net) { net.in.weight.set(0, 7); },
      [](Mlp& net) {
        const NoGrad off;
        fill_(net.in.weight, 0.25);
      },
      [&](Mlp& net) { net.load_state_dict(other.state_dict()); },
      [](Mlp& net) {
        net.to(bf16);
        net.to(f32);
      },
      [&](Mlp& net) { net.in.weight.set_data(other.in.weight.detach().clone()); },
      [&](Mlp& net) {  // other data with the same version
        const Tensor data = other.in.weight.detach().clone();
        while (data.version() < net.in.weight.version()) data.storage()->bump_version();
        net.in.weight.set_data(data);
      },
      [](Mlp& net) {
        optim::SGD second(net.parameters(), {.lr = 3});
        second.step();
      },
  };
  for (const auto& write : writes) {
    Mlp net = mlp();
    optim::SGD opt(net.parameters(), {.lr = 0.1}, {.shadow = bf16});
    (void)Step(net, opt, bf16);
    ASSERT_EQ(Step(net, opt, bf16).casts(), 0);
    std::vector<double> y[2];
    const auto run = [&] {
      const Autocast on({.low = bf16});
      return to_vector(net(x));
    };
    const auto before = run();
    write(net);
    y[0] = run();
    for (const Tensor& p : net.parameters()) p.set_shadow({});
    y[1] = run();
    EXPECT_EQ(y[0], y[1]);
    EXPECT_NE(y[0], before);
    if (net.in.weight.dtype() != f32) continue;
    (void)Step(net, opt, bf16);  // the optimizer makes a shadow again
    EXPECT_EQ(Step(net, opt, bf16).casts(), 0);
    for (const Tensor& p : net.parameters()) expect_current(p, bf16);
  }
}

TEST(Shadow, IsNoLongerUsedAfterAWriteToIt) {
  const Mlp net = mlp();
  optim::SGD opt(net.parameters(), {.lr = 0.1}, {.shadow = bf16});
  (void)Step(net, opt, bf16);
  const Tensor& w = net.in.weight;
  {
    const NoGrad off;
    fill_(w.shadow(), 9);
  }
  EXPECT_FALSE(bool(w.shadow()));
  (void)Step(net, opt, bf16);
  expect_current(w, bf16);
}

TEST(Shadow, AWriteBeforeASkippedStepReachesIt) {
  const Tensor p = leaf({3});
  optim::SGD opt({p}, {.lr = 0.1}, {.shadow = f16});
  p.set_grad(ones({3}));
  opt.step();
  p.set(1, 5);
  opt.step({.skip = ones({})});
  expect_current(p, f16);
  EXPECT_EQ(p.shadow().at(1), 5);
}

TEST(Shadow, FollowsAStepWithinARegion) {
  const Tensor w = leaf({4, 4}), x = values({4, 4}, f16);
  optim::SGD opt({w}, {.lr = 1}, {.shadow = f16});
  const Autocast on({.low = f16});
  for (int t = 0; t < 3; ++t) {
    EXPECT_EQ(to_vector(linear(x, w)), to_vector(linear(x, cast(w.detach(), f16))));
    w.set_grad(values({4, 4}, f32, t));
    opt.step();
  }
}

// Gradients of a graph recorded before a step are those at the old weights, as with casts.
TEST(Shadow, IsNotWrittenOverWhileAGraphReadsIt) {
  std::vector<std::vector<double>> grads;
  for (const bool shadowed : {false, true}) {
    const Tensor w = leaf({4, 4}), x = leaf({4, 4}, f16);
    optim::SGD opt({w}, {.lr = 1});
    if (shadowed) opt = optim::SGD({w}, {.lr = 1}, {.shadow = f16});
    const auto loss = [&] {
      const Autocast on({.low = f16});
      return sum(square(linear(x, w)));
    };
    w.set_grad(values({4, 4}, f32, 3));
    opt.step();
    const Tensor early = loss();
    opt.step();
    x.set_grad({});
    early.backward();
    grads.push_back(to_vector(x.grad()));
    if (shadowed) expect_current(w, f16);
  }
  EXPECT_EQ(grads[0], grads[1]);
}

// --- which tensors ---

TEST(Shadow, OfAViewIsAViewOfIt) {
  const Tensor w = leaf({4, 4}), x = values({4, 4}, f16);
  optim::SGD opt({w}, {.lr = 1}, {.shadow = f16});
  w.set_grad(values({4, 4}, f32, 2));
  opt.step();
  const Tensor narrowed = cast(w.detach(), f16);
  Seen seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  EXPECT_EQ(to_vector(matmul(x, w.t())), to_vector(matmul(x, narrowed.t())));
  EXPECT_EQ(to_vector(matmul(x, slice(w, 1, 1, 3))),
            to_vector(matmul(x, slice(narrowed, 1, 1, 3))));
  EXPECT_EQ(seen.count["cast"], 0);
}

TEST(Shadow, OfParametersInOneStorage) {
  const Tensor packed = values({32});
  const Tensor a = packed.with_layout(Layout(Shape{4, 4})).set_requires_grad(),
               b = packed.with_layout(Layout(Shape{4, 4}).at_offset(16)).set_requires_grad(),
               x = values({4, 4}, f16);
  optim::SGD opt({a}, {.lr = 1}, {.shadow = f16});
  opt.add_group({b}, {.lr = 1}, {.shadow = f16});
  for (const bool both : {true, true, false, true}) {
    a.set_grad(values({4, 4}, f32, 2));
    b.set_grad(both ? values({4, 4}, f32, 5) : Tensor());
    opt.step();
    Seen seen;
    const Autocast on({.low = f16});
    for (const Tensor& w : {a, b}) {
      const auto expected = to_vector(linear(x, cast(w.detach(), f16)));
      const Observe watch(seen);
      EXPECT_EQ(to_vector(linear(x, w)), expected);
    }
    EXPECT_EQ(seen.count["cast"], 0);
  }
}

TEST(Shadow, ServesRegionsOfItsDtypeAlone) {
  const Mlp net = mlp();
  optim::SGD opt(net.parameters(), {.lr = 0.1}, {.shadow = bf16});
  (void)Step(net, opt, bf16);
  EXPECT_EQ(Step(net, opt, f16).casts(), 2);
  EXPECT_EQ(Step(net, opt, bf16).casts(), 0);
}

TEST(Shadow, IsOfF32ParametersAlone) {
  const Tensor narrow = leaf({3}, f16), wide = leaf({3}, f64);
  optim::SGD opt({narrow, wide}, {}, {.multi_precision = true, .shadow = f16});
  for (const Tensor& p : {narrow, wide}) p.set_grad(ones({3}).to(p.dtype()));
  opt.step();
  EXPECT_FALSE(narrow.shadow());
  EXPECT_FALSE(wide.shadow());
}

TEST(Shadow, GoesWithItsOptimizer) {
  const Tensor p = leaf({1000});
  const int64_t before = memory_stats(p.device()).in_use;
  {
    optim::SGD opt({p}, {}, {.shadow = f16});
    p.set_grad(ones({1000}));
    opt.step();
    optim::SGD moved = std::move(opt);
    expect_current(p, f16);
    p.set_grad({});
    EXPECT_GE(memory_stats(p.device()).in_use, before + 2000);
  }
  EXPECT_FALSE(p.shadow());
  EXPECT_EQ(memory_stats(p.device()).in_use, before);
}

TEST(Shadow, IsNarrow) {
  EXPECT_ERROR(optim::SGD({leaf({3})}, {}, {.shadow = f64}),
               "sgd: shadow must be f16, bf16 or f32, got f64");
  const Tensor p = leaf({3});
  p.set_grad(ones({3}));
  optim::SGD opt({p}, {}, {.shadow = f32});  // none is needed
  opt.step();
  EXPECT_FALSE(p.shadow());
}

}  // namespace shadow_test
}  // namespace mixtape::amp
