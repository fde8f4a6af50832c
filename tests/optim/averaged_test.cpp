// The means that a schedule-free optimizer finds: their values, and that training does not notice
// that they were looked at.
#include "optim/averaged.h"

#include <fmt/format.h>

#include "core/format.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
namespace optim_averaged_test {

// x += c (z - x), with the z of the optimizer's state.
TEST(Averaged, IsTheMeanOfAllWeightsByTheirRates) {
  for (const DType dtype : {f64, f32, bf16}) {
    const double warmup = dtype == f32 ? 3.5 : 5;
    const Params params = problem(dtype);
    ScheduleFreeAdamW opt(params, {.lr = 0.05, .weight_decay = 0.1, .warmup_steps = warmup},
                          {.multi_precision = true});
    std::vector<double> x = all_values(params);
    double sum = 0;
    for (uint32_t t = 1; t <= 12; ++t) {
      set_grads(params, t, dtype);
      opt.step();
      const double rate = std::min(1.0, t / warmup), c = rate * rate / (sum += rate * rate);
      std::vector<double> z;
      for (size_t k = 0; k < params.size(); ++k)
        for (const double value : all_state(opt, fmt::format("state.{}.z", k))) z.push_back(value);
      ASSERT_EQ(z.size(), x.size());
      for (size_t i = 0; i < x.size(); ++i) x[i] += c * (z[i] - x[i]);
    }
    const std::string before = bits(opt);
    {
      const Averaged means(opt);
      const std::vector<double> got = all_values(params);
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(got[i], x[i], dtype == f64 ? 1e-13 : dtype == f32 ? 2e-6 : 0x1p-8) << dtype;
    }
    EXPECT_EQ(bits(opt), before);
  }
}

TEST(Averaged, LookingChangesNoBitOfTraining) {
  for (const DType dtype : {f32, f16}) {
    const Params a = problem(dtype), b = problem(dtype);
    const Common common{.multi_precision = true, .shadow = bf16};
    ScheduleFreeAdamW plain(a, {.lr = 0.05}, common), seen(b, {.lr = 0.05}, common);
    {
      const Averaged nothing(seen);  // before the first step
      EXPECT_EQ(all_values(a), all_values(b));
    }
    for (uint32_t t = 1; t <= 6; ++t) {
      set_grads(a, t, dtype);
      set_grads(b, t, dtype);
      plain.step();
      seen.step();
      const uint64_t version = b[0].version();
      {
        const Averaged means(seen);
        if (t > 1) {
          EXPECT_NE(all_values(a), all_values(b));
        }
      }
      EXPECT_EQ(b[0].version(), version);
    }
    EXPECT_EQ(bits(plain), bits(seen));
  }
}

TEST(Averaged, MayBeKept) {
  const Params params = problem();
  ScheduleFreeAdamW opt(params, {.lr = 0.05});
  for (uint32_t t = 1; t <= 3; ++t) {
    set_grads(params, t, f32);
    opt.step();
  }
  std::vector<double> means;
  {
    Averaged kept(opt);
    kept.keep();
    means = all_values(params);
  }
  EXPECT_EQ(all_values(params), means);
  const Averaged again(opt);
  EXPECT_EQ(all_values(params), means);
}

TEST(Averaged, IsTheParameterBeforeTheFirstStep) {
  for (const DType dtype : {f32, bf16}) {
    const Params params = problem(dtype);
    ScheduleFreeAdamW opt(params, {}, {.multi_precision = true});
    set_grads(params, 1, dtype);
    opt.step({.skip = scalar(1)});
    const std::vector<double> before = all_values(params);
    const Averaged means(opt);
    EXPECT_EQ(all_values(params), before);
  }
}

TEST(Averaged, DoesNothingWithinAnother) {
  const Params params = problem();
  ScheduleFreeAdamW opt(params, {.lr = 0.05});
  for (uint32_t t = 1; t <= 3; ++t) {
    set_grads(params, t, f32);
    opt.step();
  }
  const std::string before = bits(opt);
  {
    const Averaged means(opt);
    const std::vector<double> seen = all_values(params);
    ScheduleFreeAdamW moved = std::move(opt);
    {
      const Averaged same(moved);
      EXPECT_EQ(all_values(params), seen);
    }
    EXPECT_EQ(all_values(params), seen);
    EXPECT_EQ(error([&] { moved.step(); }),
              "schedule_free_adamw: a step while averages stand in for the parameters");
    opt = std::move(moved);
  }
  EXPECT_EQ(bits(opt), before);
  opt.step();
}

struct OwnWithZ {  // a state of the same name
  static constexpr std::string_view name = "own";
  static constexpr kernels::StateInfo states[] = {"z"};
  double lr = 1;
  Options options() { return {{"lr", lr}}; }
  void update(Device, Updates, const StepControl&) const {}
};

TEST(Averaged, LeavesOtherOptimizersAlone) {
  const Params params = problem();
  AdamW opt(params);
  set_grads(params, 1, f32);
  opt.step();
  const std::string before = bits(opt);
  const Averaged means(opt);
  EXPECT_EQ(bits(opt), before);
  OptimizerOf<OwnWithZ> own(params);
  own.step();
  const Averaged nothing(own);
  EXPECT_EQ(bits(opt), before);
}

}  // namespace optim_averaged_test
}  // namespace mixtape::optim
