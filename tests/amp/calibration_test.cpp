// A loss scale that is right at once: calibration, histograms, the warning of underflow, and rules
// of one's own.
#include "amp/gradient_histogram.h"
#include "autograd/checkpoint.h"
#include "core/random.h"
#include "core/warn.h"

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace calibration_test {

// Four layers with a gain between them, which the next one takes back, and one before the loss.
struct Planted {
  double inner = 1, outer = 1;
  std::vector<Tensor> weights = {};
  std::vector<std::string> names = {};
  Tensor x, y;

  Planted(double inner, double outer) : inner(inner), outer(outer) {
    const Seed seed(3);
    for (int i = 0; i < 4; ++i) {
      weights.push_back((randn({16, 16}) * 0.25).detach().set_requires_grad());
      names.push_back("layer" + std::to_string(i));
    }
    x = randn({32, 16}), y = randn({32, 16});
  }
  Tensor loss() const {
    const Autocast on({.low = f16});
    Tensor h = x;
    for (const Tensor& w : weights) {
      h = tanh(matmul(h, w)) * inner;
      h = h * (1 / inner);
    }
    return mse_loss(h, y) * outer;
  }
};

struct Outcome {
  int64_t skipped = 0;
  double zeros = 0;  // the largest part, of a layer's gradient in the first step
  double scale = 0;
};
Outcome train(const Planted& net, const ScalerOptions& options, int steps = 60) {
  optim::SGD opt(net.weights, {.lr = 0});
  GradScaler scaler(f16, options);
  Outcome all;
  for (int i = 0; i < steps; ++i) {
    opt.zero_grad();
    scaler.scale(net.loss()).backward();
    scaler.step(opt);
    scaler.update();
    if (i > 0) continue;
    all.scale = scaler.scale_value();
    for (const auto& row : scaler.histogram(opt).rows) all.zeros = std::max(all.zeros, row.zeros());
  }
  all.skipped = scaler.counters().skipped;
  return all;
}

// The rule of others skips 21 steps at a gain of 1e6, and sees only zeros at 1e-9.
TEST(Calibration, SkipsNoStepAndLosesNoGradient) {
  const OnWarning quiet([](const std::string&) {});
  if (!DefaultDevice::current().is_host()) GTEST_SKIP() << "the emulator would take half a minute";
  int64_t most_skipped = 0;
  double most_zeros = 0;
  for (const double inner : {1e-2, 1.0, 1e2})
    for (const double outer : {1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6}) {
      const Planted net(inner, outer);
      const Outcome o = train(net, {.calibrate = true, .histogram = 1}, 3);
      EXPECT_EQ(o.skipped, 0) << inner << ' ' << outer;
      EXPECT_LT(o.zeros, 0.01) << inner << ' ' << outer;
      const Outcome usual = train(net, {.histogram = 1});
      most_skipped = std::max(most_skipped, usual.skipped);
      most_zeros = std::max(most_zeros, usual.zeros);
    }
  EXPECT_GE(most_skipped, 20);
  EXPECT_EQ(most_zeros, 1);
}

// The largest f16 gradient that backward() makes of a loss.
double largest_gradient(const Tensor& loss) {
  struct Largest : Observer {
    double value = 0;
    void before_rule(const Node&, const Tensor& dy) override {
      if (dy.dtype() == f16) value = std::max(value, max(abs(dy.detach())).item());
    }
  } largest;
  const Observe watching(largest);
  loss.backward();
  return largest.value;
}

TEST(Calibration, LeavesFourPowersOfTwo) {
  for (const double gain : {1e-9, 0.3, 1e6}) {
    const Planted net(1, gain);
    GradScaler scaler(f16, {.calibrate = true});
    const double largest = largest_gradient(scaler.scale(net.loss()));
    EXPECT_LE(largest, 4096) << gain;
    EXPECT_GT(largest, 2048 * 0.99) << gain;
    EXPECT_LE(*scaler.calibration_passes(), 6) << gain;
    EXPECT_EQ(std::log2(scaler.scale_value()), std::floor(std::log2(scaler.scale_value())));
  }
}

TEST(Calibration, IsNoPartOfTheTraining) {
  const Planted net(1, 1e6);
  int calls = 0;
  register_post_accumulate_hook(net.weights[0], [&](const Tensor&) { ++calls; });
  GradScaler scaler(f16, {.calibrate = true});
  OverflowTrace trace;
  const Tensor scaled = scaler.scale(net.loss());
  EXPECT_FALSE(net.weights[0].has_grad());
  EXPECT_TRUE(trace.found().empty()) << "though some scales were too high";
  EXPECT_GT(*scaler.calibration_passes(), 1);
  scaled.backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(trace.found().empty());
}

TEST(Calibration, IsOfEachLossAndOfTheFirstFiniteOne) {
  const Planted small(1, 1e-6), large(1, 1e3);
  optim::SGD opt(small.weights, {.lr = 0});
  GradScaler scaler(f16, {.calibrate = true});
  EXPECT_EQ(scaler.calibration_passes(), std::nullopt);
  scaler.scale(small.loss() * inf).backward();
  EXPECT_EQ(scaler.calibration_passes(), std::nullopt) << "a loss that is not finite tells nothing";
  EXPECT_EQ(scaler.step(opt).cause(), Cause::Loss);
  scaler.update();
  opt.zero_grad();
  scaler.scale(small.loss()).backward();
  scaler.scale(large.loss(), 7).backward();
  EXPECT_GT(scaler.scale_value(), 1e4 * scaler.scale_value(7));
  EXPECT_TRUE(scaler.calibration_passes(7).has_value());
}

TEST(Calibration, IsNotRepeated) {
  const Planted small(1, 1e-6), large(1, 1e3);
  GradScaler scaler(f16, {.calibrate = true}), resumed(f16, {.calibrate = true});
  scaler.scale(small.loss());
  const double found = scaler.scale_value();
  scaler.scale(large.loss());
  EXPECT_EQ(scaler.scale_value(), found);
  resumed.load_state_dict(scaler.state_dict());
  resumed.scale(large.loss());
  EXPECT_EQ(resumed.scale_value(), found);
  EXPECT_EQ(resumed.calibration_passes(), std::nullopt);
}

// A checkpoint of a run that has not begun must not end the search for its scale.
TEST(Calibration, IsYetToComeAfterLoadingAStateWithoutIt) {
  const Planted small(1, 1e-6);
  const GradScaler fresh(f16, {.calibrate = true});
  GradScaler scaler(f16, {.calibrate = true}), used(f16, {.calibrate = true});
  used.scale(small.loss());
  for (GradScaler* const s : {&scaler, &used}) {
    s->load_state_dict(fresh.state_dict());
    EXPECT_EQ(s->scale_value(), fresh.scale_value());
    s->scale(small.loss());
    EXPECT_TRUE(s->calibration_passes().has_value());
    EXPECT_GT(s->scale_value(), fresh.scale_value());
  }
}

TEST(Calibration, StaysWithinLimits) {
  const OnWarning quiet([](const std::string&) {});
  const auto scale = [](double gain, double low, double high) {
    GradScaler scaler(f16,
                      {.init_scale = 3, .min_scale = low, .max_scale = high, .calibrate = true});
    scaler.scale(Planted(1, gain).loss());
    return scaler.scale_value();
  };
  EXPECT_EQ(scale(1e-9, 0, 1000), 512) << "the largest power of two";
  EXPECT_EQ(scale(1e3, 3, inf), 256);
  EXPECT_EQ(scale(1e6, 3, inf), 4) << "the smallest power of two";
  EXPECT_EQ(scale(1, 3, 3), 3) << "no power of two is allowed";
}

TEST(Calibration, KeepsTheInitialScaleWithoutF16) {
  const Tensor p = parameter({1, 2});
  GradScaler scaler({.init_scale = 12, .calibrate = true});
  scaler.scale(sum(p));
  EXPECT_EQ(scaler.scale_value(), 12);
  EXPECT_EQ(scaler.calibration_passes(), 1);
}

TEST(Calibration, WaitsForGradientsThatAreNotZero) {
  const Planted net(1, 1);
  GradScaler scaler(f16, {.init_scale = 12, .calibrate = true});
  scaler.scale(net.loss() * 0).backward();
  EXPECT_EQ(scaler.scale_value(), 12);
  EXPECT_EQ(scaler.calibration_passes(), std::nullopt);
  scaler.abandon();
  const double largest = largest_gradient(scaler.scale(net.loss()));
  EXPECT_GT(largest, 2048 * 0.99);
  EXPECT_LE(largest, 4096);
}

TEST(Calibration, IsNotInTheMiddleOfAnIteration) {
  const Planted net(1, 1e3);
  optim::SGD opt(net.weights, {.lr = 0});
  GradScaler scaler(f16, {.calibrate = true});
  scaler.scale(net.loss() * inf).backward();
  scaler.scale(net.loss()).backward();
  EXPECT_EQ(scaler.step(opt).cause(), Cause::Loss);
  scaler.update();
  EXPECT_EQ(scaler.calibration_passes(), std::nullopt);
  opt.zero_grad();
  scaler.scale(net.loss()).backward();
  EXPECT_TRUE(scaler.calibration_passes().has_value());
  EXPECT_TRUE(scaler.step(opt));
}

TEST(Calibration, WarnsIfNoScaleHelps) {
  std::vector<std::string> told;
  const OnWarning listening([&](const std::string& text) { told.push_back(text); });
  const Tensor p = parameter({0});
  GradScaler scaler({.init_scale = 12, .calibrate = true});
  scaler.scale(sum(sqrt(p.to(f16)).to(f32)));  // 1 / sqrt(0)
  EXPECT_EQ(scaler.scale_value(), 12);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].starts_with("no loss scale makes all gradients finite: ")) << told[0];
}

TEST(Calibration, GoesThroughCheckpoints) {
  const Planted net(1, 1e-9);
  GradScaler scaler(f16, {.calibrate = true});
  const auto loss = [&] { return checkpoint([&] { return net.loss(); }); };
  const double largest = largest_gradient(scaler.scale(loss()));
  EXPECT_GT(largest, 2048 * 0.99);
  EXPECT_TRUE(net.weights[0].has_grad());
}

// --- histograms ---

struct Counted {
  Tensor p = parameter({1, 2, 3, 4}), q = parameter({1, 2});
  optim::SGD sgd{{p, q}, {.lr = 0.125}};
  GradScaler scaler;

  explicit Counted(const ScalerOptions& options) : scaler(options) {}
  void run(const Tensor& gp, const Tensor& gq) {
    scaler.scale(sum(p) + sum(q)).backward();
    p.set_grad(gp), q.set_grad(gq);
    scaler.step(sgd);
    scaler.update();
    hear(scaler);
  }
};

TEST(Histogram, CountsWhatF16Had) {
  Counted c({.init_scale = 8, .histogram = 1});
  c.scaler.name_parameters(c.sgd, {"layer.weight", "layer.bias"});
  EXPECT_ERROR(c.scaler.histogram(c.sgd),
               "histogram: no step of sgd has counted its gradients: set ScalerOptions::histogram");
  c.run(from({0, 1, -1.5, 0x1p-20}, {4}), from({3, 60000}, {2}));
  const GradientHistogram h = c.scaler.histogram(c.sgd);
  EXPECT_EQ(h.scale, 8);
  ASSERT_EQ(h.rows.size(), 2u);
  EXPECT_EQ(h.rows[0].name, "layer.weight");
  EXPECT_EQ(h.rows[0].counts[127], 2);
  EXPECT_EQ(h.rows[0].counts[107], 1);
  EXPECT_EQ(h.rows[0].elements(), 4);
  EXPECT_EQ(h.rows[0].zeros(), 0.25);
  EXPECT_EQ(h.rows[0].subnormals(), 0.25);
  EXPECT_EQ(h.rows[0].headroom(), 15);
  EXPECT_EQ(h.rows[1].headroom(), 0);
  EXPECT_EQ(h.text(),
            "gradients times 8\n"
            "parameter     elements  zero  < 2^-14  headroom\n"
            "layer.weight         4  25 %     25 %      2^15\n"
            "layer.bias           2   0 %      0 %       2^0\n");
  EXPECT_NE(h.svg().find("Gradients times 8"), std::string::npos);
}

TEST(Histogram, CountsWhenItIsTime) {
  Counted c({.histogram = 3});
  const auto counted = [&](double g) {
    c.run(full({4}, g), full({2}, g));
    return c.scaler.histogram(c.sgd).rows[0].counts;
  };
  EXPECT_EQ(counted(1)[127], 4);
  EXPECT_EQ(counted(2)[127], 4);
  EXPECT_EQ(counted(4)[127], 4);
  EXPECT_EQ(counted(8)[130], 4);
  EXPECT_ERROR(GradScaler({.histogram = -1}), "histogram must be >= 0, got -1");
}

TEST(Histogram, CountsInUnscaleToo) {
  Counted c({.init_scale = 4, .histogram = 1});
  c.scaler.scale(sum(c.p) + sum(c.q)).backward();
  c.scaler.unscale(c.sgd);
  EXPECT_EQ(c.scaler.histogram(c.sgd).rows[0].counts[129], 4) << "before the division";
  c.scaler.step(c.sgd);
  EXPECT_EQ(c.scaler.histogram(c.sgd).rows[0].counts[129], 4);
}

TEST(Histogram, ChangesNoBit) {
  Counted with({.histogram = 1}), without({});
  for (const double g : {1.0, inf, 3.0}) {
    with.run(full({4}, g), full({2}, g));
    without.run(full({4}, g), full({2}, g));
  }
  EXPECT_EQ(bits(with.p), bits(without.p));
  EXPECT_EQ(with.scaler.scale_value(), without.scaler.scale_value());
}

// --- the warning ---

std::vector<std::string> warnings(double scale, const Tensor& gp, const Tensor& gq) {
  std::vector<std::string> told;
  const OnWarning listening([&](const std::string& text) { told.push_back(text); });
  Counted c({.init_scale = scale, .histogram = 1});
  c.scaler.name_parameters(c.sgd, {"layer3.weight", "layer3.bias"});
  for (int i = 0; i < 3; ++i) c.run(gp, gq);
  return told;
}

TEST(Underflow, IsToldOnceByName) {
  const double tiny = 0x1p-24;
  const auto told = warnings(2, from({0, 0, tiny, 3 * tiny}, {4}), from({1, 2}, {2}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(
      told[0],
      "sgd: 50 % of layer3.weight's gradients are zero, and most of the others too small for "
      "f16: the loss scale of 2 is too low for them: begin with a larger one (init_scale), or "
      "let calibrate find it, or give these layers a scale of their own (amp::LayerGroup)");
}

TEST(Underflow, IsToldIfAllIsZero) {
  const auto told = warnings(2, zeros({4}), zeros({2}));
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(
      told[0],
      "sgd: all gradients are zero at a loss scale of 2. If it is too low: begin with a larger "
      "one (init_scale), or let calibrate find it");
}

TEST(Underflow, IsNotZerosOrSmallNumbersAlone) {
  const double tiny = 0x1p-20;
  EXPECT_TRUE(warnings(2, from({0, 0, 0, 1}, {4}), from({1, 2}, {2})).empty()) << "relu's zeros";
  EXPECT_TRUE(warnings(2, from({tiny, tiny, tiny, 1}, {4}), from({1, 2}, {2})).empty());
  EXPECT_TRUE(warnings(2, zeros({4}), from({1, 2}, {2})).empty()) << "behind a gate that is shut";
}

TEST(Underflow, IsNotOfOptimizersWithoutGradientsOfTheirOwn) {
  std::vector<std::string> told;
  const OnWarning listening([&](const std::string& text) { told.push_back(text); });
  const Tensor p = parameter({1, 2});
  optim::SGD first({p}, {.lr = 0}), second({p}, {.lr = 0});
  GradScaler scaler({.init_scale = 8, .histogram = 1});
  for (int i = 0; i < 3; ++i) {
    p.set_grad({});
    scaler.scale(sum(p)).backward();
    scaler.unscale(first);
    scaler.step(first);
    scaler.step(second);  // has nothing left to divide
    scaler.update();
    hear(scaler);
  }
  EXPECT_TRUE(told.empty()) << told[0];
}

// --- policies of your own ---

// Triples after each good step, and remembers how many there were.
struct Tripling : LossScalePolicy {
  int64_t good = 0;
  std::vector<Update> seen = {};
  double next(const Update& u) override {
    seen.push_back(u);
    if (u.overflow) return u.scale / 9;
    if (u.bad_loss) return u.scale;
    ++good;
    return u.scale * 3;
  }
  double start(double found) override { return found / 2; }
  StateDict state_dict() const override {
    return {{"good", full({}, double(good), i64, Device::cpu())}};
  }
  void load_state_dict(const StateDict& dict) override { good = int64_t(dict.at("good").item()); }
};

TEST(Policy, DecidesTheScale) {
  const auto rule = std::make_shared<Tripling>();
  Loop loop({.init_scale = 2, .policy = rule});
  std::vector<double> scales;
  for (const double g : {1.0, 1.0, inf, 1.0}) {
    loop.run_ahead(g);
    scales.push_back(loop.scaler.scale_value());
  }
  EXPECT_EQ(scales, (std::vector<double>{6, 18, 2, 6}));
  loop.run_ahead(1, inf);
  EXPECT_EQ(loop.scaler.scale_value(), 6);
  EXPECT_TRUE(rule->seen[4].bad_loss && !rule->seen[4].overflow);
  EXPECT_EQ(rule->seen[4].updates, 5);
  EXPECT_EQ(rule->seen[4].skipped, 2);
  EXPECT_TRUE(rule->seen[2].overflow);
}

TEST(Policy, IsSavedWithTheScaler) {
  const auto rule = std::make_shared<Tripling>(), other = std::make_shared<Tripling>();
  Loop loop({.init_scale = 2, .policy = rule});
  loop.run_ahead(1);
  const StateDict dict = loop.scaler.state_dict();
  EXPECT_TRUE(dict.contains("policy.good"));
  GradScaler resumed({.policy = other});
  resumed.load_state_dict(dict);
  EXPECT_EQ(other->good, 1);
  EXPECT_EQ(resumed.scale_value(), 6);
  GradScaler without;
  EXPECT_ERROR(without.load_state_dict(dict), "policy.good");
}

TEST(Policy, MustBeAScale) {
  struct Broken : LossScalePolicy {
    double next(const Update&) override { return 0; }
  };
  Loop loop({.policy = std::make_shared<Broken>()});
  EXPECT_ERROR(loop.run_ahead(1),
               "update: the policy's scale must be positive and finite in f32, got 0");
}

// Otherwise a run that resumes, which takes no other scale, would go on with another.
TEST(Policy, IsLimitedLikeAnyScale) {
  const ScalerOptions options{
      .init_scale = 8, .min_scale = 4, .max_scale = 20, .policy = std::make_shared<Tripling>()};
  Loop loop(options);
  loop.run_ahead(1);
  EXPECT_EQ(loop.scaler.scale_value(), 20);
  GradScaler resumed(f16, options);
  resumed.load_state_dict(loop.scaler.state_dict());
  EXPECT_EQ(resumed.scale_value(), 20);
  const auto collapse = [&] {
    loop.run(inf);
    loop.run(1);  // on a device, a policy hears of a step with the next
  };
  EXPECT_THROW(collapse(), ScaleCollapse);
  EXPECT_NO_THROW(loop.run(1));
  GradScaler calibrated(f16, {.init_scale = 4,
                              .min_scale = 4,
                              .max_scale = 4,
                              .calibrate = true,
                              .policy = std::make_shared<Tripling>()});
  calibrated.scale(Planted(1, 1).loss());
  EXPECT_EQ(calibrated.scale_value(), 4);
}

TEST(Policy, MustStartWithAScale) {
  struct Broken : LossScalePolicy {
    double next(const Update& u) override { return u.scale; }
    double start(double) override { return 0; }
  };
  GradScaler scaler(f16, {.calibrate = true, .policy = std::make_shared<Broken>()});
  EXPECT_ERROR(scaler.scale(Planted(1, 1).loss()),
               "scale: the policy's first scale must be positive and finite in f32, got 0");
  EXPECT_EQ(scaler.scale_value(), 65536);
}

TEST(Policy, HearsOfCalibration) {
  const Planted net(1, 1);
  GradScaler usual(f16, {.calibrate = true});
  usual.scale(net.loss());
  GradScaler scaler(f16, {.calibrate = true, .policy = std::make_shared<Tripling>()});
  scaler.scale(net.loss());
  EXPECT_EQ(scaler.scale_value(), usual.scale_value() / 2);
}

}  // namespace calibration_test
}  // namespace mixtape::amp
