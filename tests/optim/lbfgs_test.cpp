// L-BFGS: PyTorch's values and numbers of evaluations, resumed, and its messages.
#include "optim/lbfgs.h"

#include "autograd/autograd_meta.h"
#include "autograd/ops.h"
#include "core/warn.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_lbfgs_test {

struct LbfgsReference {
  std::string name;
  int64_t evaluations;
  std::vector<double> values;
};
const LbfgsReference lbfgs_references[] = {
#include "tests/data/lbfgs_reference.inc"
};
constexpr auto wolfe = LineSearch::StrongWolfe;
const std::map<std::string, LBFGSOptions> cases = {
    {"plain", {.lr = 0.1, .max_iter = 5}},
    {"short", {.lr = 0.3, .max_iter = 4, .history_size = 2}},
    {"wolfe", {.max_iter = 5, .line_search = wolfe}},
    {"wolfe/long", {.lr = 0.5, .max_iter = 8, .history_size = 3, .line_search = wolfe}},
    {"wolfe/few", {.max_iter = 10, .max_eval = 4, .line_search = wolfe}},
};

// Rosenbrock's function, as in make_lbfgs_reference.py.
struct Rosenbrock {
  Tensor x, y;
  LBFGS opt;
  explicit Rosenbrock(const LBFGSOptions& o, DType dtype = f64)
      : x(from({-1.2, 0.7, -0.5}, {3}, dtype).set_requires_grad()),
        y(from({1, -1, 2}, {3}, dtype).set_requires_grad()),
        opt({x, y}, o) {}
  double step() {
    return opt.step([&] {
      opt.zero_grad();
      const Tensor loss = sum(100 * square(y - square(x)) + square(1 - x));
      loss.backward();
      return loss;
    });
  }
};

TEST(LBFGS, StepsArePyTorchs) {
  EXPECT_EQ(std::size(lbfgs_references), cases.size());
  for (const LbfgsReference& r : lbfgs_references) {
    Rosenbrock f(cases.at(r.name));
    for (size_t t = 0; t < 6; ++t) {
      f.step();
      const std::vector<double> now = all_values({f.x, f.y});
      for (size_t i = 0; i < 6; ++i)
        EXPECT_NEAR(now[i], r.values[6 * t + i], 1e-6 * std::max(1.0, std::abs(now[i])))
            << r.name << " step " << t;
    }
    EXPECT_EQ(f.opt.evaluations(), r.evaluations) << r.name;
  }
}

TEST(LBFGS, FindsTheMinimumInF32AndBehindFrozenParameters) {
  Rosenbrock f({.max_iter = 100, .line_search = wolfe}, f32);
  const double first = f.step(), second = f.step();
  EXPECT_LT(second, first);
  for (const double v : all_values({f.x, f.y})) EXPECT_NEAR(v, 1, 1e-2);
  // One without a gradient stays.
  const Tensor a = from({3}, {1}).set_requires_grad(), b = from({5}, {1}).set_requires_grad();
  LBFGS opt({a, b}, {.line_search = wolfe});
  opt.step([&] {
    opt.zero_grad();
    const Tensor loss = sum(square(a - 1));
    loss.backward();
    return loss;
  });
  EXPECT_NEAR(a.item(), 1, 1e-4);
  EXPECT_EQ(b.item(), 5);
}

TEST(LBFGS, GoesOnFromASavedState) {
  const LBFGSOptions o{.max_iter = 4, .history_size = 5, .line_search = wolfe};
  Rosenbrock whole(o), resumed(o);
  for (int t = 0; t < 3; ++t) whole.step();
  resumed.opt.load_state_dict(snapshot(whole.opt.state_dict()));
  copy_(resumed.x.detach(), whole.x.detach());
  copy_(resumed.y.detach(), whole.y.detach());
  whole.step();
  resumed.step();
  EXPECT_EQ(all_values({resumed.x, resumed.y}), all_values({whole.x, whole.y}));
  EXPECT_EQ(resumed.opt.evaluations(), whole.opt.evaluations());
}

// Steps far below the precision of 16 bits add up, and go on from a saved state.
TEST(LBFGS, RoundsAsOtherOptimizersDo) {
  struct Descent {  // along a gradient of ones
    Tensor p;
    LBFGS opt;
    Descent(const Tensor& x, kernels::Rounding rounding)
        : p(x.set_requires_grad()), opt({p}, {.lr = 1e-4, .max_iter = 1, .rounding = rounding}) {}
    void steps(int n) {
      for (int i = 0; i < n; ++i)
        opt.step([&] {
          p.set_grad(ones(p.shape()));
          return zeros({});
        });
    }
    double lost(size_t i) const { return to_vector(opt.state_dict().at("compensation"))[i]; }
  };
  using kernels::Rounding;
  for (const DType dtype : {f16, bf16})
    for (const Rounding rounding : {Rounding::Nearest, Rounding::Stochastic, Rounding::Kahan}) {
      Descent whole(ones({512}, dtype), rounding);
      whole.steps(150);
      Descent resumed(whole.p.detach().clone(), rounding);
      resumed.opt.load_state_dict(snapshot(whole.opt.state_dict()));
      for (Descent* d : {&whole, &resumed}) d->steps(151);
      EXPECT_EQ(all_values({resumed.p}), all_values({whole.p}));
      const double value = mean(whole.p.to(f32)).item();
      if (rounding == Rounding::Kahan)
        EXPECT_NEAR(whole.p.at(0) + whole.lost(0), 0.97, 1e-6) << dtype;
      else
        EXPECT_NEAR(value, rounding == Rounding::Nearest ? 1 : 0.97, 2e-3) << dtype;
    }
  // A number that other code wrote has lost nothing.
  Descent d(ones({2}, bf16), Rounding::Kahan);
  d.steps(2);
  EXPECT_LT(d.lost(0), 0);
  d.p.set(0, 0x1p-6);
  d.opt.set_lr(1e-30);
  d.steps(1);
  EXPECT_EQ(d.lost(0), 0);
  EXPECT_LT(d.lost(1), 0);
}

// The largest number means until a tolerance is met.
TEST(LBFGS, TakesLimitsOfAnySize) {
  const LBFGSOptions few{.lr = 0.1, .max_iter = 5, .max_eval = 1000};
  LBFGSOptions many = few;
  many.max_eval = INT64_MAX;
  Rosenbrock a(few), b(many);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(a.step(), b.step());
  EXPECT_EQ(a.opt.evaluations(), b.opt.evaluations());
  Rosenbrock f({.max_iter = INT64_MAX, .line_search = wolfe});
  f.step();
  EXPECT_NEAR(all_values({f.x})[0], 1, 1e-3);
}

TEST(LBFGS, EndsWhereThereIsNothingToDo) {
  const Tensor a = from({1}, {1}, f64).set_requires_grad();
  LBFGS opt({a});
  const auto closure = [&] {
    opt.zero_grad();
    const Tensor loss = sum(square(a - 1)) + 7;
    loss.backward();
    return loss;
  };
  EXPECT_EQ(opt.step(closure), 7);
  EXPECT_EQ(opt.evaluations(), 1);
}

// Where a later evaluation throws, or has no gradient, parameters are those of the last good point.
TEST(LBFGS, GoesBackWhereATrialFails) {
  for (const LineSearch line_search : {LineSearch::None, wolfe})
    for (const bool throws : {true, false}) {
      const Tensor a = from({3}, {1}, f64).set_requires_grad();
      LBFGS opt({a}, {.line_search = line_search});
      int calls = 0;
      bool fails = true;
      const auto closure = [&] {
        opt.zero_grad();
        const bool now = ++calls > 1 && fails;
        if (now && throws) throw std::runtime_error("no data");
        const Tensor loss = sum(square(a - 1)) * (now ? nan : 1);
        loss.backward();
        return loss;
      };
      if (throws) {
        EXPECT_THROW(opt.step(closure), std::runtime_error);
      } else {
        EXPECT_EQ(error([&] { opt.step(closure); }), "lbfgs: a gradient is nan, must be finite");
      }
      EXPECT_EQ(a.item(), 3);
      fails = false;
      opt.step(closure);
      EXPECT_NEAR(a.item(), 1, 1e-6);
    }
  const Tensor a = from({nan}, {1}).set_requires_grad();
  LBFGS opt({a});
  EXPECT_EQ(error([&] {
              opt.step([&] {
                const Tensor loss = sum(square(a));
                loss.backward();
                return loss;
              });
            }),
            "lbfgs: a gradient is nan, must be finite");
}

TEST(LBFGS, SaysWhatIsWrong) {
  const Tensor a = from({1}, {1}).set_requires_grad();
  const auto fails = [&](const LBFGSOptions& o) { return error([&] { LBFGS({a}, o); }); };
  EXPECT_EQ(error([] { LBFGS({}); }), "lbfgs: no parameters to optimize");
  EXPECT_EQ(error([] { LBFGS({from({1}, {1}, i64)}); }),
            "lbfgs: parameter 0 must be a dense float leaf, got i64 [1]");
  EXPECT_EQ(error([] { LBFGS({Tensor()}); }),
            "lbfgs: parameter 0 must be a dense float leaf, got no tensor");
  EXPECT_EQ(fails({.lr = 0}), "lbfgs: lr must be > 0 and finite, got 0");
  EXPECT_EQ(fails({.max_iter = 0}), "lbfgs: max_iter must be > 0, got 0");
  EXPECT_EQ(fails({.max_eval = -1}), "lbfgs: max_eval must be >= 0, got -1");
  EXPECT_EQ(fails({.tolerance_grad = -1}), "lbfgs: tolerances must be >= 0, got -1 and 1e-09");
  EXPECT_EQ(fails({.history_size = 0}), "lbfgs: history_size must be > 0, got 0");
  EXPECT_EQ(error([&] { LBFGS({scalar(1), a, a}); }), "lbfgs: parameter 2 is also parameter 1");
  LBFGS opt({a});
  EXPECT_EQ(error([&] { opt.step([&] { return a + zeros({2}); }); }),
            "lbfgs: the closure must return one number, got [2]");
  EXPECT_EQ(error([&] { opt.step([] { return Tensor(); }); }),
            "lbfgs: the closure must return one number, got no tensor");
  EXPECT_EQ(error([&] { opt.step(nullptr); }),
            "lbfgs: step() needs a closure that returns the loss");
  a.set_grad(from({1}, {1}));
  a.autograd_meta().set_loss_scale({.number = 3});
  EXPECT_EQ(error([&] { opt.step([] { return scalar(1); }); }),
            "lbfgs: gradients are multiplied by a loss scale: call backward() of the loss itself");
  Rosenbrock f({.max_iter = 4});
  f.step();
  EXPECT_EQ(error([&] { opt.load_state_dict(f.opt.state_dict()); }),
            "lbfgs: direction must have shape [1], got [6]");
  EXPECT_EQ(error([&] { opt.load_state_dict({}); }), "lbfgs: iterations is missing");
}

TEST(LBFGS, WarnsIfTheClosureComputesNoGradients) {
  const Tensor a = from({1}, {1}).set_requires_grad();
  LBFGS opt({a});
  std::vector<std::string> warnings;
  const OnWarning listen([&](const std::string& text) { warnings.push_back(text); });
  opt.step([&] { return sum(a * a); });  // backward() is missing
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "lbfgs: a step without gradients changes nothing: the closure must call backward()");
}

}  // namespace optim_lbfgs_test
}  // namespace mixtape::optim
