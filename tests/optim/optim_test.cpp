// Steps against PyTorch's numbers, skipped and scaled steps, 16-bit dtypes, threads, memory.
#include <fmt/format.h>

#include "autograd/ops.h"
#include "kernels/cpu/loops/parallel.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
using namespace internal;
namespace optim_test {

// The largest difference of our parameters to PyTorch's after all steps.
double deviation(const std::string& name, const std::vector<double>& reference, DType dtype) {
  const Params params = problem(dtype);
  const auto opt = problems.at(name)(params);
  for (uint32_t t = 1; t <= optim_problem::steps; ++t) {
    set_grads(params, t, dtype);
    if (name.ends_with("/late") && t < optim_problem::late) params[1].set_grad({});
    opt->step();
  }
  const std::vector<double> ours = all_values(params);
  EXPECT_EQ(ours.size(), reference.size());
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i)
    worst = std::max(worst, std::abs(ours[i] - reference[i]));
  return worst;
}

TEST(Optim, StepsArePyTorchs) {
  EXPECT_EQ(references().size(), problems.size());
  for (const auto& [name, values] : references()) {
    EXPECT_LE(deviation(name, values, f32), 1e-6) << name;
    EXPECT_LE(deviation(name, values, f64), 1e-13) << name;
  }
}

TEST(Optim, ASkippedStepChangesNoBit) {
  for (const auto& [name, make] : problems) {
    const Params params = problem();
    const auto opt = make(params);
    const Tensor skip = scalar(0);
    for (uint32_t t = 1; t <= 3; ++t) {
      set_grads(params, t, f32);
      opt->step({.skip = skip});
    }
    const std::string before = bits(*opt);
    for (const double g : {1.0, inf, nan}) {
      set_grads(params, 9, f32, g);
      skip.set(0, 1);
      opt->step({.skip = skip});
      EXPECT_EQ(bits(*opt), before) << name;
    }
    set_grads(params, 4, f32);
    skip.set(0, 0);
    opt->step({.skip = skip});
    EXPECT_NE(bits(*opt), before) << name;
  }
}

// Skipped steps leave no trace, even before the first one.
TEST(Optim, SkippedStepsAreAsIfNeverTaken) {
  for (const auto& [name, make] : problems) {
    const Params a = problem(), b = problem();
    const auto skips = make(a), plain = make(b);
    uint32_t t = 1;
    for (const bool skipped : {true, false, false, true, true, false}) {
      set_grads(a, skipped ? 50 : t, f32, skipped ? inf : 1);
      skips->step({.skip = scalar(skipped)});
      if (skipped) continue;
      set_grads(b, t++, f32);
      plain->step();
    }
    EXPECT_EQ(bits(*skips), bits(*plain)) << name;
  }
}

TEST(Optim, StepCountAfterSkipOkOkIsTwo) {
  const Params params = problem();
  Adam opt(params);
  for (const double skip : {1.0, 0.0, 0.0}) {
    set_grads(params, 1, f32);
    opt.step({.skip = scalar(skip)});
  }
  EXPECT_EQ(state(opt, "state.0.step"), 2);
}

TEST(Optim, GradScaleMultipliesGradients) {
  for (const auto& [name, make] : problems) {
    const Params a = problem(), b = problem();
    const auto scaled = make(a), plain = make(b);
    const Tensor inverse = scalar(0x1p-16);
    for (uint32_t t = 1; t <= 5; ++t) {
      set_grads(a, t, f32, 65536);
      set_grads(b, t, f32);
      scaled->step({.grad_scale = inverse});
      plain->step();
    }
    EXPECT_EQ(bits(*scaled), bits(*plain)) << name;
  }
}

TEST(Optim, AParameterWithoutGradientKeepsItsState) {
  const Params params = problem();
  Adam opt(params);
  set_grads(params, 1, f32);
  params[1].set_grad({});
  opt.step();
  EXPECT_EQ(state(opt, "state.0.step"), 1);
  EXPECT_TRUE(std::isnan(state(opt, "state.1.step")));
  EXPECT_EQ(to_vector(params[1]), to_vector(value(1, 0, f32)));
}

TEST(Optim, AStepBumpsVersionsOfWhatItWrote) {
  const Params params = problem();
  SGD opt(params);
  set_grads(params, 1, f32);
  params[2].set_grad({});
  const uint64_t before[] = {params[0].version(), params[2].version()};
  opt.step();
  EXPECT_GT(params[0].version(), before[0]);
  EXPECT_EQ(params[2].version(), before[1]);
}

// --- dtypes ---

TEST(Optim, HalfParametersRoundAnF32Step) {
  for (const DType dtype : {f16, bf16})
    for (const DType grad_dtype : {f64, f32, f16, bf16}) {
      const Params half = problem(dtype);
      Params wide;
      for (const Tensor& p : half)
        wide.push_back(from(to_vector(p), p.shape()).set_requires_grad());
      AdamW a(half, {.lr = 0.05}), b(wide, {.lr = 0.05});
      for (uint32_t t = 1; t <= 3; ++t) {
        set_grads(half, t, grad_dtype);
        for (size_t k = 0; k < half.size();
             ++k) {  // the same gradients, and the parameters as rounded
          wide[k].set_grad(from(to_vector(half[k].grad()), wide[k].shape()));
          for (int64_t i = 0; i < wide[k].numel(); ++i) wide[k].set(i, half[k].at(i));
        }
        a.step();
        b.step();
        for (size_t k = 0; k < half.size(); ++k)
          EXPECT_EQ(to_vector(half[k]),
                    to_vector(from(to_vector(wide[k]), wide[k].shape(), dtype)));
      }
    }
}

TEST(Optim, MasterWeightsAccumulateWhatRoundingLoses) {
  for (const DType dtype : {f16, bf16}) {
    const Tensor plain = from({1, 1, 1}, {3}, dtype).set_requires_grad();
    const Tensor master = from({1, 1, 1}, {3}, dtype).set_requires_grad();
    SGD a({plain}, {.lr = 1e-4}), b({master}, {.lr = 1e-4}, {.multi_precision = true});
    for (int t = 0; t < 100; ++t) {
      plain.set_grad(from({1, 1, 1}, {3}, f16));
      master.set_grad(from({1, 1, 1}, {3}, f16));
      a.step();
      b.step();
    }
    EXPECT_EQ(plain.at(0), 1);
    EXPECT_NEAR(state(b, "state.0.master"), 0.99, 1e-5);
    EXPECT_EQ(master.at(0), from({state(b, "state.0.master")}, {1}, dtype).at(0));
    master.set(0, 3);  // weights were loaded: the master follows
    master.set_grad(from({1, 1, 1}, {3}, f16));
    b.step();
    EXPECT_NEAR(state(b, "state.0.master"), 3 - 1e-4, 1e-6);
  }
}

TEST(Optim, AStridedGradientIsTakenInOrder) {
  const Tensor p = from({0, 0, 0, 0, 0, 0}, {2, 3}).set_requires_grad();
  p.set_grad(from({1, 4, 2, 5, 3, 6}, {3, 2}).with_layout(Layout({2, 3}, {1, 2})));
  SGD opt({p}, {.lr = 1});
  opt.step();
  EXPECT_EQ(to_vector(p), (std::vector<double>{-1, -2, -3, -4, -5, -6}));
}

// The master moves as an f32 parameter would, and the parameter is the master rounded.
TEST(Optim, EveryOptimizerMovesMasterWeights) {
  for (const DType dtype : {f16, bf16}) {
    for (const auto& [name, make] : problems) {
      const Params half = problem(dtype);
      Params wide;
      for (const Tensor& p : half)
        wide.push_back(from(to_vector(p), p.shape()).set_requires_grad());
      const auto a = make(half, {.multi_precision = true}), b = make(wide);
      for (uint32_t t = 1; t <= 3; ++t) {
        set_grads(half, t, dtype);
        for (size_t k = 0; k < half.size(); ++k)
          wide[k].set_grad(from(to_vector(half[k].grad()), wide[k].shape()));
        a->step();
        b->step();
      }
      for (size_t k = 0; k < half.size(); ++k) {
        const auto master = all_state(*a, fmt::format("state.{}.master", k));
        EXPECT_EQ(master, to_vector(wide[k])) << name;
        EXPECT_EQ(to_vector(half[k]), to_vector(from(master, wide[k].shape(), dtype))) << name;
      }
    }
  }
}

struct Down {
  static constexpr std::string_view name = "down";
  double lr = 0.25;
  Options options() { return {{"lr", lr}}; }
  void update(Device, Updates updates, const StepControl&) const {
    for (const kernels::Update& u : updates)
      for (int64_t i = 0; i < u.param.size(); ++i) u.param.as<float>()[i] -= float(lr);
  }
};

TEST(Optim, OnesOwnMovesHalfWeightsAndCopies) {
  const DefaultDevice on_cpu(Device::cpu());  // where update() reads
  const Tensor half = ones({3}, bf16).set_requires_grad(), wide = ones({3}).set_requires_grad();
  OptimizerOf<Down> masters({half}, {}, {.multi_precision = true}),
      copies({wide}, {}, {.shadow = f16});
  for (int i = 0; i < 2; ++i) {
    half.set_grad(ones({3}));
    masters.step();
    wide.set_grad(ones({3}));
    copies.step();
  }
  EXPECT_EQ(half.at(0), 0.5);
  EXPECT_EQ(wide.shadow().at(0), 0.5);
}

TEST(Optim, BitsDoNotDependOnThreads) {
  const DefaultDevice cpu(Device::cpu());  // the threads are its own
  for (const auto& [name, make] : problems) {
    std::vector<std::string> results;
    for (const int threads : {1, 2, 5}) {
      const kernels::cpu::ThreadLimit limit(threads);
      Params params;
      for (const Shape& shape : {Shape{200, 170}, Shape{0, 3}, Shape{1, 7}, Shape{128, 128}})
        params.push_back(Tensor(shape, f32).set_requires_grad());
      params.push_back(Tensor({16385, 1}, f32).set_requires_grad());
      for (const Tensor& p : params) {
        p.set_grad(Tensor(p.shape(), bf16));
        for (uint32_t i = 0; i < p.numel(); ++i) {
          p.data<float>()[i] = static_cast<float>(optim_problem::value(0, i, 0));
          p.grad().data<BFloat16>()[i] = BFloat16(optim_problem::value(0, i, 1));
        }
      }
      const auto opt = make(params);
      const Tensor norm = clip_grad_norm(params, 0.5);
      opt->step();
      opt->step();
      results.push_back(bits(*opt) + std::to_string(norm.item()));
    }
    EXPECT_EQ(results[0], results[1]) << name;
    EXPECT_EQ(results[0], results[2]) << name;
  }
}

TEST(Optim, StepsAfterTheFirstAskTheSystemForNoMemory) {
  for (const auto& [name, make] : problems) {
    const Params params = problem();
    const auto opt = make(params);
    set_grads(params, 1, f32);
    const auto step = [&] {
      clip_grad_norm(params, 1);
      opt->step();
    };
    step();
    const int64_t before = memory_stats().system_calls;
    for (int i = 0; i < 3; ++i) step();
    EXPECT_EQ(memory_stats().system_calls, before) << name;
  }
}

TEST(Optim, ZeroGradDropsOrFills) {
  const Params params = problem();
  SGD opt(params);
  set_grads(params, 1, f16);
  const Tensor g = params[0].grad();
  opt.zero_grad(false);
  EXPECT_TRUE(params[0].grad().is_same(g));
  EXPECT_EQ(to_vector(g), (std::vector<double>{0, 0, 0}));
  opt.zero_grad();
  EXPECT_FALSE(params[0].grad());
  sum(params[0] * params[0]).backward({.create_graph = true});
  opt.zero_grad(false);
  EXPECT_FALSE(params[0].grad().requires_grad()) << "a history of zeros";
}

}  // namespace optim_test
}  // namespace mixtape::optim
