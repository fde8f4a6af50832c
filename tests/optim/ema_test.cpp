// Averages of weights: their values, and guards that apply them.
#include "tests/support/optim.h"

#include <fmt/format.h>

namespace mixtape::optim {
using namespace internal;
namespace optim_ema_test {

void set_all(const Params& params, uint32_t t) {
  for (uint32_t k = 0; k < params.size(); ++k)
    for (uint32_t i = 0; i < params[k].numel(); ++i)
      params[k].set(i, optim_problem::value(k, i, t));
}

TEST(Ema, IsTheRecursionInF64) {
  for (const bool warmup : {false, true})
    for (const DType dtype : {f64, f32, f16, bf16}) {
      const Params params = problem(dtype);
      Ema ema(params, {.decay = 0.3, .warmup = warmup});
      std::vector<double> wanted = all_values(params);
      for (uint32_t t = 0; t < 20; ++t) {
        set_all(params, t + 1);
        const double decay = warmup ? std::min(0.3, (1 + t) / (10.0 + t)) : 0.3;
        EXPECT_EQ(ema.decay(), decay);
        const std::vector<double> now = all_values(params);
        for (size_t i = 0; i < now.size(); ++i)
          wanted[i] = decay * wanted[i] + (1 - decay) * now[i];
        ema.update();
      }
      EXPECT_EQ(ema.updates(), 20);
      const std::vector<double> ours = all_values(ema.averages());
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_NEAR(ours[i], wanted[i], dtype == f64 ? 1e-15 : 2e-7);
      EXPECT_EQ(ema.averages()[0].dtype(), dtype == f64 ? f64 : f32);
    }
}

TEST(Ema, IsThePlainMeanIfAsked) {
  const Params params = problem();
  Ema ema(params, {.equal = true});
  std::vector<double> sums(all_values(params).size());
  for (uint32_t t = 1; t <= 5; ++t) {
    set_all(params, t);
    const std::vector<double> now = all_values(params);
    for (size_t i = 0; i < now.size(); ++i) sums[i] += now[i];
    ema.update();
  }
  const std::vector<double> ours = all_values(ema.averages());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], sums[i] / 5, 1e-6);
}

TEST(Ema, ForgetsWhatWasThereBeforeThePlainMean) {
  for (const double before : {1e8, inf}) {
    const Tensor w = from({before}, {1});
    Ema ema({w}, {.equal = true});
    w.set(0, 0.125);
    ema.update();
    EXPECT_EQ(ema.averages()[0].item(), 0.125);
  }
}

// Shared weights appear twice in a state dict.
TEST(Ema, GivesBackWhatIsThereTwice) {
  const Tensor w = from({1}, {1});
  Ema ema({w, w}, {.decay = 0.5});
  w.set(0, 3);
  ema.update();
  {
    const Ema::Applied on(ema);
    EXPECT_EQ(w.item(), 2);
  }
  EXPECT_EQ(w.item(), 3);
}

TEST(Ema, NarrowWeightsLoseNothing) {
  const Tensor w = from({1}, {1}, bf16);
  Ema ema({w}, {.decay = 0.999});
  w.set(0, 2);
  for (int t = 0; t < 10; ++t) ema.update();
  EXPECT_NEAR(ema.averages()[0].item(), 2 - std::pow(0.999, 10), 1e-6);  // less than a bf16 step
}

TEST(Ema, ASkippedStepDoesNotCount) {
  struct Result {
    bool stepped;
    bool is_deferred() const { return false; }
    explicit operator bool() const { return stepped; }
  };
  const Tensor w = from({1}, {1});
  Ema ema({w}, {.decay = 0.5});
  w.set(0, 2);
  ema.update(Result{false});
  ema.update(false);
  EXPECT_EQ(ema.averages()[0].item(), 1);
  EXPECT_EQ(ema.updates(), 0);
  ema.update(Result{true});
  EXPECT_EQ(ema.averages()[0].item(), 1.5);
  ema.update(true);
  EXPECT_EQ(ema.updates(), 2);
}

TEST(Ema, BuffersAreAveragedAndIntegersLeftOut) {
  const Tensor w = from({1}, {1}).set_requires_grad(), mean = from({3}, {1}),
               count = from({7}, {1}, i64);
  Ema ema({w, mean, count}, {.decay = 0.5});
  mean.set(0, 5);
  count.set(0, 9);
  ema.update();
  EXPECT_EQ(ema.averages().size(), 2u);
  const Ema::Applied averaged(ema);
  EXPECT_EQ(mean.item(), 4);
  EXPECT_EQ(count.item(), 9);
}

TEST(Ema, AppliedUntilTheGuardEnds) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Params params = problem(dtype);
    const Tensor handle = params[1];
    Ema ema(params, {.decay = 0.5});
    set_all(params, 1);
    ema.update();
    const std::vector<double> weights = all_values(params), averages = all_values(ema.averages());
    const uint64_t version = handle.version();
    const void* const data = handle.raw();
    {
      const Ema::Applied averaged(ema);
      EXPECT_NE(handle.raw(), data);
      EXPECT_EQ(handle.dtype(), dtype);
      EXPECT_TRUE(handle.requires_grad());
      const std::vector<double> now = all_values(params);
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_EQ(now[i], from({averages[i]}, {}, dtype).item());
      handle.set(0, 99);  // does not reach the average
    }
    EXPECT_EQ(all_values(params), weights);
    EXPECT_EQ(all_values(ema.averages()), averages);
    EXPECT_EQ(handle.raw(), data);
    EXPECT_EQ(handle.version(), version);  // not a write: f32 copies stay valid
  }
}

TEST(Ema, GuardsEndWithExceptionsAndNest) {
  const Tensor w = from({1}, {1});
  Ema ema({w}, {.decay = 0.5});
  w.set(0, 2);
  ema.update();
  try {
    const Ema::Applied outer(ema);
    const Ema::Applied inner(ema);
    EXPECT_EQ(w.item(), 1.5);
    EXPECT_EQ(error([&] { ema.update(); }), "ema: an update while the averages are applied");
    throw std::runtime_error("evaluation failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(w.item(), 2);
  ema.update();
  EXPECT_EQ(ema.updates(), 2);
}

// A write to a parameter invalidates its f32 master; a guard is not a write.
TEST(Ema, MasterWeightsSurviveAnEvaluation) {
  const Tensor a = from({1}, {1}, bf16).set_requires_grad(),
               b = from({1}, {1}, bf16).set_requires_grad();
  SGD with({a}, {.lr = 1e-4}, {.multi_precision = true}),
      without({b}, {.lr = 1e-4}, {.multi_precision = true});
  Ema ema({a});
  for (int t = 0; t < 5; ++t) {
    a.set_grad(from({1}, {1}));
    b.set_grad(from({1}, {1}));
    with.step();
    without.step();
    ema.update();
    const Ema::Applied averaged(ema);
  }
  EXPECT_EQ(bits(with), bits(without));
}

// Overwritten weights replace the optimizer's f32 masters.
TEST(Ema, OverwritesTensorsForGood) {
  const Tensor w = from({1}, {1}, bf16).set_requires_grad();
  SGD opt({w}, {.lr = 1}, {.multi_precision = true});
  Ema ema({w}, {.decay = 0.5});
  w.set_grad(from({-2}, {1}, bf16));
  opt.step();
  ema.update();
  EXPECT_EQ(w.item(), 3);
  {
    const Ema::Applied averaged(ema);
    EXPECT_EQ(error([&] { ema.overwrite_tensors(); }),
              "ema: overwriting tensors while the averages stand in their place");
  }
  ema.overwrite_tensors();
  EXPECT_EQ(w.item(), 2);
  opt.step();
  EXPECT_EQ(w.item(), 4);
}

TEST(Ema, ResumesExactly) {
  const Params a = problem(), b = problem();
  Ema whole(a, {.warmup = true}), resumed(b, {.warmup = true});
  for (uint32_t t = 1; t <= 3; ++t) {
    set_all(a, t);
    whole.update();
  }
  resumed.load_state_dict(snapshot(whole.state_dict()));
  set_all(a, 4);
  set_all(b, 4);
  whole.update();
  resumed.update();
  EXPECT_EQ(resumed.updates(), 4);
  EXPECT_EQ(all_values(whole.averages()), all_values(resumed.averages()));
}

TEST(Ema, Errors) {
  const Tensor w = from({1, 2}, {2}), strided = from({1, 2, 3, 4}, {2, 2});
  EXPECT_EQ(error([&] { Ema({w}, {.decay = 1.5}); }), "ema: decay must be from 0 to 1, got 1.5");
  EXPECT_EQ(error([&] { Ema({w}, {.decay = nan}); }), "ema: decay must be from 0 to 1, got nan");
  EXPECT_EQ(error([&] { Ema({}); }), "ema: no tensors to average");
  EXPECT_EQ(error([&] { Ema({from({1}, {1}, i64)}); }), "ema: no tensors to average");
  EXPECT_EQ(error([&] { Ema({w, {}}); }), "ema: tensor 1 is undefined");
  EXPECT_EQ(error([&] { Ema({w, strided.t()}); }), "ema: tensor 1 is strided: [1, 2] of [2, 2]");

  Ema moved({w});
  w.set_data(from({1, 2}, {2}, f64));
  EXPECT_EQ(
      error([&] { moved.update(); }),
      fmt::format("ema: tensor 0 is now f64 on {0}, but its average is f32 on {0}: make a new "
                  "Ema after moving a model",
                  w.device()));
  Ema dense({strided});
  strided.set_data(strided.with_layout(Layout({2, 2}, {1, 2})));
  EXPECT_EQ(error([&] { dense.update(); }), "ema: tensor 0 has become strided: [1, 2] of [2, 2]");

  const Tensor v = from({1, 2}, {2});
  Ema ema({v});
  EXPECT_EQ(error([&] { ema.load_state_dict({{"average.0", v}}); }), "ema: updates is missing");
  const auto load = [&](StateDict dict) {
    dict.emplace_back("updates", scalar(3));
    return error([&] { ema.load_state_dict(dict); });
  };
  EXPECT_EQ(load({}), "ema: average.0 is missing");
  EXPECT_EQ(load({{"average.0", scalar(1)}}), "ema: average.0 must have shape [2], got []");
  EXPECT_EQ(load({{"average.0", v}, {"average.1", v}}), "ema: unexpected key 'average.1'");
  EXPECT_EQ(error([&] { ema.load_state_dict({{"average.0", v}, {"updates", scalar(-1)}}); }),
            "ema: updates must be a whole number from 0 to 9007199254740992, got -1");
  EXPECT_EQ(ema.updates(), 0);
}

}  // namespace optim_ema_test
}  // namespace mixtape::optim
