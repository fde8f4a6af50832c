// Plans against measured steps, to the byte.
#include "amp/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>

#include "autograd/checkpoint.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "optim/by_name.h"
#include "optim/clip.h"
#include "optim/sam.h"
#include "tests/support/errors.h"
#include "tests/support/planned.h"

namespace mixtape::amp {
namespace plan_test {

using test::planned_training;

// A layer of n to n numbers, trained by SGD.
TrainingMaker layer(int64_t n, const optim::SGDOptions& options = {}) {
  return [=](int64_t batch_size) {
    const auto net = std::make_shared<nn::Linear>(n, n, nn::Linear::Options{.bias = false});
    const auto opt = std::make_shared<optim::SGD>(net->parameters(), options);
    return PlannedTraining{{opt}, [=] {
                             opt->zero_grad();
                             sum((*net)(zeros({batch_size, n}))).backward();
                             opt->step();
                           }};
  };
}

struct OfModel : testing::TestWithParam<test::NamedPlannedModel> {};
TEST_P(OfModel, PeakIsTheMeasuredOne) {
  const auto precisions = test::planned_precisions();
  for (size_t i = 0; i < precisions.size(); ++i) {
    if (GetParam().only.value_or(i) != i) continue;
    const test::PlannedPrecision& precision = precisions[i];
    const TrainingMaker make = planned_training(GetParam(), precision);
    EXPECT_EQ(plan(make, 2).peak(), test::measured(make, 2, Device::cpu())) << precision.name;
  }
}
INSTANTIATE_TEST_SUITE_P(Plan, OfModel, testing::ValuesIn(test::planned_models()),
                         [](const auto& m) { return m.param.name; });

// On a real device the steps run, and are counted alike.
TEST(Plan, TellsWhatTheBytesAreFor) {
  for (const char* name : {"resnet20", "LstmClassifier", "Gpt_with_checkpoints", "Llama"})
    for (const test::PlannedPrecision& precision : test::planned_precisions()) {
      const auto models = test::planned_models();
      const auto model = std::ranges::find(models, name, &test::NamedPlannedModel::name);
      const TrainingMaker make = planned_training(*model, precision);
      const Plan planned = plan(make, 3), real = plan(make, 3, {.device = Device::cpu()});
      EXPECT_TRUE(planned == real) << name << ", " << precision.name;
      for (const int64_t n : {planned.weights, planned.gradients, planned.masters, planned.state,
                              planned.copies, planned.activations})
        EXPECT_GE(n, 0) << name << ", " << precision.name;
    }
}

TEST(Plan, CountsEachKindOfBytes) {
  constexpr int64_t n = 256, bytes = n * n * 4;
  // At the end of a backward: the weight, its gradient and the momentum.
  const Plan p = plan(layer(n, {.momentum = 0.9}), 1);
  EXPECT_EQ(p.weights, bytes);
  EXPECT_EQ(p.gradients, bytes);
  EXPECT_EQ(p.state, bytes);
  EXPECT_EQ(p.masters, 0);
  EXPECT_EQ(p.copies, 0);
  EXPECT_LT(p.activations, bytes / 10);
  EXPECT_EQ(plan(layer(n), 1).state, 0);
  // With a large batch: input and result, and its gradient.
  const Plan large = plan(layer(n), 100 * n);
  EXPECT_GE(large.activations, 200 * bytes);

  const auto whole = [](bool masters, std::optional<DType> shadow) {
    return [=](int64_t) {
      const auto p = std::make_shared<Tensor>(zeros({n, n}, masters ? bf16 : f32));
      p->set_requires_grad();
      const auto opt = std::make_shared<optim::SGD>(
          std::vector{*p}, optim::SGDOptions{},
          optim::CommonOptions{.multi_precision = masters, .shadow = shadow});
      return PlannedTraining{{opt}, [=] {
                               sum(*p).backward();
                               opt->step();
                             }};
    };
  };
  EXPECT_EQ(plan(whole(true, {}), 1).masters, bytes);
  EXPECT_EQ(plan(whole(true, {}), 1).weights, bytes / 2);
  EXPECT_EQ(plan(whole(false, bf16), 1).copies, bytes / 2);
}

TEST(Plan, PassesAStrictClip) {
  const TrainingMaker make = [](int64_t batch_size) {
    const auto net = std::make_shared<nn::Linear>(8, 8);
    const auto opt = std::make_shared<optim::SGD>(net->parameters());
    return PlannedTraining{{opt}, [=] {
                             opt->zero_grad();
                             sum((*net)(ones({batch_size, 8}))).backward();
                             optim::clip_grad_norm(net->parameters(), 1,
                                                   {.error_if_nonfinite = true});
                             opt->step();
                           }};
  };
  EXPECT_EQ(plan(make, 2).peak(), test::measured(make, 2, Device::cpu()));
}

// A GAN's step: what either optimizer has counts once, in its kind.
TEST(Plan, OfSeveralOptimizers) {
  static constexpr int64_t n = 128, bytes = n * n * 4;
  const TrainingMaker make = [](int64_t batch_size) {
    const nn::Linear::Options plain{.bias = false};
    const auto maker = std::make_shared<nn::Linear>(n, n, plain),
               critic = std::make_shared<nn::Linear>(n, n, plain);
    const auto of_maker =
        std::make_shared<optim::SGD>(maker->parameters(), optim::SGDOptions{.momentum = 0.9});
    const auto of_critic = std::make_shared<optim::AdamW>(critic->parameters());
    return PlannedTraining{{of_maker, of_critic}, [=] {
                             const Tensor made = (*maker)(zeros({batch_size, n}));
                             sum((*critic)(made.detach())).backward();
                             of_critic->step();
                             of_critic->zero_grad();
                             sum((*critic)(made)).backward();
                             of_maker->step();
                             of_maker->zero_grad();
                             of_critic->zero_grad();
                           }};
  };
  const Plan p = plan(make, 1);
  EXPECT_EQ(p.peak(), test::measured(make, 1, Device::cpu()));
  EXPECT_TRUE(p == plan(make, 1, {.device = Device::cpu()}));
  EXPECT_EQ(p.weights, 2 * bytes);
  EXPECT_EQ(p.gradients, 2 * bytes);  // the second backward has both
  EXPECT_EQ(p.state / bytes, 3);      // and counts of steps
  EXPECT_LT(p.activations, bytes / 10);
}

// --- at random ---

// Layers at random, shared or in place, in residuals and checkpoints.
struct AnyNet {
  using F = std::function<Tensor(const Tensor&)>;
  explicit AnyNet(uint64_t seed) : random(seed), width(2 * (1 + any(30))) {}
  int64_t any(int64_t n) { return int64_t(random() % uint64_t(n)); }
  // x is [b, t, width].
  F layer(int depth) {
    const int64_t kind = any(depth > 2 ? 7 : 12);
    if (kind == 0) return [](const Tensor& x) { return dropout(gelu(x), 0.3); };
    if (kind == 1) return [](const Tensor& x) { return softmax(x, -1); };
    if (kind == 2) return module<nn::LayerNorm>(width);
    if (kind == 3) return module<nn::Linear>(width, width);
    if (kind == 4)
      return [in = module<nn::Linear>(width, 2 * width + 1),
              out = module<nn::Linear>(2 * width + 1, width)](const Tensor& x) {
        return out(silu(in(relu(x))));
      };
    if (kind == 5)
      return [f = module<nn::Linear>(width, width)](const Tensor& x) { return f(tanh(f(x))); };
    if (kind == 6)
      return [f = module<nn::Linear>(width, width)](const Tensor& x) {
        const Tensor y = f(x);
        y.add_(1.0);
        return y *= 0.5;
      };
    if (kind == 7) {
      const auto m = made<nn::MultiheadAttention>(width, 2);
      return [m](const Tensor& x) { return m->forward(x, x, x).output; };
    }
    const F f = layer(depth + 1), g = layer(depth + 1);
    if (kind == 8) return [=](const Tensor& x) { return x + g(f(x)); };
    if (kind == 9)
      return
          [=](const Tensor& x) { return checkpoint([=](const Tensor& t) { return g(f(t)); }, x); };
    if (kind == 10) return [=](const Tensor& x) { return mean(stack({f(x), g(x)}), {0}); };
    return [=](const Tensor& x) { return sigmoid(f(x)) * g(x); };
  }
  template <class M, class... A>
  std::shared_ptr<M> made(A... arguments) {
    const auto m = std::make_shared<M>(arguments...);
    modules.push_back(m);
    return m;
  }
  template <class M, class... A>
  F module(A... arguments) {
    return [m = made<M>(arguments...)](const Tensor& x) { return (*m)(x); };
  }
  std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const auto& m : modules)
      for (const Tensor& p : m->parameters()) all.push_back(p);
    return all;
  }

  std::mt19937_64 random;
  const int64_t width;
  std::vector<std::shared_ptr<nn::ModuleBase>> modules;
};

struct SameScale : LossScalePolicy {
  double next(const Update& update) override { return update.scale; }
};

// Its losses, optimizer and precisions are random, too.
PlannedTraining any_training(uint64_t seed, int64_t batch_size) {
  const auto net = std::make_shared<AnyNet>(seed);
  const auto any = [&](int64_t n) { return net->any(n); };
  const auto flip = [&] { return any(3) == 0; };
  std::vector<AnyNet::F> layers = {net->module<nn::Linear>(net->width, net->width)};
  for (int64_t n = any(5); n >= 0; --n) layers.push_back(net->layer(0));
  const DType dtypes[] = {bf16, f16, f32}, low = dtypes[any(3)];
  const bool whole = low != f32 && flip(), two = flip(), clip = flip(), unscale = flip(),
             to_none = flip(), cache = flip();
  const int64_t times = 1 + any(3);
  optim::CommonOptions common;
  common.state = std::array<optim::StateFormat, 4>{f32, bf16, i8, optim::f8}[size_t(any(4))];
  if (whole) {
    common.rounding = low == bf16 ? optim::Rounding(any(3)) : optim::Rounding::Nearest;
    common.multi_precision = common.rounding == optim::Rounding::Nearest;
    common.flat_master = common.multi_precision && flip();
    for (const auto& m : net->modules) m->to(low);
  } else if (flip()) {
    common.shadow = low;
  }
  const Recipe recipes[] = {Current{}, Delayed{.history = 3}, Mx{}, NvFp4{}, {}};
  const Recipe recipe = recipes[low == bf16 && !whole ? any(5) : 4];
  const auto names = optim::optimizer_names();
  const std::string name = names[size_t(any(int64_t(names.size())))];
  if (name == "asgd") common.state = f32;
  const std::shared_ptr<optim::Optimizer> opt = optim::get(name, net->parameters(), {}, common);
  const int64_t histogram = any(2), t = 1 + any(9);
  ScalerOptions scaling{.calibrate = flip(), .histogram = histogram};
  if (flip()) scaling.policy = std::make_shared<SameScale>();
  const auto scaler = std::make_shared<GradScaler>(low, scaling);
  const bool ascends = low == f32 && flip();
  return {
      {opt}, [=] {
        const auto backward = [&] {
          Tensor x = randn({batch_size, t, net->width}).to(whole ? low : f32), loss, other;
          {
            const Autocast on({.low = low, .cache = cache, .enabled = !whole, .recipe = recipe});
            for (const AnyNet::F& f : layers) x = f(x);
            loss = mean(square(x.to(f32)));
            other = mean(abs(x));
          }
          scaler->scale(loss).backward({.retain_graph = two});
          if (two) scaler->scale(other).backward();
        };
        for (int64_t i = 0; i < times; ++i) backward();
        if (ascends) {
          const optim::Ascended worst(*opt);
          opt->zero_grad();
          backward();
        }
        if (unscale) scaler->unscale(*opt);
        scaler->step(*opt, {.clip_norm = clip ? std::optional(1.0) : std::nullopt});
        scaler->update();
        opt->zero_grad(to_none);
      }};
}

TEST(Plan, OfAnyTrainingIsTheMeasuredOne) {
  const OnWarning off([](const std::string&) {});
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const TrainingMaker make = [=](int64_t n) { return any_training(seed, n); };
    const Plan planned = plan(make, 3), real = plan(make, 3, {.device = Device::cpu()});
    EXPECT_EQ(planned.peak(), test::measured(make, 3, Device::cpu())) << seed;
    EXPECT_TRUE(planned == real) << seed;
  }
}

TEST(Plan, LeavesRandomNumbersAndMemoryAsTheyWere) {
  const Seed seed(4);
  const uint64_t before = generator().offset();
  const int64_t held = memory_stats(Device::meta()).in_use;
  (void)plan(layer(8), 2);
  EXPECT_EQ(generator().offset(), before);
  EXPECT_EQ(memory_stats(Device::meta()).in_use, held);
  EXPECT_EQ(DefaultDevice::current(), Device::cpu());
}

// 1.6 billion parameters, in memory that this machine need not have.
// Tensors without values have no gradients that could be zero.
TEST(Plan, WarnsOfNoUnderflow) {
  const OnWarning heard([](const std::string& text) { FAIL() << text; });
  const TrainingMaker make = [](int64_t batch_size) {
    const auto p = std::make_shared<Tensor>(zeros({8}).set_requires_grad());
    const auto opt = std::make_shared<optim::SGD>(std::vector{*p});
    const auto scaler = std::make_shared<GradScaler>(f16, ScalerOptions{.histogram = 1});
    return PlannedTraining{{opt}, [=] {
                             opt->zero_grad();
                             scaler->scale(sum(*p * zeros({batch_size, 8}))).backward();
                             scaler->step(*opt);
                             scaler->update();
                           }};
  };
  EXPECT_GT(plan(make, 2, {.steps = 5}).peak(), 0);
}

TEST(Plan, OfGpt2XlTakesNoSecond) {
  models::GptConfig config = models::gpt2_xl;
  const TrainingMaker make =
      planned_training(test::reader<models::Gpt>("xl", config), test::planned_precisions()[2]);
  const auto start = std::chrono::steady_clock::now();
  const Plan p = plan(make, 1);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(p.weights, int64_t{4} * 1557611200);
  EXPECT_EQ(p.state, 2 * p.weights);
  EXPECT_LT(taken.count(), 1);
}

TEST(Plan, FindsTheLargestBatch) {
  const TrainingMaker make = layer(64);
  const auto peak = [&](int64_t n) { return plan(make, n).peak(); };
  for (const int64_t n : {1, 2, 3, 100}) {
    EXPECT_EQ(largest_batch(make, peak(n)), n);
    EXPECT_EQ(largest_batch(make, peak(n + 1) - 1), n);
  }
  EXPECT_EQ(largest_batch(make, peak(1) - 1), 0);
  constexpr int64_t without_end = int64_t{1} << 60;
  EXPECT_EQ(largest_batch(make, without_end), int64_t{1} << 30) << "the most that is tried";
  const TrainingMaker picky = [&](int64_t n) {
    check(n <= 100, "{} examples", n);
    return make(n);
  };
  EXPECT_ERROR(largest_batch(picky, without_end),
               fmt::format("a batch of 64 fits into {} bytes, and a step can take none of 128: "
                           "largest_batch: 128 examples",
                           without_end));
  EXPECT_ERROR(largest_batch([&](int64_t) { return picky(101); }, without_end), "101 examples");
  EXPECT_ERROR(
      largest_batch([&](int64_t) { return make(1); }, peak(1)),
      fmt::format("batches of 1 and of 1073741824 take {0} bytes alike: does the step use its "
                  "batch size?",
                  peak(1)));
}

TEST(Plan, IsATable) {
  const std::string text = plan_text(
      {{"sgd", layer(1024)}, {"momentum", layer(1024, {.momentum = 0.9})}}, 256, 100 << 20);
  EXPECT_EQ(text.substr(0, text.find('\n')),
            "MiB       peak  weights  gradients  masters  state  copies  activations  batch in "
            "0.09766 GiB");
  EXPECT_NE(text.find("\nsgd"), std::string::npos) << text;
  EXPECT_NE(text.find("\nmomentum"), std::string::npos) << text;
}

TEST(Plan, SaysWhatItCannotPlan) {
  EXPECT_ERROR(plan({}, 1), "plan: there is no training to plan");
  EXPECT_ERROR(plan(layer(4), 0), "plan: batch_size must be > 0, got 0");
  EXPECT_ERROR(plan(layer(4), 1, {.steps = 0}), "plan: steps must be > 0, got 0");
  EXPECT_ERROR(plan([](int64_t) { return PlannedTraining{}; }, 1),
               "plan: a planned training needs an optimizer and a step");
  EXPECT_ERROR(plan([](int64_t) { return PlannedTraining{{nullptr}, [] {}}; }, 1),
               "plan: an optimizer of a planned training is null");
  // As a GPU would, though no kernel runs.
  EXPECT_ERROR(plan(
                   [](int64_t) {
                     const Tensor p = eye(4).set_requires_grad();
                     return PlannedTraining{{std::make_shared<optim::SGD>(std::vector{p})},
                                            [=] { sum(inv(p)).backward(); }};
                   },
                   1, {.device = Device::meta(DeviceType::cuda)}),
               "kernel 'solve' runs on the CPU alone, not on meta:cuda");
  EXPECT_ERROR(plan(
                   [](int64_t) {
                     const Tensor p = zeros({2}, f32, Device::cpu()).set_requires_grad();
                     return PlannedTraining{{std::make_shared<optim::SGD>(std::vector{p})}, [] {}};
                   },
                   1),
               "plan: a planned training must be on meta:cpu, but has a parameter on cpu");
  EXPECT_ERROR(plan(
                   [](int64_t n) {
                     PlannedTraining training = layer(4)(n);
                     training.step = [step = training.step] {
                       step();
                       (void)ones({}).item();
                     };
                     return training;
                   },
                   1),
               "a tensor on meta:cpu has a shape, but no values to read");
  int64_t calls = 0;
  EXPECT_ERROR(plan([&](int64_t) { return layer(32 * ++calls)(1); }, 1),
               "plan: the steps are not the same each time: ");
  EXPECT_ERROR(largest_batch(layer(4), 100, {.steps = -1}), "largest_batch: steps must be > 0");
}

}  // namespace plan_test
}  // namespace mixtape::amp
