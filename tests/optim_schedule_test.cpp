// Schedules against PyTorch's numbers, and with steps that were skipped.
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace {

struct ScheduleReference {
  std::string name;
  std::vector<double> lr, momentum;
};
const ScheduleReference schedule_references[] = {
#include "tests/data/schedule_reference.inc"
};

std::unique_ptr<Schedule> make_schedule(const std::string& name, Optimizer& opt) {
  if (name == "one_cycle")
    return std::make_unique<OneCycle>(opt, OneCycleOptions{.max_lr = 0.1, .total_steps = 10});
  if (name == "one_cycle/linear")
    return std::make_unique<OneCycle>(opt, OneCycleOptions{.max_lr = 2,
                                                           .total_steps = 12,
                                                           .pct_start = 0.45,
                                                           .div_factor = 10,
                                                           .final_div_factor = 100,
                                                           .anneal = Anneal::Linear,
                                                           .base_momentum = 0.7,
                                                           .max_momentum = 0.8});
  if (name == "one_cycle/steady")
    return std::make_unique<OneCycle>(
        opt, OneCycleOptions{
                 .max_lr = 0.1, .total_steps = 7, .pct_start = 0.5, .cycle_momentum = false});
  if (name == "one_cycle/falls")
    return std::make_unique<OneCycle>(
        opt, OneCycleOptions{.max_lr = 0.1, .total_steps = 6, .pct_start = 0});
  return std::make_unique<Cosine>(opt, CosineOptions{.total_steps = 8, .min_lr = 0.01});
}

TEST(Schedule, RatesAndMomentaArePyTorchs) {
  for (const ScheduleReference& r : schedule_references) {
    SGD opt(problem(), {.lr = 0.4, .momentum = 0.9});
    const auto schedule = make_schedule(r.name, opt);
    for (size_t t = 0; t < r.lr.size(); ++t) {
      EXPECT_NEAR(opt.lr(), r.lr[t], 1e-15) << r.name << " " << t;
      EXPECT_NEAR(opt.option("momentum"), r.momentum[t], 1e-15) << r.name << " " << t;
      EXPECT_EQ(schedule->at(static_cast<int64_t>(t)), t == 0 ? schedule->at(0) : opt.lr());
      schedule->step();
    }
  }
}

TEST(Schedule, OneCycleMovesBeta1AndEveryGroup) {
  const Params p = problem();
  Adam opt({p[0]});
  opt.add_group({p[1]}, {.lr = 7});
  OneCycle schedule(opt, {.max_lr = 0.1, .total_steps = 10});
  schedule.step();
  schedule.step();
  for (size_t g : {0, 1}) {
    EXPECT_NEAR(opt.lr(g), 0.1, 1e-15);
    EXPECT_NEAR(opt.option("beta1", g), 0.85, 1e-15);
  }
}

TEST(Schedule, CosineKeepsEachGroupsOwnRate) {
  const Params p = problem();
  SGD opt({p[0]}, {.lr = 1});
  opt.add_group({p[1]}, {.lr = 3});
  Cosine schedule(opt, {.total_steps = 4, .min_lr = 0});
  schedule.step();
  schedule.step();
  EXPECT_NEAR(opt.lr(0), 0.5, 1e-15);
  EXPECT_NEAR(opt.lr(1), 1.5, 1e-15);
}

TEST(Schedule, ASkippedStepDoesNotAdvance) {
  struct Result {
    bool stepped;
    explicit operator bool() const { return stepped; }
  };
  SGD opt(problem(), {.lr = 1});
  Cosine schedule(opt, {.total_steps = 4});
  schedule.step(Result{false});
  EXPECT_EQ(schedule.steps(), 0);
  EXPECT_EQ(schedule.lr(), 1);
  schedule.step(Result{true});
  EXPECT_EQ(schedule.steps(), 1);
  schedule.step(false);
  EXPECT_EQ(schedule.steps(), 1);
  schedule.step(true);
  EXPECT_EQ(schedule.lr(), schedule.at(2));
}

TEST(Schedule, ResumesWithTheRatesItBeganWith) {
  SGD opt(problem(), {.lr = 1});
  Cosine schedule(opt, {.total_steps = 9});
  for (int i = 0; i < 4; ++i) schedule.step();
  SGD other(problem(), {.lr = 0.3});
  Cosine resumed(other, {.total_steps = 9});
  resumed.load_state_dict(schedule.state_dict());
  EXPECT_EQ(resumed.steps(), 4);
  EXPECT_EQ(other.lr(), opt.lr());
  schedule.step();
  resumed.step();
  EXPECT_EQ(other.lr(), opt.lr());
}

TEST(Schedule, Errors) {
  SGD opt(problem());
  EXPECT_EQ(error([&] { OneCycle(opt, {.total_steps = 3}); }),
            "one_cycle: max_lr is 0, not a positive number");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1}); }),
            "one_cycle: total_steps is 0, not a positive number");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .pct_start = 1.5}); }),
            "one_cycle: pct_start is 1.5, not in [0, 1]");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .div_factor = 0}); }),
            "one_cycle: div_factor is 0, not a positive number");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .final_div_factor = -1}); }),
            "one_cycle: final_div_factor is -1, not a positive number");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .base_momentum = 0.96}); }),
            "one_cycle: momentum from 0.96 to 0.95 is not a range in [0, 1)");
  EXPECT_EQ(error([&] { Cosine(opt, {}); }), "cosine: total_steps is 0, not a positive number");
  EXPECT_EQ(error([&] { Cosine(opt, {.total_steps = 3, .min_lr = -1}); }),
            "cosine: min_lr is -1, not a number from 0");

  OneCycle schedule(opt, {.max_lr = 1, .total_steps = 2});
  schedule.step();
  const double last = opt.lr();
  schedule.step();
  EXPECT_EQ(opt.lr(), last);
  EXPECT_EQ(error([&] { schedule.step(); }), "step 3 of a schedule of 2");
  EXPECT_EQ(schedule.steps(), 2);

  EXPECT_EQ(error([&] { schedule.load_state_dict({}); }),
            "schedule: 0 values for 1 groups and a step");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({{"step", scalar(1)}, {"lr", scalar(1)}});
            }),
            "schedule: 'lr' where group.0.base_lr is expected");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({{"step", {}}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: step is no tensor");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({{"step", scalar(-1)}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: step is -1, not a number from 0");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({{"step", scalar(9)}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: step 9 of a schedule of 2");
  EXPECT_EQ(schedule.steps(), 2);
}

}  // namespace
}  // namespace mixtape::optim
