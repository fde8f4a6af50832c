// Schedules against PyTorch's numbers, resumed, and with steps that were skipped.
#include <algorithm>
#include <set>

#include "core/warn.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_schedule_test {

struct ScheduleReference {
  std::string name;
  std::vector<double> lr, momentum;
};
const ScheduleReference schedule_references[] = {
#include "tests/data/schedule_reference.inc"
};

using MakeSchedule = std::function<std::unique_ptr<Schedule>(Optimizer&)>;
template <class S, class Options>
MakeSchedule schedule(const Options& options) {
  return [options](Optimizer& opt) { return std::make_unique<S>(opt, options); };
}
MakeSchedule one_cycle(const OneCycleOptions& o) { return schedule<OneCycle>(o); }
template <class Options>
MakeSchedule closed(const Options& o) {
  return schedule<ClosedForm<Options>>(o);
}

// The schedules of make_schedule_reference.py.
const std::map<std::string, MakeSchedule> schedules = {
    {"one_cycle", one_cycle({.max_lr = 0.1, .total_steps = 10})},
    {"one_cycle/linear", one_cycle({.max_lr = 2,
                                    .total_steps = 12,
                                    .pct_start = 0.45,
                                    .div_factor = 10,
                                    .final_div_factor = 100,
                                    .anneal = Anneal::Linear,
                                    .base_momentum = 0.7,
                                    .max_momentum = 0.8})},
    {"one_cycle/steady",
     one_cycle({.max_lr = 0.1, .total_steps = 7, .pct_start = 0.5, .cycle_momentum = false})},
    {"one_cycle/falls", one_cycle({.max_lr = 0.1, .total_steps = 6, .pct_start = 0})},
    {"one_cycle/long", one_cycle({.max_lr = 0.1, .total_steps = 50})},
    {"cyclic", schedule<Cyclic>(CyclicOptions{.max_lr = 1, .steps_up = 4, .steps_down = 7})},
    {"cyclic/halving", schedule<Cyclic>(CyclicOptions{.max_lr = 0.9,
                                                      .steps_up = 5,
                                                      .cycle = Cycle::Halving,
                                                      .base_momentum = 0.6,
                                                      .max_momentum = 0.95})},
    {"cyclic/exponential", schedule<Cyclic>(CyclicOptions{.max_lr = 1.4,
                                                          .steps_up = 6,
                                                          .cycle = Cycle::Decaying,
                                                          .gamma = 0.97,
                                                          .cycle_momentum = false})},
    {"constant", closed(ConstantOptions{})},
    {"constant/long", closed(ConstantOptions{.factor = 0.6, .total_steps = 30})},
    {"multiplicative",
     closed(MultiplicativeOptions{
         .factor = [](int64_t step) { return 1 - 1 / static_cast<double>(step + 3); }})},
    {"cosine", closed(CosineOptions{.total_steps = 8, .min_lr = 0.01})},
    {"cosine/long", closed(CosineOptions{.total_steps = 50})},
    {"cosine_restarts", closed(CosineRestartsOptions{.first_steps = 7, .min_lr = 0.01})},
    {"cosine_restarts/longer", closed(CosineRestartsOptions{.first_steps = 3, .factor = 2})},
    {"step_lr", closed(StepLrOptions{.step_size = 7, .gamma = 0.5})},
    {"multi_step", closed(MultiStepOptions{.milestones = {3, 20, 20, 41}, .gamma = 0.3})},
    {"exponential", closed(ExponentialOptions{.gamma = 0.9})},
    {"linear_warmup", closed(LinearWarmupOptions{})},
    {"linear_warmup/falls",
     closed(LinearWarmupOptions{.start_factor = 0.9, .end_factor = 0.2, .total_steps = 30})},
    {"polynomial", closed(PolynomialOptions{.total_steps = 40, .power = 2.5})},
    {"polynomial/linear", closed(PolynomialOptions{})},
    {"lambda",
     closed(LambdaOptions{
         .factor = [](int64_t step) { return std::pow(0.95, static_cast<double>(step)) + 0.1; }})},
    {"sequential",
     closed(SequentialOptions{
         .parts = {LinearWarmupOptions{.start_factor = 0.1, .total_steps = 10},
                   CosineOptions{.total_steps = 30}, ExponentialOptions{.gamma = 0.8}},
         .milestones = {10, 40}})},
    {"chained",
     closed(ChainedOptions{.parts = {LinearWarmupOptions{.start_factor = 0.1, .total_steps = 10},
                                     ExponentialOptions{.gamma = 0.95},
                                     StepLrOptions{.step_size = 15, .gamma = 0.5}}})},
};
const std::map<std::string, PlateauOptions> plateaus = {
    {"plateau", {.patience = 2}},
    {"plateau/higher",
     {.better = Better::Higher,
      .factor = 0.5,
      .patience = 1,
      .threshold = 0.2,
      .threshold_mode = Threshold::Absolute,
      .cooldown = 3,
      .min_lr = 0.03}},
    {"plateau/eps", {.factor = 0.2, .patience = 0, .threshold = 0, .eps = 0.01}},
};

SGD sgd_for_schedules() { return SGD(problem(), {.lr = 0.4, .momentum = 0.9}); }

TEST(Schedule, StartsFromTheRateThatWasSet) {
  const Params p = problem();
  SGD opt({p[0]}, {.lr = 1});
  opt.add_group({p[1]}, {.lr = 2});
  {
    Cosine first(opt, {.total_steps = 4});
    for (int i = 0; i < 4; ++i) first.step();
    EXPECT_EQ(opt.lr(), 0);
    EXPECT_EQ(opt.base_lr(), 1);
  }
  {
    StepLr second(opt, {.step_size = 1, .gamma = 0.5});
    EXPECT_EQ(opt.lr(0), 1);
    EXPECT_EQ(opt.lr(1), 2);
    second.step();
    EXPECT_EQ(opt.lr(1), 1);
  }
  opt.set_lr(0.3, 0);  // a rate that is set is the new start
  const StepLr third(opt, {.step_size = 1});
  EXPECT_EQ(third.at(0, 0), 0.3);
  EXPECT_EQ(third.at(0, 1), 2);
  Exponential(opt, {.gamma = 0.5}).step();
  opt.set_lr(opt.lr(1), 1);  // even that which a schedule has left
  EXPECT_EQ(opt.base_lr(0), 0.3);
  EXPECT_EQ(opt.base_lr(1), 1);
}

// In PyTorch their factors would multiply.
TEST(Schedule, WarnsOfTwoThatStepInTurn) {
  std::vector<std::string> told;
  const OnWarning listen([&](const std::string& text) { told.push_back(text); });
  SGD opt(problem(), {.lr = 1});
  Exponential first(opt, {.gamma = 0.5}), second(opt, {.gamma = 0.25});
  for (int i = 0; i < 3; ++i) first.step();  // then the other, as a program's second phase
  const StateDict state = first.state_dict();
  second.step();
  second.step();
  first.load_state_dict(state);
  first.step();
  EXPECT_TRUE(told.empty());
  second.step();
  EXPECT_EQ(told, (std::vector<std::string>{
                      "two schedules step in turn, and the last decides the rate: make one Chained "
                      "of both"}));
  EXPECT_EQ(opt.lr(), std::pow(0.25, 3));
}

TEST(Schedule, FollowsAnOptimizerThatMoves) {
  std::vector<SGD> all;
  all.emplace_back(problem(), SGDOptions{.lr = 1});
  StepLr schedule(all[0], 1);
  Plateau plateau(all[0], {.patience = 0});
  for (int i = 0; i < 3; ++i) all.emplace_back(problem(), SGDOptions{.lr = 1});  // moves the first
  EXPECT_TRUE(schedule.refers_to(all[0]));
  EXPECT_TRUE(plateau.refers_to(all[0]));
  schedule.step();
  EXPECT_EQ(all[0].lr(), 0.1);
  for (int i = 0; i < 2; ++i) plateau.step(1);
  EXPECT_EQ(all[0].lr(), 0.1 * 0.1);

  SGD last(problem(), {.lr = 1});
  StepLr of_last(last, 1);
  last = std::move(all[0]);
  EXPECT_TRUE(schedule.refers_to(last));
  EXPECT_ERROR(of_last.step(), "this sgd has no parameters: it was moved from");
  all.clear();
  EXPECT_ERROR(of_last.step(),
               "the optimizer is gone: it must live as long as its schedules and Shards");
  schedule.step();
  EXPECT_EQ(last.lr(), std::pow(0.1, 2));
}

TEST(Schedule, TakesPyTorchsFirstArguments) {
  SGD opt(problem(), {.lr = 1});
  StepLR step(opt, 30, 0.5), short_step(opt, 30);
  EXPECT_EQ(step.at(60), 0.25);
  EXPECT_EQ(short_step.at(30), 0.1);
  MultiStepLR both(opt, {3, 8}, 0.5), milestones(opt, {3, 8}), braces(opt, {{3, 8}, 0.5});
  EXPECT_EQ(both.at(8), 0.25);
  EXPECT_EQ(milestones.at(3), 0.1);
  EXPECT_EQ(braces.at(3), 0.5);
  CosineAnnealingLR cosine(opt, 100, 0.125);
  EXPECT_EQ(cosine.at(100), 0.125);
  CosineAnnealingWarmRestarts restarts(opt, 10, 2);
  EXPECT_EQ(restarts.at(30), 1);
  LinearLR none(opt), linear(opt, 0.5, 1.0, 4), start(opt, 0.25);
  EXPECT_EQ(none.at(5), 1);
  EXPECT_EQ(linear.at(0), 0.5);
  EXPECT_EQ(linear.at(2), 0.75);
  EXPECT_EQ(start.at(0), 0.25);
  // Whole numbers stand for factors, too, but fractions for no number of steps.
  ConstantLR constant(opt, 0, 3);
  EXPECT_EQ(constant.at(2), 0);
  EXPECT_EQ(constant.at(3), 1);
  LinearLR whole(opt, 1, 0, 4);
  EXPECT_EQ(whole.at(1), 0.75);
  EXPECT_EQ(StepLR(opt, 30, 1).at(60), 1);
  LambdaLR half(opt, [](int64_t) { return 0.5; });
  EXPECT_EQ(half.at(1), 0.5);
  OneCycleLR cycle(opt, 2, 100);
  EXPECT_EQ(cycle.at(29), 2);
  static_assert(!std::is_constructible_v<StepLR, SGD&, double>);
  static_assert(!std::is_constructible_v<OneCycleLR, SGD&, int, double>);
}

TEST(Schedule, StartsFromTheRateThatWasSetBeforeSaving) {
  SGD opt(problem(), {.lr = 1}), resumed(problem(), {.lr = 7});
  EXPECT_FALSE(opt.state_dict().contains("group.0.base_lr"));
  Exponential(opt, {.gamma = 0.5}).step();
  StateDict state = opt.state_dict();
  resumed.load_state_dict(state);
  EXPECT_EQ(resumed.lr(), 0.5);
  EXPECT_EQ(resumed.base_lr(), 1);
  EXPECT_EQ(Exponential(resumed, {.gamma = 0.5}).at(1), 0.5);
  SGD unscheduled(problem(), {.lr = 0.5});
  resumed.load_state_dict(unscheduled.state_dict());
  EXPECT_EQ(resumed.base_lr(), 0.5);
  resumed.load_state_dict(state);
  for (auto& [name, t] : state)
    if (name == "group.0.base_lr") t = scalar(-1);
  EXPECT_EQ(error([&] { resumed.load_state_dict(state); }),
            "sgd: group.0.base_lr must be >= 0, got -1");
}

TEST(Schedule, RatesAndMomentaArePyTorchs) {
  EXPECT_EQ(std::size(schedule_references), schedules.size() + plateaus.size());
  for (const ScheduleReference& r : schedule_references) {
    if (plateaus.contains(r.name)) continue;
    SGD opt = sgd_for_schedules();
    const auto schedule = schedules.at(r.name)(opt);
    for (size_t t = 0; t < r.lr.size(); ++t) {
      EXPECT_NEAR(opt.lr(), r.lr[t], 1e-12) << r.name << " " << t;
      EXPECT_NEAR(opt.option("momentum"), r.momentum.empty() ? 0.9 : r.momentum[t], 1e-12)
          << r.name << " " << t;
      EXPECT_EQ(schedule->at(static_cast<int64_t>(t)), opt.lr());
      schedule->step();
    }
  }
}

// Schedules refer to an optimizer, which may be a member of the same struct.
static_assert(!std::is_move_constructible_v<OneCycle> && !std::is_copy_constructible_v<OneCycle>);
static_assert(!std::is_move_constructible_v<Plateau>);

TEST(Schedule, EveryOneResumesInTheMiddle) {
  for (const auto& [name, make] : schedules) {
    SGD a = sgd_for_schedules(), b(problem(), {.lr = 77, .momentum = 0.1});
    const auto whole = make(a), resumed = make(b);
    for (int t = 0; t < 4; ++t) whole->step();
    // In the order of names, as in a file.
    StateDict saved = snapshot(whole->state_dict());
    std::ranges::sort(saved, {}, &StateDict::value_type::first);
    resumed->load_state_dict(saved);
    EXPECT_EQ(resumed->steps(), 4);
    for (int t = 0; t < 2; ++t) {
      EXPECT_EQ(b.lr(), a.lr()) << name;
      whole->step(true);
      resumed->step(true);
      whole->step(false);
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

TEST(Schedule, OneCycleOfNoRateRisesToEachGroupsOwn) {
  const Params p = problem();
  Adam opt({p[0]}, {.lr = 0.1});
  opt.add_group({p[1]}, {.lr = 7});
  const OneCycle schedule(opt, {.total_steps = 10});
  EXPECT_NEAR(opt.lr(0), 0.1 / 25, 1e-15);
  EXPECT_NEAR(opt.lr(1), 7. / 25, 1e-15);
  EXPECT_NEAR(schedule.at(2, 0), 0.1, 1e-15);
  EXPECT_NEAR(schedule.at(2, 1), 7, 1e-15);
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
    bool is_deferred() const { return false; }
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

// Schedules of two kinds save the same names, so only the kind tells them apart.
TEST(Schedule, DoesNotResumeAnotherKind) {
  SGD opt(problem(), {.lr = 1});
  Cosine cosine(opt, {.total_steps = 9});
  Polynomial polynomial(opt, {});
  Plateau plateau(opt);
  cosine.step();
  EXPECT_EQ(error([&] { polynomial.load_state_dict(cosine.state_dict()); }),
            "schedule: the state must be of polynomial, got that of cosine");
  EXPECT_EQ(error([&] { cosine.load_state_dict(plateau.state_dict()); }),
            "schedule: the state must be of cosine, got that of plateau");
  EXPECT_EQ(error([&] { plateau.load_state_dict(cosine.state_dict()); }),
            "plateau: the state must be of plateau, got that of cosine");
  EXPECT_EQ(polynomial.steps(), 0);
  EXPECT_EQ(error([&] { cosine.load_state_dict({{"kind", scalar(3)}}); }),
            "schedule: kind must be a text, got f32 []");
}

// A failed load keeps a rate that was set by hand, too.
TEST(Schedule, AStateThatDoesNotFitChangesNoRate) {
  SGD opt(problem(), {.lr = 1, .momentum = 0.9}), other(problem(), {.lr = 1, .momentum = 0.9});
  OneCycle schedule(opt, {.max_lr = 1, .total_steps = 3}),
      longer(other, {.max_lr = 1, .total_steps = 9});
  for (int i = 0; i < 5; ++i) longer.step();
  opt.set_lr(0.123);
  opt.set_option("momentum", 0.5);
  EXPECT_EQ(error([&] { schedule.load_state_dict(longer.state_dict()); }),
            "schedule: step 5 is beyond the 3 total_steps of a one_cycle");
  EXPECT_EQ(opt.lr(), 0.123);
  EXPECT_EQ(opt.option("momentum"), 0.5);
  EXPECT_EQ(schedule.steps(), 0);
}

// The kind in a state is the name in errors.
TEST(Schedule, KindsDiffer) {
  SGD opt(problem(), {.lr = 1});
  std::set<std::string> kinds;
  for (const auto& [name, make] : schedules) {
    const auto schedule = make(opt);
    kinds.emplace(schedule->name());
    EXPECT_EQ(to_vector(schedule->state_dict()[0].second).size(), schedule->name().size());
  }
  EXPECT_EQ(kinds.size(), 14u);
}

TEST(Schedule, OneCycleNeedsAMomentum) {
  Adagrad opt(problem());
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3}); }),
            "one_cycle: adagrad has no momentum to cycle");
  OneCycle(opt, {.max_lr = 1, .total_steps = 3, .cycle_momentum = false});
  SGD ahead(problem(), {.momentum = 0.9, .nesterov = true});
  EXPECT_EQ(error([&] { OneCycle(ahead, {.max_lr = 1, .total_steps = 3, .base_momentum = 0}); }),
            "one_cycle: nesterov needs momentum > 0 and dampening 0, got 0 and 0");
  SGD plain({problem()[0]}, {.lr = 2, .momentum = 0.8});
  plain.add_group({problem()[1]}, {.momentum = 0.9, .nesterov = true});
  EXPECT_EQ(error([&] { OneCycle(plain, {.max_lr = 1, .total_steps = 3, .base_momentum = 0}); }),
            "one_cycle: nesterov needs momentum > 0 and dampening 0, got 0 and 0");
  EXPECT_EQ(plain.option("momentum"), 0.8);
  EXPECT_EQ(plain.lr(), 2);
}

TEST(Schedule, WarmsUpStaysAndDecays) {
  const WarmupStableDecayOptions o{
      .warmup_steps = 3, .total_steps = 20, .decay_steps = 4, .min_lr = 1};
  const auto rates = [](const WarmupStableDecayOptions& all, std::vector<int64_t> steps) {
    std::vector<double> r;
    for (const int64_t step : steps) r.push_back(all.rate(step, 9));
    return r;
  };
  using Rates = std::vector<double>;
  EXPECT_EQ(rates(o, {0, 1, 2, 3, 10, 16, 17, 20, 30}), (Rates{2.25, 4.5, 6.75, 9, 9, 9, 5, 1, 1}));
  WarmupStableDecayOptions linear = o, cosine = o, none = o;
  linear.decay = Decay::Linear, cosine.decay = Decay::Cosine, none.decay_steps = 0;
  EXPECT_EQ(rates(linear, {17, 18, 19}), (Rates{7, 5, 3}));
  EXPECT_NEAR(rates(cosine, {18})[0], 5, 1e-12);
  EXPECT_EQ(rates(none, {19, 20}), (Rates{9, 1}));
}

// Lengths that no number of steps reaches.
TEST(Schedule, RestartsMayBecomeVeryRare) {
  const CosineRestartsOptions o{.first_steps = 4, .factor = int64_t{1} << 62};
  EXPECT_EQ(o.rate(4, 0.5), 0.5);
  EXPECT_EQ(o.rate(1000, 0.5), 0.5);
}

// Parts begin where their milestone is, each group with its own rate, and may have parts.
TEST(Schedule, PartsOfParts) {
  const Params p = problem();
  SGD opt({p[0]}, {.lr = 1});
  opt.add_group({p[1]}, {.lr = 10});
  const SequentialOptions tail{.parts = {ExponentialOptions{.gamma = 0.5}, PolynomialOptions{}},
                               .milestones = {3}};
  Sequential schedule(opt,
                      {.parts = {LinearWarmupOptions{.start_factor = 0.5, .total_steps = 2}, tail},
                       .milestones = {2}});
  std::vector<double> first, second;
  for (int t = 0; t < 7; ++t) {
    first.push_back(opt.lr(0));
    second.push_back(opt.lr(1));
    schedule.step();
  }
  EXPECT_EQ(first, (std::vector<double>{0.5, 0.75, 1, 0.5, 0.25, 1, 0.8}));
  EXPECT_EQ(second, (std::vector<double>{5, 7.5, 10, 5, 2.5, 10, 8}));
}

// PyTorch's SequentialLR(opt, [warm, cosine], [4]): the parts are schedules, which do not step.
TEST(Schedule, PartsWithoutNames) {
  SGD opt(problem(), {.lr = 1});
  const LinearWarmupOptions rise{.start_factor = 0.25, .total_steps = 4};
  const CosineOptions fall{.total_steps = 8};
  Sequential named(opt, {.parts = {rise, fall}, .milestones = {4}});
  LinearLR warm(opt, 0.25, 1.0, 4);
  CosineAnnealingLR cosine(opt, 8);
  SequentialLR options(opt, {rise, fall}, {4}), schedules(opt, {warm, cosine}, {4});
  Sequential nested(opt, {schedules, fall}, {6});
  ChainedScheduler chained(opt, {.parts = {warm, cosine}});
  EXPECT_EQ(chained.at(2), warm.at(2) * cosine.at(2));
  for (int t = 0; t < 12; ++t) {
    EXPECT_EQ(options.at(t), named.at(t));
    EXPECT_EQ(schedules.at(t), named.at(t));
    EXPECT_EQ(nested.at(t), t < 6 ? named.at(t) : cosine.at(t - 6));
  }
  EXPECT_EQ(error([&] { SequentialLR(opt, {warm, cosine}, {4, 8}); }),
            error([&] { Sequential(opt, {.parts = {rise, fall}, .milestones = {4, 8}}); }));
}

// The outcome of a step that a device decides about: unknown until read.
struct Unknown {
  bool happened;
  bool is_deferred() const { return true; }
  explicit operator bool() const { return happened; }
};

// total_steps steps happened, and pending ones were skipped.
TEST(Schedule, StepsThatDidNotHappenMakeRoomAtTheEnd) {
  SGD opt = sgd_for_schedules();
  OneCycle schedule(opt, {.max_lr = 1, .total_steps = 3, .cycle_momentum = false});
  for (const bool happened : {true, false, true, false, true}) schedule.step(Unknown{happened});
  EXPECT_EQ(schedule.steps(), 3);
  EXPECT_EQ(opt.lr(), schedule.at(3));
  EXPECT_ERROR(schedule.step(Unknown{true}), "step 4 is beyond the 3 total_steps of a one_cycle");
  EXPECT_EQ(schedule.steps(), 3);
}

// --- Plateau ---

// As in make_schedule_reference.py.
double metric(size_t step) {
  constexpr double metrics[] = {1.0, 0.5, 0.4999999, 0.6, 0.3, 0.3, 0.7};
  return metrics[step % 7] / static_cast<double>(1 + step / 20);
}

TEST(Plateau, RatesArePyTorchs) {
  for (const ScheduleReference& r : schedule_references) {
    if (!plateaus.contains(r.name)) continue;
    SGD opt = sgd_for_schedules();
    Plateau plateau(opt, plateaus.at(r.name));
    for (size_t t = 0; t < r.lr.size(); ++t) {
      EXPECT_NEAR(opt.lr(), r.lr[t], 1e-12) << r.name << " " << t;
      plateau.step(metric(t));
    }
  }
}

TEST(Plateau, ResumesInTheMiddle) {
  for (const auto& [name, options] : plateaus)
    for (size_t stop = 1; stop < 30; ++stop) {
      SGD a = sgd_for_schedules(), b(problem(), {.lr = 77});
      Plateau whole(a, options), resumed(b, options);
      for (size_t t = 0; t < stop; ++t) whole.step(metric(t));
      resumed.load_state_dict(snapshot(whole.state_dict()));
      EXPECT_EQ(resumed.best(), whole.best());
      for (size_t t = stop; t < stop + 10; ++t) {
        EXPECT_EQ(b.lr(), a.lr()) << name;
        whole.step(metric(t));
        resumed.step(metric(t));
      }
      EXPECT_EQ(resumed.steps(), whole.steps());
    }
}

TEST(Plateau, EachGroupFallsFromItsOwnRate) {
  const Params p = problem();
  SGD opt({p[0]}, {.lr = 1});
  opt.add_group({p[1]}, {.lr = 0.2});
  Plateau plateau(opt, {.patience = 0, .min_lr = 0.05});
  plateau.step(1);
  EXPECT_EQ(opt.lr(0), 1);
  plateau.step(1);
  EXPECT_DOUBLE_EQ(opt.lr(0), 0.1);
  EXPECT_DOUBLE_EQ(opt.lr(1), 0.05);
  EXPECT_EQ(plateau.lr(1), opt.lr(1));
}

TEST(Plateau, NanIsNoBetter) {
  SGD opt(problem(), {.lr = 1});
  Plateau plateau(opt, {.patience = 0});
  plateau.step(nan);
  EXPECT_DOUBLE_EQ(opt.lr(), 0.1);
  EXPECT_EQ(plateau.best(), inf);
}

TEST(Plateau, ASkippedStepDoesNotCount) {
  SGD opt(problem(), {.lr = 1});
  Plateau plateau(opt, {.patience = 0});
  plateau.step(1, true);
  plateau.step(2, false);
  EXPECT_EQ(opt.lr(), 1);
  EXPECT_EQ(plateau.steps(), 1);
  plateau.step(2, true);
  EXPECT_DOUBLE_EQ(opt.lr(), 0.1);
}

TEST(Plateau, Errors) {
  SGD opt(problem());
  const auto fails = [&](const PlateauOptions& o) { return error([&] { Plateau(opt, o); }); };
  EXPECT_EQ(fails({.factor = 1}), "plateau: factor must be in [0, 1), got 1");
  EXPECT_EQ(fails({.patience = -1}), "plateau: patience must be >= 0, got -1");
  EXPECT_EQ(fails({.threshold = -1}), "plateau: threshold must be >= 0, got -1");
  EXPECT_EQ(fails({.cooldown = -1}), "plateau: cooldown must be >= 0, got -1");
  EXPECT_EQ(fails({.min_lr = -1}), "plateau: min_lr must be >= 0, got -1");
  EXPECT_EQ(fails({.eps = -1}), "plateau: eps must be >= 0, got -1");

  Plateau plateau(opt, {.patience = 0});
  const StateDict good = snapshot(plateau.state_dict());
  const auto with = [&](const std::string& name, const Tensor& t) {
    StateDict dict = good;
    const auto at = std::ranges::find(dict, name, &StateDict::value_type::first);
    if (at == dict.end())
      dict.emplace_back(name, t);
    else
      at->second = t;
    return error([&] { plateau.load_state_dict(dict); });
  };
  EXPECT_EQ(with("step", scalar(-1)),
            "plateau: step must be a whole number from 0 to 9007199254740992, got -1");
  EXPECT_EQ(with("bad_steps", scalar(-1)),
            "plateau: bad_steps must be a whole number from 0 to 9007199254740992, got -1");
  EXPECT_EQ(with("cooldown", scalar(nan)),
            "plateau: cooldown must be a whole number from 0 to 9007199254740992, got nan");
  EXPECT_EQ(with("group.0.lr", scalar(-1)), "plateau: group.0.lr must be >= 0, got -1");
  EXPECT_EQ(with("best", from({1, 2}, {2})), "plateau: best must be one number, got shape [2]");
  EXPECT_EQ(with("best", {}), "plateau: best is an undefined tensor");
  EXPECT_EQ(with("worst", scalar(1)), "plateau: unexpected key 'worst'");
  EXPECT_EQ(error([&] { plateau.load_state_dict({}); }), "plateau: kind is missing");
  EXPECT_EQ(error([&] { plateau.load_state_dict({good[0]}); }), "plateau: best is missing");
  EXPECT_EQ(opt.lr(), 1e-3);
}

TEST(Schedule, OptionsOutOfRange) {
  SGD opt(problem());
  const auto fails = [&]<class Options>(const Options& o) {
    return error([&] { ClosedForm<Options>(opt, o); });
  };
  EXPECT_EQ(fails(CosineOptions{}), "cosine: total_steps must be > 0, got 0");
  EXPECT_EQ(fails(CosineOptions{.total_steps = 3, .min_lr = -1}),
            "cosine: min_lr must be >= 0, got -1");
  EXPECT_EQ(fails(CosineRestartsOptions{}), "cosine_restarts: first_steps must be > 0, got 0");
  EXPECT_EQ(fails(CosineRestartsOptions{.first_steps = 1, .factor = 0}),
            "cosine_restarts: factor must be > 0, got 0");
  EXPECT_EQ(fails(CosineRestartsOptions{.first_steps = 1, .min_lr = -1}),
            "cosine_restarts: min_lr must be >= 0, got -1");
  EXPECT_EQ(fails(StepLrOptions{}), "step_lr: step_size must be > 0, got 0");
  EXPECT_EQ(fails(StepLrOptions{.step_size = 1, .gamma = -1}),
            "step_lr: gamma must be >= 0, got -1");
  EXPECT_EQ(fails(MultiStepOptions{.milestones = {3, 0}}),
            "multi_step: a milestone must be > 0, got 0");
  EXPECT_EQ(fails(MultiStepOptions{.milestones = {3}, .gamma = nan}),
            "multi_step: gamma must be >= 0, got nan");
  EXPECT_EQ(fails(ExponentialOptions{}), "exponential: gamma must be > 0, got 0");
  EXPECT_EQ(fails(LinearWarmupOptions{.total_steps = 0}),
            "linear_warmup: total_steps must be > 0, got 0");
  EXPECT_EQ(fails(LinearWarmupOptions{.start_factor = -1}),
            "linear_warmup: start_factor must be >= 0, got -1");
  EXPECT_EQ(fails(LinearWarmupOptions{.end_factor = -1}),
            "linear_warmup: end_factor must be >= 0, got -1");
  EXPECT_EQ(fails(PolynomialOptions{.total_steps = -3}),
            "polynomial: total_steps must be > 0, got -3");
  EXPECT_EQ(fails(PolynomialOptions{.power = -1}), "polynomial: power must be >= 0, got -1");
  EXPECT_EQ(fails(ConstantOptions{.factor = -1}), "constant: factor must be >= 0, got -1");
  EXPECT_EQ(fails(ConstantOptions{.total_steps = -1}),
            "constant: total_steps must be >= 0, got -1");
  EXPECT_EQ(fails(MultiplicativeOptions{}), "multiplicative: there is no factor");
  EXPECT_EQ(fails(WarmupStableDecayOptions{}),
            "warmup_stable_decay: total_steps must be > 0, got 0");
  EXPECT_EQ(fails(WarmupStableDecayOptions{.warmup_steps = 5, .total_steps = 9, .decay_steps = 5}),
            "warmup_stable_decay: warmup_steps and decay_steps must fit into 9 total_steps, got 5 "
            "and 5");
  EXPECT_EQ(fails(WarmupStableDecayOptions{.total_steps = 9, .min_lr = -1}),
            "warmup_stable_decay: min_lr must be >= 0, got -1");
  const auto cyclic = [&](const CyclicOptions& o) { return error([&] { Cyclic(opt, o); }); };
  EXPECT_EQ(cyclic({}), "cyclic: max_lr must be > 0, got 0");
  EXPECT_EQ(cyclic({.max_lr = 1, .steps_up = 0}),
            "cyclic: steps_up must be > 0 and steps_down >= 0, got 0 and 0");
  EXPECT_EQ(cyclic({.max_lr = 1, .gamma = 0}), "cyclic: gamma must be > 0, got 0");
  EXPECT_EQ(cyclic({.max_lr = 1, .base_momentum = 0.95}),
            "cyclic: base_momentum and max_momentum must be a range in [0, 1), got 0.95 and 0.9");
  EXPECT_EQ(fails(LambdaOptions{}), "lambda: there is no factor");
  EXPECT_EQ(fails(LambdaOptions{.factor = [](int64_t) { return -1.0; }}),
            "lambda: lr must be >= 0, got -0.001");
  const Curve part = PolynomialOptions{};
  EXPECT_EQ(fails(SequentialOptions{}),
            "sequential: there must be a milestone between any two of 0 parts, got 0");
  EXPECT_EQ(fails(SequentialOptions{.parts = {part, part}}),
            "sequential: there must be a milestone between any two of 2 parts, got 0");
  EXPECT_EQ(fails(SequentialOptions{.parts = {part, part, part}, .milestones = {5, 5}}),
            "sequential: a milestone must be > 5, got 5");
  EXPECT_EQ(fails(SequentialOptions{.parts = {part, part}, .milestones = {0}}),
            "sequential: a milestone must be > 0, got 0");
  EXPECT_EQ(fails(ChainedOptions{}), "chained: there are no parts");
  EXPECT_EQ(error([] { Curve(CosineOptions{}); }), "cosine: total_steps must be > 0, got 0");
  EXPECT_EQ(opt.lr(), 1e-3);
}

TEST(Schedule, Errors) {
  SGD opt(problem());
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 0, .total_steps = 3}); }),
            "one_cycle: max_lr of group 0 must be > 0, got 0");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1}); }),
            "one_cycle: total_steps must be > 0, got 0");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .pct_start = 1.5}); }),
            "one_cycle: pct_start must be from 0 to 1, got 1.5");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .div_factor = 0}); }),
            "one_cycle: div_factor must be > 0, got 0");
  EXPECT_EQ(error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .final_div_factor = -1}); }),
            "one_cycle: final_div_factor must be > 0, got -1");
  EXPECT_EQ(
      error([&] { OneCycle(opt, {.max_lr = 1, .total_steps = 3, .base_momentum = 0.96}); }),
      "one_cycle: base_momentum and max_momentum must be a range in [0, 1), got 0.96 and 0.95");

  OneCycle schedule(opt, {.max_lr = 1, .total_steps = 2});
  schedule.step();
  const double last = opt.lr();
  schedule.step();
  EXPECT_EQ(opt.lr(), last);
  EXPECT_EQ(error([&] { schedule.step(); }), "step 3 is beyond the 2 total_steps of a one_cycle");
  EXPECT_EQ(schedule.steps(), 2);

  const StateDict::value_type kind{"kind", from_text("one_cycle")};
  EXPECT_EQ(error([&] { schedule.load_state_dict({}); }), "schedule: kind is missing");
  EXPECT_EQ(error([&] { schedule.load_state_dict({kind, {"step", scalar(1)}}); }),
            "schedule: group.0.base_lr is missing");
  EXPECT_EQ(error([&] { schedule.load_state_dict({kind}); }), "schedule: step is missing");
  EXPECT_EQ(error([&] { (void)schedule.at(0, 1); }),
            "group 1 is out of range for the 1 groups that one_cycle began with");
  StateDict many = schedule.state_dict();
  many.emplace_back("coming", filled({int64_t(Schedule::lag) + 1}, 1, f32, Device::cpu()));
  EXPECT_EQ(error([&] { schedule.load_state_dict(many); }),
            "schedule: coming must have shape [n], n <= 8, got [9]");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict(
                  {kind, {"step", scalar(1)}, {"lr", scalar(1)}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: unexpected key 'lr'");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({kind, {"step", {}}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: step is an undefined tensor");
  EXPECT_EQ(
      error([&] {
        schedule.load_state_dict({kind, {"step", scalar(-1)}, {"group.0.base_lr", scalar(1)}});
      }),
      "schedule: step must be a whole number from 0 to 9007199254740992, got -1");
  EXPECT_EQ(error([&] {
              schedule.load_state_dict({kind, {"step", scalar(9)}, {"group.0.base_lr", scalar(1)}});
            }),
            "schedule: step 9 is beyond the 2 total_steps of a one_cycle");
  EXPECT_EQ(schedule.steps(), 2);
}

}  // namespace optim_schedule_test
}  // namespace mixtape::optim
