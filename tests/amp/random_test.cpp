// Random trainings beside models of what they should do: GradScaler by PyTorch's rule, recipes by
// operands that are rounded here and multiplied in f64.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "amp/recipe.h"
#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace random_test {

// Few on an emulated device, which takes its time.
uint64_t trainings(uint64_t of_cpu) {
  return DefaultDevice::current().is_host() ? of_cpu : of_cpu / 20;
}

// A loss scale, as the rule has it.
struct Rule {
  const ScalerOptions& options;
  double scale = options.init_scale;
  int64_t growth = 0, bad = 0, updates = 0, skipped = 0;
  bool collapsed = false;

  void update(bool overflow, bool bad_loss) {
    ++updates;
    skipped += overflow || bad_loss;
    if (bad_loss) return;  // a lower scale would not help
    if (!overflow) {
      bad = 0;
      if (++growth < options.growth_interval) return;
      growth = 0;
      const double next = float(scale * options.growth_factor);
      if (std::isfinite(next) && next <= options.max_scale) scale = next;
      return;
    }
    growth = 0;
    if (++bad < options.hysteresis) return;
    const double next = scale * options.backoff_factor;
    collapsed = next < options.min_scale;
    scale = float(std::max(next, options.min_scale));
  }
};

class Training {
 public:
  explicit Training(uint64_t seed) : random_(seed) {
    options_.init_scale = std::exp2(double(any(20)));
    options_.growth_factor = any(2) ? 2 : 1.5;
    options_.backoff_factor = any(2) ? 0.5 : 0.25;
    options_.growth_interval = 1 + any(3);
    options_.hysteresis = 1 + any(3);
    if (any(2)) options_.max_scale = options_.init_scale * double(1 + any(4));
    if (any(3) == 0) options_.min_scale = options_.init_scale / double(1 << any(3));
    for (int64_t i = 1 + any(2); i > 0; --i) rules_.push_back({options_});
    for (int64_t i = 1 + any(3); i > 0; --i) trained_.emplace_back(int(any(losses())));
    scaler_ = std::make_unique<GradScaler>(options_);
  }
  void iterate() {
    std::vector<bool> bad_loss(rules_.size()), overflow(rules_.size()), stepped(rules_.size());
    if (any(8) == 0) bad_loss[size_t(any(losses()))] = true;
    for (Trained& t : trained_) {
      t.opt.zero_grad();
      t.runs = any(6) > 0;
      t.overflows = any(6) == 0;
    }
    for (int id = 0; id < losses(); ++id) backward(id, bad_loss[size_t(id)]);
    for (Trained& t : trained_) {
      if (!t.runs) continue;
      const auto id = size_t(t.loss);
      stepped[id] = true;
      overflow[id] = overflow[id] || t.overflows;
      if (any(3) == 0) scaler_->unscale(t.opt, t.loss);
      const StepResult result = scaler_->step(t.opt, {.loss = t.loss});
      const Cause cause = bad_loss[id] ? Cause::Loss : t.overflows ? Cause::Gradients : Cause::None;
      EXPECT_EQ(result.cause(), cause);
      if (cause == Cause::None) t.value -= 0.25;
      expect_near(t.p, full({2}, t.value), 1e-5);  // 1 / S is rounded
    }
    if (std::ranges::find(stepped, true) == stepped.end()) return;
    for (size_t id = 0; id < rules_.size(); ++id)
      if (stepped[id]) rules_[id].update(overflow[id], bad_loss[id]);
    update();
    for (int id = 0; id < losses(); ++id) {
      const Rule& rule = rules_[size_t(id)];
      EXPECT_EQ(scaler_->scale_value(id), rule.scale);
      EXPECT_EQ(scaler_->growth_tracker(id), rule.growth);
      EXPECT_EQ(scaler_->counters(id).updates, rule.updates);
      EXPECT_EQ(scaler_->counters(id).skipped, rule.skipped);
    }
    if (any(5) == 0) resume();
  }

 private:
  struct Trained {  // by an optimizer of its own
    explicit Trained(int id) : loss(id) {}
    int loss;
    Tensor p = ones({2}).set_requires_grad();
    optim::SGD opt{{p}, 0.25};
    double value = 1;
    bool runs = false, overflows = false;
  };
  int64_t any(int64_t n) { return int64_t(random_() % uint64_t(n)); }
  int losses() const { return int(rules_.size()); }

  void backward(int id, bool bad) {
    Tensor loss;
    for (const Trained& t : trained_) {
      if (!t.runs || t.loss != id) continue;
      const Tensor x = t.p * 1.0;
      if (t.overflows) register_hook(x, [](const Tensor& g) { return g * from({1, inf}, {2}); });
      loss = loss ? loss + sum(x) : sum(x);
    }
    if (loss) scaler_->scale(bad ? loss + inf : loss, id).backward();
  }
  void update() {
    int collapses = 0;  // which are told one by one
    for (Rule& rule : rules_) collapses += std::exchange(rule.collapsed, false);
    int told = 0;
    const auto heard = [&](const auto& f) {
      try {
        f();
      } catch (const ScaleCollapse&) {
        ++told;
      }
    };
    heard([&] { scaler_->update(); });
    for (int i = 0; i < 6; ++i) {  // a device's counters arrive later
      synchronize(DefaultDevice::current());
      heard([&] { scaler_->poll(); });
    }
    EXPECT_EQ(told, collapses);
  }
  void resume() {
    const StateDict state = scaler_->state_dict();
    scaler_ = std::make_unique<GradScaler>(options_);
    scaler_->load_state_dict(state);
    for (Rule& rule : rules_) rule.updates = rule.skipped = 0;
  }

  std::mt19937_64 random_;
  ScalerOptions options_;
  std::vector<Rule> rules_;
  std::vector<Trained> trained_;
  std::unique_ptr<GradScaler> scaler_;
};

TEST(Scaler, FollowsTheRuleInAnyTraining) {
  for (uint64_t seed = 0; seed < trainings(100); ++seed) {
    SCOPED_TRACE(seed);
    Training training(seed);
    for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) training.iterate();
  }
}

// --- recipes ---

// The largest |x| of a factor in each step.
struct Amax {
  std::vector<double> past = {};
  int64_t history;  // 0: none

  // t, rounded with one scale, in f64.
  Tensor rounded(const Tensor& t, const Numbers& f) {
    std::vector<double> v = to_vector(t);
    double now = 0, known = 0;
    for (const double x : v) now = std::max(now, std::abs(x));
    for (size_t i = past.size() - std::min(past.size(), size_t(history)); i < past.size(); ++i)
      known = std::max(known, past[i]);
    past.push_back(now);
    if (known == 0) known = now;
    const double scale = known == 0 ? 1 : std::exp2(std::ceil(std::log2(known / f.largest)));
    for (double& x : v) x = nearest(x / scale, f) * scale;
    return from_data(v.data(), t.shape());
  }
};

struct AnyProduct {
  Shape a, b;
  std::function<Tensor(const Tensor& a, const Tensor& b)> f;
};
AnyProduct any_product(const std::function<int64_t(int64_t)>& any) {
  const int64_t m = 1 + any(9), k = 1 + any(9), n = 1 + any(9), c = 1 + any(3), g = 1 + any(2);
  switch (any(11)) {
    case 0:
      return {{m, k}, {k, n}, [](auto& a, auto& b) { return matmul(a, b); }};
    case 1:
      return {{c, g, m, k}, {g, k, n}, [](auto& a, auto& b) { return matmul(a, b); }};
    case 2:
      return {{c, m, k}, {n, k}, [](auto& a, auto& b) { return linear(a, b); }};
    case 3:
      return {
          {m, c, k}, {k, c, n}, [](auto& a, auto& b) { return einsum("ick,kcj->cij", {a, b}); }};
    case 4:
      return {{c, m, k}, {k}, [](auto& a, auto& b) { return matmul(a, b); }};
    case 5:
      return {{c, g * m, 4 + k}, {g * n, m, c}, [=](auto& a, auto& b) {
                return conv1d(a, b, {}, {.stride = g, .padding = 1, .groups = g});
              }};
    case 6:
      return {{c, g * m, 4, 4 + k}, {g * n, m, 2, c}, [=](auto& a, auto& b) {
                return conv2d(a, b, {}, {.padding = {1, 0}, .dilation = {1, g}, .groups = g});
              }};
    case 7:
      return {{c, g * m, 3, k}, {g * m, n, 2, c}, [=](auto& a, auto& b) {
                return conv_transpose2d(a, b, {}, {.stride = {1, g}, .groups = g});
              }};
    case 8:
      return {{c, g * m, 4, 2, 4}, {g * n, m, 2, 2, c}, [=](auto& a, auto& b) {
                return conv3d(a, b, {}, {.stride = {g, 1, 1}, .padding = {1, 0, 1}, .groups = g});
              }};
    case 9:
      return {{c, g * m, 3, 2, 2}, {g * m, n, 2, 2, c}, [=](auto& a, auto& b) {
                return conv_transpose3d(a, b, {}, {.dilation = {g, 1, 1}, .groups = g});
              }};
    default:
      return {{c, m, k}, {c, k, n}, [](auto& a, auto& b) {
                return baddbmm(ones({}, a.dtype()), a, b, {.beta = 0});
              }};
  }
}

TEST(Recipes, AnyProductIsThatOfRoundedFactors) {
  for (uint64_t seed = 0; seed < trainings(200); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto any = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
    const auto numbers = [&](const Shape& shape) {
      const Seed numbers_of(random());
      return (randn(shape) * exp(randn(shape) * 2.0) * double(any(12) > 0)).detach();
    };
    const AnyProduct product = any_product(any);
    const int64_t history = any(4);
    Recipe recipe = Current{};
    if (history > 0) recipe = Delayed{.history = int(history)};
    Amax of_a{.history = history}, of_b = of_a, of_gradient = of_a;
    for (int step = 0; step < 4; ++step) {
      const Tensor a = numbers(product.a).set_requires_grad(),
                   b = numbers(product.b).set_requires_grad();
      Tensor y;
      {
        const Autocast on({.low = f32, .recipe = recipe, .ends = true});
        y = product.f(a, b);
      }
      const Tensor dy = numbers(y.shape());
      y.backward({.gradient = dy});
      const Tensor wide_a = of_a.rounded(a, e4m3).set_requires_grad(),
                   wide_b = of_b.rounded(b, e4m3).set_requires_grad(),
                   wide_y = product.f(wide_a, wide_b);
      wide_y.backward({.gradient = of_gradient.rounded(dy, e5m2)});
      const std::pair<Tensor, Tensor> pairs[] = {
          {y, wide_y}, {a.grad(), wide_a.grad()}, {b.grad(), wide_b.grad()}};
      for (const auto& [got, want] : pairs)
        EXPECT_LE(norm(got.detach().to(f64) - want.detach()).item(), 1e-5 * norm(want).item());
      if (history == 0 || any(3) > 0) continue;
      const StateDict state = recipe.state_dict();
      recipe = Delayed{.history = int(history)};
      recipe.load_state_dict(state);
    }
  }
}

}  // namespace random_test
}  // namespace mixtape::amp
