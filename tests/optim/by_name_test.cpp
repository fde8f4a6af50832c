// Optimizers and schedules by name: the same as by type, and messages that list what there is.
#include "optim/by_name.h"

#include <fmt/format.h>

#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_by_name_test {

std::vector<double> rates(std::string_view text, const ScheduleSteps& steps, int n) {
  SGD opt(problem(), {.lr = 1, .momentum = 0.9});
  const auto schedule = get_schedule(text, opt, steps);
  std::vector<double> all;
  for (int i = 0; i < n; ++i) {
    all.push_back(std::round(opt.lr() * 1e6) / 1e6);
    schedule->step();
  }
  return all;
}
using Rates = std::vector<double>;

TEST(ByName, EveryOptimizerHasItsOptions) {
  const std::vector<std::string> names = optimizer_names();
  EXPECT_EQ(names.size(), size_t(kernels::Optimizers::size));
  for (const std::string& name : names) {
    const auto optimizer = get(name, {zeros({3, 4})}, {{"lr", 0.25}});
    EXPECT_EQ(optimizer->name(), name);
    EXPECT_EQ(optimizer->lr(), 0.25);
  }
  // Set together, since one alone would not be valid.
  const auto sgd = get("sgd", problem(), {{"nesterov", 1}, {"momentum", 0.9}}, {.maximize = true});
  EXPECT_EQ(sgd->option("nesterov"), 1);
  EXPECT_EQ(sgd->option("momentum"), 0.9);
  EXPECT_EQ(sgd->option("maximize"), 1);
}

TEST(ByName, SaysWhichThereAre) {
  EXPECT_ERROR(get("adem", problem()), "\"adem\" is not an optimizer: sgd, adam, adamw, ");
  EXPECT_ERROR(
      get("sgd", problem(), {{"beta1", 1}}),
      "no option 'beta1' in sgd, which has lr, momentum, dampening, weight_decay, nesterov");
  EXPECT_ERROR(get("sgd", problem(), {{"lr", -1}}), "lr must be >= 0, got -1");
  EXPECT_ERROR(get("sgd", problem(), {{"nesterov", 1}}), "nesterov needs momentum > 0");
  SGD opt(problem(), {.lr = 1});
  const auto fails = [&](std::string_view text, const ScheduleSteps& steps = {.total_steps = 9}) {
    return error([&] { get_schedule(text, opt, steps); });
  };
  EXPECT_ERROR(get("lbfgs", problem()),
               "\"lbfgs\" takes a closure in its step, which no other optimizer does: make an "
               "optim::LBFGS(params, options) of optim/lbfgs.h and call step(closure)");
  EXPECT_ERROR(get("sam", problem()),
               "\"sam\" is a guard around a second backward pass, for any optimizer: "
               "optim::Ascended of optim/sam.h");
  EXPECT_EQ(fails("plateau"),
            "\"plateau\" is not a schedule: constant, step, exponential, multiplicative, linear, "
            "cosine, polynomial, wsd, cosine_restarts, one_cycle, cyclic");
  EXPECT_EQ(fails(""),
            "\"\" is not a schedule: constant, step, exponential, multiplicative, linear, cosine, "
            "polynomial, wsd, cosine_restarts, one_cycle, cyclic");
  EXPECT_EQ(fails("constant:0.5"),
            "the schedule \"constant:0.5\" has 1 numbers, constant takes 0 or 2");
  EXPECT_EQ(fails("cyclic:1,2"), "the schedule \"cyclic:1,2\" has 2 numbers, cyclic takes 3");
  EXPECT_EQ(fails("cyclic:2,1,3"), "the rates of cyclic must be 0 <= low < high, got 2 and 1");
  EXPECT_EQ(fails("cyclic:1,2,0"), "cyclic must rise in a step at least, got 0");
  EXPECT_EQ(opt.lr(), 1);  // as before
  EXPECT_EQ(fails("multiplicative:-1"), "step_lr: gamma must be >= 0, got -1");
  EXPECT_EQ(fails("constant:-1,2"), "constant: factor must be >= 0, got -1");
  EXPECT_EQ(fails("step"),
            "the schedule \"step\" has 0 numbers, step takes epochs, and perhaps a "
            "factor");
  EXPECT_EQ(fails("cosine:3"), "the schedule \"cosine:3\" has 1 numbers, cosine takes 0");
  EXPECT_EQ(fails("wsd:0.1:2"), "the schedule \"wsd:0.1:2\" has 2 numbers, wsd takes 1");
  EXPECT_EQ(fails("step:3,x"), "the schedule \"step:3,x\" has \"x\" in place of a number");
  EXPECT_EQ(fails("step:"), "the schedule \"step:\" has \"\" in place of a number");
  EXPECT_EQ(fails("step:1e999"), "the schedule \"step:1e999\" has \"1e999\" in place of a number");
  EXPECT_EQ(fails("step:1:2:3"),
            "the schedule \"step:1:2:3\" has 2 numbers, step takes epochs, "
            "and perhaps a factor");
  EXPECT_EQ(fails("cosine_restarts:1:2:3"),
            "the schedule \"cosine_restarts:1:2:3\" has 2 numbers, cosine_restarts takes 1, and "
            "perhaps a factor");
  EXPECT_EQ(fails("cosine_restarts:1:1.5"),
            "a cycle must be a whole number of times as long as the last, got 1.5");
  EXPECT_EQ(fails("cosine_restarts:0"), "cosine_restarts: first_steps must be > 0, got 0");
  EXPECT_EQ(fails("step:0"), "multi_step: a milestone must be > 0, got 0");
  EXPECT_EQ(fails("exponential:0"), "gamma must be > 0, got 0");
  EXPECT_EQ(fails("wsd:2"), "the fraction that decays must be from 0 to 1, got 2");
  EXPECT_EQ(fails("cosine", {.total_steps = 5, .warmup_steps = 5}),
            "warmup_steps must be < total_steps, got 5 and 5");
  EXPECT_EQ(fails("cosine", {}), "cosine: total_steps must be > 0, got 0");
  for (const std::string text : {"step:1,5", "constant:0.3,1", "constant:0.3,2"})
    EXPECT_EQ(fails(text, {.epoch_steps = 10, .warmup_steps = 20}),
              fmt::format("epoch {} ends within the 20 warmup_steps", text.ends_with('2') ? 2 : 1));
  EXPECT_EQ(fails("cosine", {.total_steps = 5, .epoch_steps = 0}),
            "epoch_steps must be > 0 and warmup_steps >= 0, got 0 and 0");
  EXPECT_EQ(fails("one_cycle", {.total_steps = 5, .warmup_steps = 2}),
            "one_cycle warms up itself, but warmup_steps is 2");
  EXPECT_EQ(fails("cyclic:1,2,3", {.warmup_steps = 2}),
            "cyclic warms up itself, but warmup_steps is 2");
  check_schedule("step:30,60,80");
  check_schedule("one_cycle");
  check_schedule("cyclic:0.1,1,2000");
  const auto refuses = [](std::string_view text) { return error([&] { check_schedule(text); }); };
  EXPECT_EQ(refuses("wsd:2"), "the fraction that decays must be from 0 to 1, got 2");
  EXPECT_EQ(refuses("polynomial:-1"), "polynomial: power must be >= 0, got -1");
  EXPECT_EQ(refuses("exponential:0"), "gamma must be > 0, got 0");
  EXPECT_EQ(refuses("step:0"), "multi_step: a milestone must be > 0, got 0");
  EXPECT_EQ(refuses("step:1e300"), "an epoch must be from 0 to 1e9, got 1e+300");
  EXPECT_EQ(refuses("step:-1"), "an epoch must be from 0 to 1e9, got -1");
  EXPECT_EQ(refuses("step:1:-1"), "multi_step: gamma must be >= 0, got -1");
  EXPECT_ERROR(check_schedule("steps:30"), "\"steps\" is not a schedule");
}

TEST(ByName, MuonLeavesWhatIsNoMatrixToAdamW) {
  const Tensor bias = zeros({3}).set_requires_grad(), weight = zeros({3, 4}).set_requires_grad();
  const auto opt = get("muon", {bias, weight}, {{"lr", 0.5}, {"weight_decay", 0.125}});
  ASSERT_EQ(opt->groups(), 2u);
  EXPECT_TRUE(opt->params(0)[0].is_same(weight));
  EXPECT_TRUE(opt->params(1)[0].is_same(bias));
  EXPECT_TRUE(opt->has_option("beta2", 1));
  EXPECT_EQ(opt->lr(1), 0.5);
  EXPECT_EQ(opt->option("weight_decay", 1), 0.125);
  EXPECT_EQ(get("muon", {weight})->groups(), 1u);
  EXPECT_ERROR(get("muon", {bias}), "muon: parameter 0 of shape [3] is not a matrix");
}

TEST(ByName, MaximizeIsAnOption) {
  EXPECT_EQ(get("sgd", problem(), {{"maximize", 1}})->option("maximize"), 1);
  EXPECT_EQ(get("sgd", problem(), {{"maximize", 0}}, {.maximize = true})->option("maximize"), 0);
  EXPECT_ERROR(get("sgd", problem(), {{"maximize", 2}}), "maximize must be 0 or 1, got 2");
}

// Squares of such gradients are beyond f32.
TEST(ByName, LargeGradientsLeaveFiniteWeights) {
  for (const std::string& name : optimizer_names())
    for (const double size : {2e19, 1e38}) {
      const Tensor w = zeros({65, 67});
      const auto opt = get(name, {w}, {{"lr", 1e-3}});
      for (int i = 0; i < 3; ++i) {
        w.set_grad(fmod(arange(65 * 67).to(f32), 7).reshape({65, 67}) * (size / 7));
        opt->step();
      }
      EXPECT_TRUE(all(isfinite(w)).item<bool>()) << name << " " << size;
    }
}

TEST(ByName, CyclesNeedNoMomentum) {
  for (const std::string& name : optimizer_names()) {
    const auto opt = get(name, {zeros({3, 4})}, {{"lr", 0.25}});
    const auto cycle = get_schedule("one_cycle", *opt, {.total_steps = 10});
    EXPECT_LT(opt->lr(), 0.25) << name;
    cycle->step();
    const auto cyclic = get_schedule("cyclic:0.1,0.5,2", *opt, {});
    EXPECT_EQ(opt->lr(), 0.1) << name;
    cyclic->step();
    EXPECT_DOUBLE_EQ(opt->lr(), 0.3) << name;
  }
}

TEST(ByName, AStateIsOfOneText) {
  SGD opt(problem(), {.lr = 1});
  const auto linear = get_schedule("linear", opt, {.total_steps = 9}),
             cosine = get_schedule("cosine", opt, {.total_steps = 9});
  cosine->load_state_dict(get_schedule("cosine", opt, {.total_steps = 9})->state_dict());
  EXPECT_ERROR(linear->load_state_dict(cosine->state_dict()), "cosine");
  const auto low = get_schedule("cyclic:0.1,1,4", opt, {}),
             high = get_schedule("cyclic:0.1,2,4", opt, {});
  EXPECT_ERROR(high->load_state_dict(low->state_dict()), "cyclic:0.1,1,4");
}

TEST(ByName, SchedulesFollowTheirText) {
  EXPECT_EQ(rates("constant", {}, 3), (Rates{1, 1, 1}));
  EXPECT_EQ(rates("step:1,2", {.epoch_steps = 2}, 5), (Rates{1, 1, 0.1, 0.1, 0.01}));
  EXPECT_EQ(rates("step:0.5:0.5", {.epoch_steps = 4}, 3), (Rates{1, 1, 0.5}));
  EXPECT_EQ(rates("exponential:0.25", {.epoch_steps = 2}, 3), (Rates{1, 0.5, 0.25}));
  EXPECT_EQ(rates("constant:0.25,1.5", {.epoch_steps = 2}, 5), (Rates{0.25, 0.25, 0.25, 1, 1}));
  EXPECT_EQ(rates("constant:0.25,2", {.epoch_steps = 2, .warmup_steps = 2}, 6),
            (Rates{0.333333, 0.666667, 0.25, 0.25, 1, 1}));
  EXPECT_EQ(rates("multiplicative:0.5", {}, 3), (Rates{1, 0.5, 0.25}));
  EXPECT_EQ(rates("multiplicative:0.5", {.epoch_steps = 2}, 5), (Rates{1, 1, 0.5, 0.5, 0.25}));
  EXPECT_EQ(rates("cyclic:0.1,0.5,1", {.epoch_steps = 2}, 6),
            (Rates{0.1, 0.3, 0.5, 0.3, 0.1, 0.3}));
  EXPECT_EQ(rates("linear", {.total_steps = 4}, 5), (Rates{1, 0.75, 0.5, 0.25, 0}));
  EXPECT_EQ(rates("polynomial:2", {.total_steps = 2}, 3), (Rates{1, 0.25, 0}));
  EXPECT_EQ(rates("cosine", {.total_steps = 2}, 3), (Rates{1, 0.5, 0}));
  EXPECT_EQ(rates("cosine_restarts:1:2", {.epoch_steps = 2}, 7),
            (Rates{1, 0.5, 1, 0.853553, 0.5, 0.146447, 1}));
  EXPECT_EQ(rates("wsd:0.5", {.total_steps = 8}, 6), (Rates{1, 1, 1, 1, 1, 0.5}));
  // Rises, then runs in the steps that are left; epochs count from the first step.
  EXPECT_EQ(rates("linear", {.total_steps = 6, .warmup_steps = 3}, 7),
            (Rates{0.25, 0.5, 0.75, 1, 0.666667, 0.333333, 0}));
  EXPECT_EQ(rates("step:2", {.epoch_steps = 2, .warmup_steps = 1}, 6),
            (Rates{0.5, 1, 1, 1, 0.1, 0.1}));
  SGD opt(problem(), {.lr = 3, .momentum = 0.9});
  const auto cycle = get_schedule("one_cycle", opt, {.total_steps = 10});
  EXPECT_NEAR(cycle->at(2), 3, 1e-12);
}

}  // namespace optim_by_name_test
}  // namespace mixtape::optim
