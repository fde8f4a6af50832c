// LAMB, LARS and Muon, which need a whole parameter.
#include "kernels/kernels.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_layerwise_test {

Params matrix(const Shape& shape, DType dtype = f32) {
  const Tensor p = Tensor(shape, dtype).set_requires_grad();
  p.set_grad(Tensor(shape, dtype));
  for (uint32_t i = 0; i < p.numel(); ++i) {
    p.set(i, optim_problem::value(1, i, 0));
    p.grad().set(i, optim_problem::value(1, i, 1));
  }
  return {p};
}

TEST(Lamb, StepsAreInProportionToTheNorm) {
  const Params p = {from({3, 4}, {2}).set_requires_grad()};
  p[0].set_grad(from({1, 2}, {2}));
  Lamb opt(p, {.lr = 0.1});
  opt.step();  // the direction is [1, 1]
  EXPECT_NEAR(p[0].at(0), 3 - 0.1 * 5 / std::sqrt(2), 1e-5);
  EXPECT_NEAR(p[0].at(1), 4 - 0.1 * 5 / std::sqrt(2), 1e-5);
}

TEST(Lamb, ANormOfZeroIsTrusted) {
  const Params p = {from({0, 0}, {2}).set_requires_grad(), from({3, 4}, {2}).set_requires_grad()};
  p[0].set_grad(from({1, 2}, {2}));
  p[1].set_grad(from({0, 0}, {2}));
  Lamb opt(p, {.lr = 0.1, .eps = 0.0625});
  opt.step();
  EXPECT_NEAR(p[0].at(1), -0.1 * 2 / 2.0625, 1e-6);
  EXPECT_EQ(to_vector(p[1]), (std::vector<double>{3, 4}));
}

TEST(Lamb, WithoutTrustIsAdamW) {
  const Params a = problem(f64), b = problem(f64);
  Lamb lamb(a, {.lr = 0.01, .eps = 1e-8, .weight_decay = 0.1, .min_trust = 1, .max_trust = 1});
  AdamW adamw(b, {.lr = 0.01, .eps = 1e-8, .weight_decay = 0.1});
  for (uint32_t t = 1; t <= 5; ++t) {
    set_grads(a, t, f64);
    set_grads(b, t, f64);
    lamb.step();
    adamw.step();
  }
  for (size_t i = 0; i < all_values(a).size(); ++i)
    EXPECT_NEAR(all_values(a)[i], all_values(b)[i], 1e-14);
}

// The sums of norms run over chunks, with the last one partly filled, also when 0 / eps is NaN.
TEST(Lamb, NormsCountEveryElement) {
  for (const int64_t n : {1, 15, 17, 16384, 40001}) {
    const Params p = matrix({n}, f64);
    const std::vector<double> before = to_vector(p[0]);
    double norm = 0;
    for (const double x : before) norm += x * x;
    Lamb opt(p, {.lr = 1, .eps = 0});
    opt.step();  // the direction is all 1 or -1
    const double g = p[0].grad().at(0), step = std::sqrt(norm / static_cast<double>(n));
    EXPECT_NEAR(p[0].at(0), before[0] - (g > 0 ? step : -step), 1e-9) << n;
  }
}

TEST(Lars, StepsAreInProportionToTheNorm) {
  const Params p = {from({3, 4}, {2}, f64).set_requires_grad()};
  p[0].set_grad(from({0, 2}, {2}, f64));
  Lars opt(p, {.lr = 0.5, .weight_decay = 0.1, .trust_coefficient = 0.02});
  opt.step();
  const double trust = 0.02 * 5 / (2 + 0.1 * 5);
  EXPECT_NEAR(p[0].at(0), 3 - 0.5 * trust * 0.3, 1e-14);
  EXPECT_NEAR(p[0].at(1), 4 - 0.5 * trust * 2.4, 1e-14);
}

TEST(Lars, ANormOfZeroIsTrusted) {
  const Params p = {from({0, 0}, {2}).set_requires_grad(), from({3, 4}, {2}).set_requires_grad()};
  p[0].set_grad(from({1, 2}, {2}));
  p[1].set_grad(from({0, 0}, {2}));
  Lars opt(p, {.lr = 0.5});
  opt.step();
  EXPECT_EQ(to_vector(p[0]), (std::vector<double>{-0.5, -1}));
  EXPECT_EQ(to_vector(p[1]), (std::vector<double>{3, 4}));
}

TEST(Lars, WithoutTrustIsSGD) {
  const Params a = problem(f64), b = problem(f64);
  Lars lars(a, {.lr = 0.01, .weight_decay = 0.1, .min_trust = 1, .max_trust = 1, .nesterov = true});
  SGD sgd(b, {.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
  for (uint32_t t = 1; t <= 5; ++t) {
    set_grads(a, t, f64);
    set_grads(b, t, f64);
    lars.step();
    sgd.step();
  }
  for (size_t i = 0; i < all_values(a).size(); ++i)
    EXPECT_NEAR(all_values(a)[i], all_values(b)[i], 1e-14);
}

// All singular values of the step are near 1: in [0.68, 1.14] or so.
TEST(Muon, StepsAreAboutOrthogonal) {
  for (const Shape& shape : {Shape{4, 6}, Shape{6, 4}, Shape{20, 20}, Shape{130, 40}}) {
    const Params p = matrix(shape, f64);
    const int64_t rows = shape[0], columns = shape[1], k = std::min(rows, columns);
    std::vector<double> x = to_vector(p[0]);
    Muon opt(p, {.lr = 1});
    opt.step();
    const double factor = std::sqrt(std::max(1.0, double(rows) / double(columns)));
    for (size_t i = 0; i < x.size(); ++i) x[i] = (x[i] - p[0].at(static_cast<int64_t>(i))) / factor;
    double trace = 0;  // of x x^T: the sum of squared singular values
    for (const double v : x) trace += v * v;
    EXPECT_GT(trace, 0.45 * double(k)) << rows;
    EXPECT_LT(trace, 1.3 * double(k)) << rows;
  }
}

TEST(Muon, ATransposedProblemHasTheTransposedSolution) {
  const Params p = matrix({7, 5}, f64);
  const Params q = {Tensor({5, 7}, f64).set_requires_grad()};
  q[0].set_grad(Tensor({5, 7}, f64));
  for (int64_t i = 0; i < 7; ++i)
    for (int64_t j = 0; j < 5; ++j) {
      q[0].set(j * 7 + i, p[0].at(i * 5 + j));
      q[0].grad().set(j * 7 + i, p[0].grad().at(i * 5 + j));
    }
  Muon a(p, {.lr = 0.1, .match_adam = true}), b(q, {.lr = 0.1, .match_adam = true});
  a.step();
  b.step();
  for (int64_t i = 0; i < 7; ++i)
    for (int64_t j = 0; j < 5; ++j) EXPECT_NEAR(q[0].at(j * 7 + i), p[0].at(i * 5 + j), 1e-13);
}

TEST(Muon, AConvolutionIsAMatrixOfItsOutputs) {
  const Params flat = matrix({3, 8}), conv = matrix({3, 2, 2, 2}), tall = matrix({8, 1, 3});
  Muon a(flat), b(conv), c(tall);
  a.step();
  b.step();
  c.step();
  EXPECT_EQ(to_vector(flat[0]), to_vector(conv[0]));
  EXPECT_NE(to_vector(flat[0]), to_vector(tall[0]));
}

TEST(Muon, NoGradientNoStep) {
  const Params p = matrix({3, 4});
  const std::vector<double> before = to_vector(p[0]);
  kernels::Launch launch(p[0].device());
  kernels::fill(launch, 0, p[0].grad());
  Muon opt(p);
  opt.step();
  EXPECT_EQ(to_vector(p[0]), before);
}

// Groups of both kinds step like separate optimizers, and are saved and skipped together.
TEST(Muon, OtherParametersGoByAdamW) {
  Params a = problem(), b = problem();
  for (Params* p : {&a, &b}) p->push_back(from({1, 2, 3}, {3}).set_requires_grad());
  const auto grads = [](const Params& p, uint32_t t) {
    set_grads(Params(p.begin(), p.begin() + 4), t, f32);
    p[4].set_grad(from({0.5, -double(t), 0}, {3}));
  };
  const Params hidden = {b[1], b[3]}, rest = {b[0], b[2], b[4]};
  Muon both({a[1], a[3]}, {.lr = 0.05});
  both.add_group({a[0], a[2], a[4]}, AdamWOptions{.lr = 0.01, .weight_decay = 0.1});
  Muon muon(hidden, {.lr = 0.05});
  AdamW adamw(rest, {.lr = 0.01, .weight_decay = 0.1});
  EXPECT_EQ(both.momentum_name(0), "momentum");
  EXPECT_EQ(both.momentum_name(1), "beta1");
  for (uint32_t t = 1; t <= 4; ++t) {
    grads(a, t);
    grads(b, t);
    both.step();
    muon.step();
    adamw.step();
  }
  EXPECT_EQ(all_values(a), all_values(b));
  EXPECT_EQ(all_state(both, "state.4.exp_avg"), all_state(adamw, "state.2.exp_avg"));

  const std::string before = bits(both);
  const StateDict saved = snapshot(both.state_dict());
  grads(a, 9);
  both.step({.skip = scalar(1)});
  EXPECT_EQ(bits(both), before);
  both.step();
  EXPECT_NE(bits(both), before);
  both.load_state_dict(saved);
  EXPECT_EQ(state(both, "state.4.step"), 4);

  OneCycle cycle(both, {.max_lr = 0.1, .total_steps = 10});
  EXPECT_EQ(both.option("momentum", 0), 0.95);
  EXPECT_EQ(both.option("beta1", 1), 0.95);
}

}  // namespace optim_layerwise_test
}  // namespace mixtape::optim
