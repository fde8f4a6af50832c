// LAMB, LARS, Adafactor and Muon, which need a whole parameter.
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

// Parameters without elements to share, and stacks of matrices, by torch.optim.Adafactor.
TEST(Adafactor, ShapesArePyTorchs) {
  const auto numbers = [](int n, int t) {
    std::vector<double> all;
    for (int i = 0; i < n; ++i) all.push_back(((7 * i + 3 * t + 1) % 11 - 5) / 8.0);
    return all;
  };
  const Shape of[] = {{5}, {}, {2, 2, 3}, {1, 1, 2, 1}};
  const std::pair<AdafactorOptions, std::vector<double>> cases[] = {
      {{}, {-0.50308009161073852, 0.37483077611022259,  -0.13085229761392117, -0.62434331416518785,
            0.24481954302403749,  -0.50038051260583361, -0.50481898316405949, 0.37471534354609154,
            -0.13235564547150797, -0.62263169189601109, 0.24530898493780595,  -0.25126514821717655,
            0.62946677484364855,  0.12273920103684167,  -0.37318799939887776, 0.49723860116714935,
            0.002296554555190317, -0.50006966737753922, -0.50328565561632221, 0.37527304509990306}},
      {{.lr = 0.3, .beta2_decay = -0.6, .eps1 = 0.25, .eps2 = 0.5, .d = 1.5, .weight_decay = 0.1},
       {-0.56933665431477853, 0.2947313192316186,     -0.29476097331011175,  -0.49562441385731093,
        0.025145234224159253, -0.5314814878216334,    -0.6169304262495755,   0.27285176698351138,
        -0.32463298887901909, -0.4860968442127751,    0.0069461274242297736, -0.20207190749098819,
        0.73441570285389524,  -0.0023735755285753993, -0.18191855182808575,  0.32346781900366167,
        0.10956927113197254,  -0.59820922811618749,   -0.58760645631252917,  0.21023778023641818}}};
  for (const auto& [options, wanted] : cases) {
    Params p;
    for (const Shape& s : of)
      p.push_back(from(numbers(int(s.size()), 0), s, f64).set_requires_grad());
    Adafactor opt(p, options);
    for (int t = 1; t <= 4; ++t) {
      for (const Tensor& x : p) x.set_grad(from(numbers(int(x.numel()), t), x.shape(), f64));
      opt.step();
    }
    const std::vector<double> got = all_values(p);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-14) << i;
    EXPECT_EQ(opt.state_dict().at("state.2.row_var").shape(), (Shape{2, 2, 1}));
    EXPECT_EQ(opt.state_dict().at("state.2.col_var").shape(), (Shape{2, 1, 3}));
    EXPECT_EQ(opt.state_dict().at("state.1.variance").shape(), Shape{});
  }
}

// Rows and columns of any length, in chunks and lanes of which some are partly filled.
TEST(Adafactor, LargeMatricesAreSumsOfElements) {
  for (const Shape& shape : {Shape{3, 7000}, Shape{7000, 3}, Shape{130, 140}, Shape{40001, 1}}) {
    const Params p = matrix(shape, f64);
    const std::vector<double> before = to_vector(p[0]), g = to_vector(p[0].grad());
    const size_t rows = size_t(shape[0]), columns = size_t(shape[1]), n = rows * columns;
    std::vector<double> row(rows), column(columns);
    double all = 0, norm = 0, length = 0;
    for (size_t i = 0; i < n; ++i) {
      row[i / columns] += g[i] * g[i] / double(columns);
      column[i % columns] += g[i] * g[i] / double(rows);
      all += g[i] * g[i] / double(n);
      norm += before[i] * before[i] / double(n);
    }
    const auto direction = [&](size_t i) {
      return g[i] / std::sqrt(row[i / columns] * column[i % columns] / all);
    };
    for (size_t i = 0; i < n; ++i) length += direction(i) * direction(i) / double(n);
    Adafactor opt(p, {.lr = 0.5});
    opt.step();
    const double rate = 0.5 * std::sqrt(norm) / std::max(1.0, std::sqrt(length));
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(p[0].at(int64_t(i)), before[i] - rate * direction(i), 1e-10) << shape << i;
  }
}

// Means of rows and columns are f32 whatever is asked for, those of elements are not.
TEST(Adafactor, StatesOfFewNumbersStayWide) {
  Params p = matrix({64, 128});
  p.push_back(matrix({8192})[0]);
  Adafactor opt(p, {}, {.state = i8});
  opt.step();
  const StateDict dict = opt.state_dict();
  EXPECT_EQ(dict.at("state.0.row_var").dtype(), f32);
  EXPECT_EQ(dict.at("state.1.variance").dtype(), u8);
  StateDict wrong = dict;
  for (auto& [name, t] : wrong)
    if (name == "state.0.row_var") t = Tensor({64, 128}, f32);
  EXPECT_EQ(error([&] { opt.load_state_dict(wrong); }),
            "adafactor: state.0.row_var must have shape [64, 1], got [64, 128]");
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
