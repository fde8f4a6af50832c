// DataParallel: the same training on any number of ranks.

#include "dist/data_parallel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "dist/exchange.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/errors.h"
#include "tests/support/ranks.h"

namespace mixtape::dist {
namespace data_parallel_test {
using namespace internal;

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Net : nn::Module<Net> {
  nn::Linear unused{3, 3}, in{6, 16}, out{16, 4};
  nn::BatchNorm1d norm{16};
  nn::Dropout dropout{0.25};
  Tensor forward(const Tensor& x) const { return out(dropout(relu(norm(in(x))))); }
  MIXTAPE_FIELDS(unused, in, norm, dropout, out)
};

struct Job {
  DType low = f32;
  DataParallelOptions options = {.chunks = 8};
  int steps = 5;
  bool unscale = false, clips = true;
  ThreadsOptions threads = {};
  double bad_step = -1, bad_chunk = -1;  // where the loss is infinite, or
  bool bad_gradient = false;             // its gradient alone overflows
  int64_t hysteresis = 1, max_consecutive_skips = 0;
};

// Trains on every rank; returns a hash of all state, which is the same on all.
size_t train(int ranks, const Job& run) {
  size_t result = 0;
  std::mutex mutex;
  expect_fine(run_ranks(
      ranks,
      [&](const World& world) {
        // Others begin elsewhere: rank 0 decides.
        const Seed seed(world.rank() + 1);
        Net net;
        DataParallel parallel(net, run.options);
        optim::AdamW opt(net.parameters(), {.lr = 0.01});
        amp::GradScaler scaler(run.low, {.init_scale = 1024,
                                         .growth_interval = 2,
                                         .hysteresis = run.hysteresis,
                                         .max_consecutive_skips = run.max_consecutive_skips});
        RandomGenerator data(7);
        for (int i = 0; i < run.steps; ++i) {
          Batch whole;
          {
            const Seed of_data(data);
            whole = {randn({i == 3 ? 21 : 64, 6}), randint(0, 4, {i == 3 ? 21 : 64})};
            data.set_offset(data.offset() + 1000);
          }
          opt.zero_grad();
          int64_t c = parallel.part().first_chunk();
          for (const auto& [x, y, weight] :
               parallel.chunks(own_part(parallel.part(), whole.x, whole.y))) {
            Tensor loss;
            {
              const amp::Autocast on({.low = run.low});
              loss = cross_entropy(net(x), y);
            }
            if (i == run.bad_step && c == run.bad_chunk) {
              const Tensor& bias = net.out.bias;
              loss = run.bad_gradient ? loss + sum(bias - bias.detach()) * 1e38 * 1e3
                                      : loss * infinity;
            }
            ++c;
            scaler.scale(loss * weight).backward();
          }
          if (run.unscale) scaler.unscale(opt);
          if (run.clips)
            scaler.step(opt, {.clip_norm = 0.5});
          else
            scaler.step(opt);
          if (i == run.bad_step && run.max_consecutive_skips == 1) {
            const auto collapse = [&] {
              scaler.update();
              synchronize(DefaultDevice::current());  // a device tells later
              scaler.poll();
            };
            EXPECT_THROW(collapse(), amp::ScaleCollapse) << "rank " << world.rank();
            break;
          }
          scaler.update();
          if (i == run.bad_step && run.bad_gradient) {
            EXPECT_EQ(scaler.last_overflow().size(), 1u);
          }
        }
        EXPECT_EQ(scaler.counters().skipped, run.bad_step >= 0);
        StateDict all = net.state_dict();
        all.add("opt.", opt.state_dict());
        all.add("scaler.", scaler.state_dict());
        all.push_back({"next", rand({4})});
        const size_t hash = std::hash<std::string>()(bytes_of(all));
        const std::lock_guard lock(mutex);
        if (result == 0) result = hash;
        EXPECT_EQ(result, hash) << "rank " << world.rank();
      },
      run.threads));
  return result;
}

TEST(DataParallel, TheSameBitsOnAnyNumberOfRanks) {
  for (const DType low : {f32, bf16, f16}) {
    const size_t one = train(1, {low});
    for (const int ranks : {2, 4, 8}) EXPECT_EQ(one, train(ranks, {low})) << ranks;
  }
}

// Such numbers of ranks are not powers of two, or their chunks on one rank are not.
TEST(DataParallel, TheSameBitsForAnyNumberOfChunks) {
  const std::vector<std::pair<int64_t, std::vector<int>>> all = {
      {3, {3}}, {6, {3, 6}}, {12, {3, 6, 12}}, {20, {5}}, {28, {7}}};
  for (const auto& [chunks, sizes] : all)
    for (const DType low : {f32, f16}) {
      const Job run{.low = low, .options = {.chunks = chunks}, .steps = 3};
      const size_t one = train(1, run);
      for (const int ranks : sizes) EXPECT_EQ(one, train(ranks, run)) << chunks << " on " << ranks;
    }
}

TEST(DataParallel, NeitherOrderNorDelayNorBucketsChangeBits) {
  const size_t one = train(1, {});
  for (const double mb : {1e-6, 0.001, 100.0})
    EXPECT_EQ(one, train(4, {.options = {.chunks = 8, .bucket_mb = mb},
                             .threads = {.delay = 1e-4, .shuffles = true}}));
}

TEST(DataParallel, OneScaleWhereALossIsInfiniteOnOneRank) {
  for (const bool unscale : {false, true})
    for (const double chunk : {0, 7}) {
      const Job run{.low = f16, .unscale = unscale, .bad_step = 2, .bad_chunk = chunk};
      const size_t one = train(1, run);
      for (const int ranks : {2, 8}) EXPECT_EQ(one, train(ranks, run)) << chunk;
    }
}

TEST(DataParallel, OneVerdictWhereAGradientOverflowsOnOneRank) {
  for (const bool unscale : {false, true})
    for (const bool clips : {false, true})
      for (const double chunk : {0, 7}) {
        const Job run{.low = f16,
                      .unscale = unscale,
                      .clips = clips,
                      .bad_step = 2,
                      .bad_chunk = chunk,
                      .bad_gradient = true};
        const size_t one = train(1, run);
        for (const int ranks : {2, 8}) EXPECT_EQ(one, train(ranks, run)) << chunk;
      }
}

TEST(DataParallel, PatienceAndCollapseAreThoseOfAll) {
  for (const bool bad_gradient : {false, true}) {
    Job run{.low = f16, .bad_step = 2, .bad_chunk = 5, .bad_gradient = bad_gradient};
    run.hysteresis = 2;
    const size_t patient = train(1, run);
    EXPECT_EQ(patient, train(4, run));
    run.hysteresis = 1;
    EXPECT_EQ(patient != train(4, run), bad_gradient)
        << "an infinite loss is not the scale's fault";
    run.max_consecutive_skips = 1;
    EXPECT_EQ(train(1, run), train(4, run));
  }
}

// The gradients of a step of a Net without dropout and batch norm's noise: a linear model.
struct Line : nn::Module<Line> {
  nn::Linear fc{3, 2}, unused{2, 2};
  Tensor forward(const Tensor& x) const { return fc(x); }
  MIXTAPE_FIELDS(fc, unused)
};
struct Weights : nn::Module<Weights> {
  Tensor w;
  explicit Weights(const Tensor& values) : w(nn::parameter(values)) {}
  Tensor forward(const Tensor& x) const { return w * x; }
  MIXTAPE_FIELDS(w)
};
Line line() {
  const Seed seed(5);
  return Line();
}
Tensor fixed(const Shape& shape) {
  const Seed seed(9);
  return randn(shape);
}
Tensor x12() { return fixed({12, 3}); }
Tensor y12() { return fixed({12, 2}); }

// Two losses, each with a scale, an optimizer and parameters of its own.
TEST(DataParallel, EachLossHasItsOwnScaleOnAllRanks) {
  struct Two : nn::Module<Two> {
    Tensor a = nn::parameter(ones({2})), b = nn::parameter(ones({2}));
    Tensor forward(const Tensor& x) const { return a * x; }
    MIXTAPE_FIELDS(a, b)
  };
  for (const int ranks : {1, 2, 4})
    for (const int64_t bad : {0, 1, 3})
      expect_fine(run_ranks(ranks, [&](const World&) {
        Two net;
        DataParallel parallel(net, {.chunks = 4, .bucket_mb = bad == 0 ? 1e-6 : 4});
        optim::SGD of_a({net.a}, {.lr = 0.1}), of_b({net.b}, {.lr = 0.1});
        amp::GradScaler scaler({.init_scale = 16, .growth_interval = 1});
        const Batch own{ones({4 / ranks}), {}, {}, 4};
        int64_t chunk = parallel.part().first_chunk();
        for (const auto& part : parallel.chunks(own)) {
          const double factor = chunk++ == bad ? infinity : 1;
          (scaler.scale(sum(net.a) * part.weight) + scaler.scale(sum(net.b) * factor, 1))
              .backward();
        }
        EXPECT_TRUE(scaler.step(of_a));
        EXPECT_EQ(scaler.step(of_b, {.loss = 1}).cause(), amp::StepResult::Cause::Loss);
        scaler.update();
        EXPECT_EQ(scaler.scale_value(0), 32);
        EXPECT_EQ(scaler.scale_value(1), 16);
        EXPECT_EQ(scaler.counters(1).skipped, 1);
        EXPECT_EQ(scaler.last_overflow().size(), 1u);
        EXPECT_FLOAT_EQ(float(net.a.at(0)), 0.9f);
        EXPECT_EQ(net.b.at(0), 1);
      }));
}

TEST(DataParallel, LossesAreMatchedById) {
  struct Two : nn::Module<Two> {
    Tensor a = nn::parameter(ones({2})), b = nn::parameter(ones({2}));
    Tensor forward(const Tensor& x) const { return a * x; }
    MIXTAPE_FIELDS(a, b)
  };
  expect_fine(run_ranks(2, [&](const World& world) {
    Two net;
    DataParallel parallel(net);
    optim::SGD of_a({net.a}, {.lr = 0.1}), of_b({net.b}, {.lr = 0.1});
    amp::GradScaler scaler({.init_scale = 16, .growth_interval = 1});
    for (int step = 0; step < 2; ++step) {
      // In the second step, rank 1 has one loss only, which is infinite.
      const bool bad = step == 1 && world.rank() == 1;
      const Tensor first = scaler.scale(sum(net.a) * (bad ? infinity : 1));
      (bad ? first : first + scaler.scale(sum(net.b), 7)).backward();
      scaler.step(of_a);
      if (!bad) scaler.step(of_b, {.loss = 7});
      scaler.update();
      of_a.zero_grad();
      of_b.zero_grad();
    }
    EXPECT_EQ(scaler.scale_value(0), 32) << "the second step's loss tells nothing about the scale";
    EXPECT_EQ(scaler.counters(0).skipped, 1);
    EXPECT_EQ(scaler.scale_value(7), world.rank() == 0 ? 64 : 32);
  }));
  expect_fine(run_ranks(2, [&](const World&) {
    Two net;
    DataParallel parallel(net);
    amp::GradScaler scaler;
    EXPECT_ERROR(scaler.scale(sum(net.a), 8).backward(),
                 "losses of ranks must have ids from 0 to 7, got 8");
  }));
}

TEST(DataParallel, ASkippedChunkTakesTheStepOfOthers) {
  for (const bool infinite : {false, true})
    expect_fine(run_ranks(2, [&](const World& world) {
      Weights net(ones({2}));
      DataParallel parallel(net);
      optim::SGD opt(net.parameters(), {.lr = 0.1});
      amp::GradScaler scaler({.init_scale = 16, .growth_interval = 1});
      for (const auto& chunk : parallel.chunks(own_part(parallel.part(), x12(), y12())))
        if (world.rank() == 1)
          parallel.skip_chunk(&scaler);
        else
          scaler.scale(sum(net.w) * chunk.weight * (infinite ? infinity : 1)).backward();
      EXPECT_EQ(scaler.step(opt).cause(),
                infinite ? amp::StepResult::Cause::Loss : amp::StepResult::Cause::None);
      scaler.update();
      EXPECT_EQ(scaler.scale_value(), infinite ? 16 : 32);
      EXPECT_FLOAT_EQ(float(net.w.at(0)), infinite ? 1 : 0.95f);
    }));
}

TEST(DataParallel, ForgetsScalesOfEarlierSteps) {
  expect_fine(run_ranks(2, [&](const World& world) {
    Line net = line();
    DataParallel parallel(net);
    optim::SGD opt(net.parameters(), {.lr = 0.1});
    amp::GradScaler scaler({.init_scale = 16});
    for (int step = 0; step < 2; ++step) {
      Tensor loss = sum(net(x12()));
      if (step == 0 || world.rank() == 1) loss = loss + sum(net.unused.bias);
      scaler.scale(loss).backward();
      EXPECT_TRUE(scaler.step(opt));
      scaler.update(8);
      opt.zero_grad();
    }
  }));
}

// --- what grad() is ---

TEST(DataParallel, GivesTheMeanOverTheStep) {
  Line alone = line();
  mse_loss(alone(x12()), y12()).backward();
  for (const int64_t n : {12, 11, 7})
    for (const int ranks : {1, 2, 4}) {
      const Tensor x = narrow(x12(), 0, 0, n), y = narrow(y12(), 0, 0, n);
      Line whole = line();
      mse_loss(whole(x), y).backward();
      expect_fine(run_ranks(ranks, [&](const World&) {
        Line net = line();
        DataParallel parallel(net, {.chunks = 4});
        for (const auto& [cx, cy, weight] : parallel.chunks(own_part(parallel.part(), x, y)))
          (mse_loss(net(cx), cy) * weight).backward();
        for (int64_t i = 0; i < 6; ++i)
          EXPECT_NEAR(net.fc.weight.grad().at(i), whole.fc.weight.grad().at(i), 1e-6);
        EXPECT_FALSE(net.unused.weight.has_grad()) << "no rank had one: the optimizer leaves it";
      }));
    }
}

TEST(DataParallel, GivesTheMeanOfAnyNumberOfChunks) {
  Line whole = line();
  mse_loss(whole(x12()), y12()).backward();
  for (int64_t chunks = 1; chunks <= 12; ++chunks) {
    Line net = line();
    DataParallel parallel(net, {.chunks = chunks});
    for (const auto& [x, y, weight] : parallel.chunks(Batch{x12(), y12()}))
      (mse_loss(net(x), y) * weight).backward();
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(net.fc.weight.grad().at(i), whole.fc.weight.grad().at(i), 1e-6) << chunks;
  }
}

TEST(DataParallel, LeavesOutAStepWithFewerExamplesThanChunks) {
  expect_fine(run_ranks(2, [&](const World&) {
    Line net = line();
    DataParallel parallel(net, {.chunks = 8});
    int chunks = 0;
    for (const auto& chunk :
         parallel.chunks(own_part(parallel.part(), narrow(x12(), 0, 0, 5), y12())))
      chunks += chunk.weight > 0;
    EXPECT_EQ(chunks, 0);
    EXPECT_FALSE(net.fc.weight.has_grad());
  }));
}

TEST(DataParallel, SumsWhereTheProgramDivides) {
  Line whole = line();
  (sum(whole(x12())) / 12).backward();
  expect_fine(run_ranks(4, [&](const World& world) {
    Line net = line();
    DataParallel parallel(net, {.scale = Scale::Sum});
    const Batch own = own_part(parallel.part(), x12(), y12());
    const double all = world.sum(double(own.x.size(0)));
    (sum(net(own.x)) / all).backward();  // without chunks(): one backward() a step
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(net.fc.weight.grad().at(i), whole.fc.weight.grad().at(i), 1e-6);
  }));
}

TEST(DataParallel, AGradientOfOneRankIsOfAll) {
  expect_fine(run_ranks(2, [&](const World& world) {
    Line net = line();
    DataParallel parallel(net);
    Tensor loss = sum(net(x12()));
    if (world.rank() == 1) loss = loss + sum(net.unused.bias) * 6;
    loss.backward();
    EXPECT_EQ(to_vector(net.unused.bias.grad()), (std::vector<double>{3, 3}));
    EXPECT_FALSE(net.unused.weight.has_grad());
  }));
}

TEST(DataParallel, HoldAddsUpFirst) {
  Line whole = line();
  (sum(whole(x12())) * 2).backward();
  expect_fine(run_ranks(2, [&](const World&) {
    Line net = line();
    DataParallel parallel(net);
    const uint64_t before = parallel.bytes_sent();
    {
      const Hold hold(parallel);
      sum(net(x12())).backward();
    }
    EXPECT_EQ(parallel.bytes_sent(), before);
    sum(net(x12())).backward();
    EXPECT_EQ(to_vector(net.fc.weight.grad()), to_vector(whole.fc.weight.grad()));
    sum(net(x12())).backward();  // grad() was not cleared: it is added to
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(net.fc.weight.grad().at(i), 1.5 * whole.fc.weight.grad().at(i), 1e-5);
  }));
}

TEST(DataParallel, HooksOnAccumulatedGradientsSeeTheMean) {
  Line whole = line();
  sum(whole(x12())).backward();
  for (const int chunks : {2, 4})
    expect_fine(run_ranks(2, [&](const World& world) {
      Line net = line();
      DataParallel parallel(net, {.chunks = chunks});
      std::vector<Tensor> seen;
      const HookHandle hook = register_post_accumulate_hook(net.fc.weight, [&](const Tensor& p) {
        EXPECT_FALSE(grad_enabled());
        seen.push_back(p.grad().clone());
        p.set_grad({});
      });
      for (int i = 0; i < chunks; ++i) {  // two steps
        EXPECT_EQ(seen.size(), size_t(2 * i / chunks));
        (sum(net(x12())) * (world.rank() + 1)).backward();
      }
      ASSERT_EQ(seen.size(), 2u);
      EXPECT_FALSE(net.fc.weight.has_grad());
      EXPECT_TRUE(net.fc.bias.has_grad());
      for (const Tensor& mean : seen)
        for (int64_t i = 0; i < 6; ++i)
          EXPECT_NEAR(mean.at(i), 1.5 * whole.fc.weight.grad().at(i), 1e-5);
    }));
}

// Ranks that step by gradients of their own would get out of step.
TEST(DataParallel, RefusesGradientsThatItDoesNotAddUp) {
  expect_fine(run_ranks(2, [&](const World&) {
    Line net = line();
    DataParallel parallel(net);
    auto opt = amp::enable_mixed_precision(optim::SGD(net.parameters(), {.lr = 0.1}));
    EXPECT_ERROR(opt.compute_gradients(sum(net(x12()))),
                 "compute_gradients() has this process's own, which no DataParallel adds up");
    EXPECT_TRUE(bool(opt.minimize(sum(net(x12())))));
  }));
}

TEST(DataParallel, TwoModelsAreTwo) {
  expect_fine(run_ranks(2, [&](const World& world) {
    Line one = line(), two = line();
    DataParallel first(one), second(two);
    (sum(one(x12())) * (world.rank() + 1)).backward();
    EXPECT_FALSE(two.fc.weight.has_grad());
    const std::vector<double> of_one = to_vector(one.fc.weight.grad());
    sum(two(x12())).backward();
    EXPECT_EQ(to_vector(one.fc.weight.grad()), of_one);
    for (int64_t i = 0; i < 6; ++i)
      EXPECT_NEAR(of_one[size_t(i)], 1.5 * two.fc.weight.grad().at(i), 1e-5);
  }));
}

TEST(DataParallel, FollowsWhatIsFrozenAndThawed) {
  expect_fine(run_ranks(2, [&](const World& world) {
    Line net = line();
    net.fc.bias.set_requires_grad(false);
    DataParallel parallel(net);
    for (const bool thawed : {false, true, false}) {
      net.fc.bias.set_requires_grad(thawed);
      net.zero_grad();
      (sum(net(x12())) * (world.rank() + 1)).backward();
      EXPECT_EQ(net.fc.bias.has_grad(), thawed);
      if (thawed) {
        EXPECT_EQ(net.fc.bias.grad().at(0), 18);
      }
    }
  }));
}

TEST(DataParallel, OtherParametersThanRank0sAreNamed) {
  const auto errors = run_ranks(2, [](const World& world) {
    Line net = line();
    if (world.rank() == 1) net.unused.weight.set_requires_grad(false);
    DataParallel parallel(net);
  });
  for (const std::string& error : errors)  // on all ranks
    EXPECT_NE(error.find("rank 1 of 2 has other parameters or buffers than rank 0: unused.weight "
                         "[2, 2] of f32, frozen (rank 0: unused.weight [2, 2] of f32)"),
              std::string::npos)
        << error;
}

TEST(DataParallel, ARankWhoseParametersAreFrozenIsNamed) {
  const auto errors = run_ranks(2, [](const World& world) {
    nn::Linear net(2, 2);
    net.requires_grad_(world.is_first());
    DataParallel parallel(net);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("rank 1 of 2 has other parameters or buffers"), std::string::npos)
        << error;
}

TEST(DataParallel, FrozenParametersOfOtherShapesAreNamed) {
  const auto errors = run_ranks(2, [](const World& world) {
    Weights frozen(ones({world.rank() + 4}));
    nn::Sequential net(nn::Linear(2, 2));
    net.append(nn::Linear(2, world.rank() + 2));
    for (const Tensor& p : net.parameters()) p.set_requires_grad(p.size(0) == 2 && p.rank() == 1);
    DataParallel parallel(net);
  });
  EXPECT_NE(errors[1].find("rank 1 of 2 has other parameters or buffers than rank 0: "),
            std::string::npos)
      << errors[1];
}

// The least that ranks find, also on one whose own loss tells nothing.
TEST(DataParallel, RanksCalibrateTogether) {
  for (const double of_rank1 : {0x1p-4, 0x1p4, std::nan("")}) {
    double scales[2] = {};
    expect_fine(run_ranks(2, [&](const World& world) {
      Line net = line();
      DataParallel parallel(net);
      amp::GradScaler scaler(f16, {.calibrate = true});
      Tensor loss;
      {
        const amp::Autocast on({.low = f16});
        loss = sum(net(x12())) * (world.is_first() ? 1 : of_rank1);
      }
      scaler.scale(loss).backward();
      scales[world.rank()] = scaler.scale_value();
    }));
    EXPECT_EQ(scales[0], scales[1]);
    EXPECT_EQ(scales[0], of_rank1 > 1 ? 0x1p7 : 0x1p11) << of_rank1;
  }
}

TEST(DataParallel, SkippedChunksDoNotCalibrate) {
  double scales[2] = {};
  expect_fine(run_ranks(2, [&](const World& world) {
    Line net = line();
    auto parallel = std::make_unique<DataParallel>(net);
    parallel = std::make_unique<DataParallel>(net);  // ends the first after the second began
    amp::GradScaler scaler(f16, {.calibrate = true});
    if (world.is_first()) {
      const amp::Autocast on({.low = f16});
      scaler.scale(sum(net(x12()))).backward();
    } else {
      parallel->skip_chunk(&scaler);
    }
    scales[world.rank()] = scaler.scale_value();
  }));
  EXPECT_EQ(scales[0], 0x1p11);
  EXPECT_EQ(scales[1], 0x1p11);
}

TEST(DataParallel, SumsTravelAlong) {
  for (const int ranks : {1, 2, 4})
    expect_fine(run_ranks(ranks, [&](const World&) {
      Line net = line();
      DataParallel parallel(net, {.chunks = 4});
      for (const auto& [x, y, weight] : parallel.chunks(own_part(parallel.part(), x12(), y12()))) {
        const Tensor loss = mse_loss(net(x), y);
        parallel.send_along(std::vector<double>{x.at(0), 1});
        (loss * weight).backward();
      }
      EXPECT_EQ(
          parallel.sums(),
          (std::vector<double>{(x12().at(0) + x12().at(9)) + (x12().at(18) + x12().at(27)), 4}));
    }));
}

// --- bytes and dtypes ---

TEST(DataParallel, SendsTwiceItsShareOfTheBytes) {
  struct Wide : nn::Module<Wide> {
    nn::Linear fc{256, 200};
    Tensor forward(const Tensor& x) const { return fc(x); }
    MIXTAPE_FIELDS(fc)
  };
  for (const int ranks : {2, 4})
    for (const bool narrow : {false, true})
      expect_fine(run_ranks(ranks, [&](const World&) {
        Wide net;
        DataParallel parallel(net, {.wire = narrow ? std::optional(bf16) : std::nullopt});
        sum(net(ones({2, 256}))).backward();
        const uint64_t before = parallel.bytes_sent();
        sum(net(ones({2, 256}))).backward();
        const double share = 2.0 * (ranks - 1) / ranks * (257 * 200) * (narrow ? 2 : 4);
        EXPECT_NEAR(double(parallel.bytes_sent() - before) / share, 1, 0.01);
      }));
}

TEST(DataParallel, AScalerSendsNothingMore) {
  std::vector<uint64_t> sent(2);
  for (const bool enabled : {false, true})
    expect_fine(run_ranks(2, [&](const World& world) {
      Line net = line();
      DataParallel parallel(net);
      optim::SGD opt(net.parameters(), {.lr = 0.1});
      amp::GradScaler scaler({.enabled = enabled});
      const uint64_t before = parallel.bytes_sent();
      scaler.scale(sum(net(x12()))).backward();
      scaler.step(opt, {.clip_norm = 1.0});
      scaler.update();
      if (world.is_first()) sent[enabled] = parallel.bytes_sent() - before;
    }));
  EXPECT_GT(sent[0], 0u);
  EXPECT_EQ(sent[0], sent[1]);
}

TEST(DataParallel, AWireOf16BitsRoundsTwiceWhateverTheRanks) {
  constexpr int ranks = 64;
  const Seed seed(3);
  const Tensor g = randn({ranks, 1000});
  const Tensor exact = cast(g, f64).mean(0);
  expect_fine(run_ranks(ranks, [&](const World& world) {
    Weights net(zeros({1000}));
    DataParallel parallel(net, {.wire = bf16});
    sum(net(g.select(0, world.rank()))).backward();
    const Tensor error = cast(net.w.grad(), f64) - exact;
    const double relative = std::sqrt(sum(square(error)).item() / sum(square(exact)).item());
    EXPECT_LT(relative, 2.5e-3);
    EXPECT_GT(relative, 1e-4) << "it did travel in bf16";
  }));
}

TEST(DataParallel, AWireOfF16KeepsElevenBits) {
  expect_fine(run_ranks(2, [&](const World& world) {
    Weights net(zeros({2}));
    DataParallel parallel(net, {.wire = f16});
    const double one = world.is_first() ? 1 + 0x1p-10 : 1 + 0x1p-11;  // the second is rounded to 1
    sum(net(full({2}, one))).backward();
    EXPECT_EQ(net.w.grad().at(0), 1);  // 1 + 2^-11 is rounded, too
  }));
}

TEST(DataParallel, GradientsOf16BitsAreAddedInF32) {
  for (const int ranks : {1, 2, 8})
    expect_fine(run_ranks(ranks, [&](const World& world) {
      Weights net(ones({1}, f16));
      DataParallel parallel(net, {.chunks = 8, .scale = Scale::Sum});
      Batch own{zeros({8 / ranks}), {}, {}, 8};
      int64_t chunk = parallel.part().first_chunk();
      for (const auto& part : parallel.chunks(own))
        (sum(net.w) * (part.weight * (chunk++ == 0 ? 1 : 0x1p-11))).backward();
      EXPECT_EQ(net.w.grad().dtype(), f16);
      EXPECT_EQ(net.w.grad().item(), 1 + 0x1p-8) << world.size();
    }));
}

// --- mistakes ---

TEST(DataParallel, SaysWhatAChunkMustDo) {
  Line net = line();
  EXPECT_ERROR(DataParallel(net, {.chunks = -1}), "chunks must be >= 0, got -1");
  EXPECT_ERROR(DataParallel(net, {.bucket_mb = 0}), "bucket_mb must be > 0, got 0");
  EXPECT_ERROR(DataParallel(net, {.wire = f32}), "wire must be f16 or bf16, got f32");
  DataParallel parallel(net, {.chunks = 2});
  const Batch batch{x12(), y12()};
  const auto run = [&](auto body) {
    for (const auto& [x, y, weight] : parallel.chunks(batch)) body(mse_loss(net(x), y) * weight);
  };
  run([](const Tensor& loss) { loss.backward(); });
  EXPECT_ERROR(run([](const Tensor& loss) { loss.backward(); }),
               "fc.weight has a gradient already: call zero_grad() before the chunks of a step");
  net.zero_grad();
  EXPECT_ERROR(run([](const Tensor& loss) {
                 loss.backward({.retain_graph = true});
                 loss.backward();
               }),
               "a second backward() in one chunk");
}

TEST(DataParallel, SaysWhatAStepMustBe) {
  Line net = line();
  DataParallel parallel(net, {.chunks = 2});
  EXPECT_ERROR(parallel.send_along(std::vector<double>(257)),
               "at most 256 numbers may travel along, got 257");
  sum(net(x12())).backward();
  EXPECT_ERROR(parallel.chunks(Batch{x12(), y12()}), "chunks() in the middle of a step");
  sum(net(x12())).backward();
  net.zero_grad();
  for (const auto& [x, y, weight] : parallel.chunks(Batch{x12(), y12()})) {
    EXPECT_ERROR(parallel.chunks(Batch{x12(), y12()}), "chunks() within chunks()");
    (mse_loss(net(x), y) * weight).backward();
  }
  net.zero_grad();
  const Tensor y = net(x12());
  const HookHandle hook = register_hook(y, [](const Tensor&) -> Tensor { throw Error("broken"); });
  EXPECT_ERROR((sum(y) + sum(net.unused.bias)).backward(), "broken");
  EXPECT_ERROR(sum(net(x12())).backward(),
               "an exception interrupted an earlier step, which ranks cannot finish: make a new "
               "DataParallel");
  net.requires_grad_(false);
  EXPECT_ERROR(DataParallel(net, {.chunks = 2}), "no parameter trains");
}

TEST(DataParallel, SaysThatAChunkNeedsABackward) {
  Line net = line();
  DataParallel parallel(net, {.chunks = 2});
  const auto run = [&] {
    for (const auto& chunk : parallel.chunks(Batch{x12(), y12()})) EXPECT_EQ(chunk.weight, 1);
  };
  EXPECT_ERROR(run(), "a chunk ended without a backward() that reaches a parameter");
}

TEST(DataParallel, NamesAParameterThatJoinedLater) {
  const auto errors = run_ranks(2, [](const World&) {
    nn::Sequential net(nn::Linear(3, 3));
    DataParallel parallel(net);
    net.append(nn::Linear(3, 2));
    sum(net(x12())).backward();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("1.weight joined the model after its DataParallel"), std::string::npos)
        << error;
}

TEST(DataParallel, RanksMustHaveTheirPart) {
  const auto errors = run_ranks(2, [&](const World&) {
    Line net = line();
    DataParallel parallel(net);
    EXPECT_ERROR(parallel.chunks(Batch{x12(), y12()}), "the batch does not say how many examples");
    EXPECT_ERROR(parallel.chunks(Batch{x12(), y12(), {}, 12}),
                 " of 2 has 6 of 12 examples of the step, not 12");
  });
  expect_fine(errors);
}

}  // namespace data_parallel_test
}  // namespace mixtape::dist
