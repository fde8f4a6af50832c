// Training on a device: the losses of the CPU, without waits or allocations; and late results of a
// device that is far behind.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "amp/trace.h"
#include "autograd/ops.h"
#include "core/dlpack.h"
#include "core/dlpack_abi.h"
#include "core/format.h"
#include "core/readback.h"
#include "core/stream.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "optim/schedules.h"
#include "tests/support/errors.h"
#include "tests/support/training_step.h"
#include "train/learner.h"
#ifdef MIXTAPE_EMULATED
#include "emulator/simt/runtime.h"
#endif

namespace mixtape {
namespace device_train_test {

const Device device = Device::cuda();

struct Net : nn::Module<Net> {  // the demo's
  nn::Conv2d conv1{1, 16, 3, {.padding = {1, 1}}}, conv2{16, 32, 3, {.padding = {1, 1}}};
  nn::Linear fc1{32 * 4 * 4, 128}, fc2{128, 10};
  Tensor forward(const Tensor& x) const {
    Tensor h = max_pool2d(relu(conv1(x)), {2, 2});
    h = max_pool2d(relu(conv2(h)), {2, 2});
    return fc2(relu(fc1(flatten(h, 1))));
  }
  MIXTAPE_FIELDS(conv1, conv2, fc1, fc2)
};

// Trains the net, step by step.
struct Training {
  Seed seed{1};
  DType low;
  Net net;
  Tensor x, y;
  optim::AdamW opt;
  optim::OneCycle schedule;
  amp::GradScaler scaler;

  Training(DType low, Device on, int64_t batch_size = 16)
      : low(low),
        x(randn({batch_size, 1, 16, 16}, f32, Device::cpu()).to(on)),
        y(randint(0, 10, {batch_size}, i64, Device::cpu()).to(on)),
        opt([&] {
          net.to(on);
          return optim::AdamW(net.parameters(), {.lr = 3e-3});
        }()),
        schedule(opt, {.max_lr = 3e-3, .total_steps = 100}),
        scaler(low) {}

  Tensor step() {
    const auto [loss, result] = test::training_step(net, opt, scaler, low, x, y, {.clip_norm = 10});
    schedule.step(result);
    return loss.detach();
  }
};

TEST(DeviceTraining, HasTheLossesOfTheCpu) {
  for (const DType low : {f32, f16, bf16}) {
    Training here(low, Device::cpu()), there(low, device);
    for (int i = 0; i < 3; ++i) {
      const double want = here.step().item(), got = there.step().item();
      EXPECT_NEAR(got, want,
                  low == f32   ? 1e-4
                  : low == f16 ? 2e-3
                               : 1e-2)
          << fmt::format("step {} in {}", i, low);
    }
  }
}

TEST(DeviceTraining, AScalerGoesWhereItsModelGoes) {
  nn::Linear net(2, 1);
  net.to(Device::cpu());
  optim::SGD opt(net.parameters());
  amp::GradScaler scaler({.init_scale = 8});
  scaler.name_parameters(opt, {"weight", "bias"});
  const auto step = [&](double gradient) {
    opt.zero_grad();
    scaler.scale(sum(net(ones({1, 2}, f32, net.weight.device())))).backward();
    net.weight.set_grad(full({1, 2}, gradient, f32, net.weight.device()));
    const amp::StepResult result = scaler.step(opt);
    scaler.update();
    return bool(result);
  };
  EXPECT_TRUE(step(1));
  net.to(device);
  EXPECT_TRUE(step(1));
  EXPECT_FALSE(step(INFINITY));
  EXPECT_EQ(scaler.scale_value(), 4);
  ASSERT_EQ(scaler.last_overflow().size(), 1u);
  EXPECT_EQ(scaler.last_overflow()[0].name, "weight");

  (void)scaler.scale(sum(net.bias));
  const Tensor elsewhere = ones({}, f32, Device::cpu());
  EXPECT_ERROR(scaler.scale(elsewhere),
               "a loss on cpu, after one on cuda:0 since the last update()");
}

TEST(DeviceTraining, SeveralDevicesReadNoFlag) {
  std::vector<Tensor> params;
  for (const Device on : {device, Device::cpu()}) {
    params.push_back(ones({1}, f32, on).set_requires_grad());
    params.back().set_grad(ones({1}, f32, on));
  }
  optim::SGD opt(params, {.lr = 0.5});
  const Tensor skip = zeros({}, f32, device);
  EXPECT_ERROR(opt.step({.skip = skip}), "parameter 1 is on cpu, others on cuda:0");
  EXPECT_EQ(params[0].item(), 1) << "a step that fails is none";
}

TEST(DeviceTraining, ADisabledScalerStepsGroupsOnSeveralDevices) {
  const Tensor here = ones({1}, f32, Device::cpu()).set_requires_grad(),
               there = ones({1}, f32, device).set_requires_grad();
  optim::SGD opt({here}, {.lr = 0.25});
  opt.add_group({there}, {.lr = 0.5});
  here.set_grad(ones({1}, f32, Device::cpu()));
  there.set_grad(ones({1}, f32, device));
  amp::GradScaler none(bf16);
  EXPECT_TRUE(bool(none.step(opt)));
  EXPECT_EQ(here.item(), 0.75);
  EXPECT_EQ(there.item(), 0.5);
  EXPECT_ERROR(none.step(opt, {.clip_norm = 1}),
               "parameter 1 of sgd is on cuda:0, others or the loss on cpu");
}

TEST(DeviceTraining, AGroupMayBeOnSeveralDevices) {
  const auto trained = [](Device second) {
    std::vector<Tensor> params;
    for (const Device on : {Device::cpu(), second, second, Device::cpu()})
      params.push_back(full({3}, double(params.size() + 1), f32, on).set_requires_grad());
    optim::AdamW opt(params, {.lr = 0.1});
    for (int t = 0; t < 3; ++t) {
      opt.zero_grad();
      Tensor loss = zeros({}, f32, Device::cpu());
      for (const Tensor& p : params) loss = loss + sum(square(p)).to(Device::cpu());
      loss.backward();
      opt.step();
    }
    std::vector<double> values;
    for (const Tensor& p : params) values.push_back(p.at(0));
    return values;
  };
  const auto apart = trained(device), together = trained(Device::cpu());
  for (size_t i = 0; i < apart.size(); ++i) EXPECT_NEAR(apart[i], together[i], 1e-6);
}

// (The emulator's devices share memory: only a real one would fail.)
TEST(DeviceTraining, ATraceLeavesMovesBetweenDevicesAlone) {
  nn::Linear net(2, 1);
  net.to(device);
  net.register_full_backward_hook([](nn::Tensors&, const nn::Tensors&) {});
  amp::OverflowTrace trace;
  sum(net(ones({1, 2}, f32, device)).to(Device::cpu())).backward();
  EXPECT_TRUE(trace.found().empty());
}

TEST(DeviceTraining, AStepNeitherWaitsNorAsksForMemory) {
  for (const DType low : {f32, f16, bf16}) {
    Training training(low, device, 2);
    // (A schedule keeps the results of that many steps.)
    for (size_t i = 0; i <= optim::Schedule::lag; ++i) training.step();
    synchronize(device);  // (but for one that is so far behind)
    const int64_t waits = synchronizations(), calls = memory_stats(device).system_calls;
    for (int i = 0; i < 3; ++i) training.step();
    EXPECT_EQ(synchronizations(), waits) << name(low);
    EXPECT_EQ(memory_stats(device).system_calls, calls) << name(low);
  }
}

// Records the number of waits and allocations at the beginning of each batch.
struct Noting : train::Callback {
  std::vector<std::pair<int64_t, int64_t>> training, validating;
  void on_batch_begin(train::Learner& l) override {
    (l.state.training ? training : validating)
        .emplace_back(synchronizations(), memory_stats(device).system_calls);
  }
};

// A Learner waits only at the end of an epoch: for the steps, for each of two losses and for the
// metric.
TEST(DeviceTraining, ALearnerWaitsOncePerNumberOfAnEpoch) {
  for (const int precision : {0, 1, 2, 3}) {
    const Seed seed(1);
    const auto noting = std::make_shared<Noting>();
    train::LearnerOptions options{.metrics = {train::accuracy},
                                  .callbacks = {noting},
                                  .device = device,
                                  .out = nullptr,
                                  .progress = false};
    const auto points = [](int64_t n) {
      return train::TensorDataset(randn({n, 16}), randint(0, 10, {n}));
    };
    train::Learner learner({train::DataLoader(points(64), {.batch_size = 16, .shuffle = true}),
                            train::DataLoader(points(32), {.batch_size = 16})},
                           nn::Sequential(nn::Linear(16, 16), nn::ReLU(), nn::Linear(16, 10)),
                           options);
    if (precision == 1) learner.to_fp16();
    if (precision == 2) learner.to_bf16();
    if (precision == 3) learner.to_fp16(train::MasterOptions{.clip = 1});
    learner.fit_one_cycle(2, 1e-3);
    noting->training.clear();
    noting->validating.clear();
    learner.fit_one_cycle(2, 1e-3);
    const auto same = [](auto first, auto last) { return std::equal(first + 1, last, first); };
    const auto &t = noting->training, &v = noting->validating;
    ASSERT_EQ(t.size(), 8u);
    ASSERT_EQ(v.size(), 4u);
    EXPECT_TRUE(same(t.begin(), t.begin() + 4)) << precision;
    EXPECT_TRUE(same(t.begin() + 4, t.end())) << precision;
    EXPECT_TRUE(same(v.begin(), v.begin() + 2)) << precision;
    EXPECT_TRUE(same(v.begin() + 2, v.end())) << precision;
    EXPECT_LE(t[4].first - t[3].first, 4) << precision;
    EXPECT_EQ(t[4].second, t[0].second) << precision;
  }
}

TEST(DeviceTraining, RunsOnAnotherDeviceToo) {
  if (runtime::devices().size() < 2) GTEST_SKIP() << "there is one device";
  Training first(f16, device), second(f16, Device::cuda(1));
  const double a = first.step().item(), b = second.step().item();
  EXPECT_EQ(a, b);
  EXPECT_EQ(second.net.fc1.weight.grad().device(), Device::cuda(1));
}

#ifdef MIXTAPE_EMULATED

TEST(FarBehind, LearnsTheSame) {
  const auto losses = [](bool is_late) {
    std::optional<simt::LateStreams> late;
    if (is_late) late.emplace();
    Training training(f16, device);
    std::vector<double> all;
    for (int i = 0; i < 6; ++i) all.push_back(training.step().item());
    return all;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(FarBehind, NothingOfAStepWaits) {
  Training training(f16, device);
  for (int i = 0; i < 3; ++i) training.step();
  const simt::LateStreams late;
  const int64_t waits = synchronizations();
  for (size_t i = 0; i < optim::Schedule::lag; ++i) training.step();
  EXPECT_EQ(synchronizations(), waits);
}

TEST(FarBehind, UploadsThatMustWaitAreCounted) {
  const simt::LateStreams late;
  const int64_t waits = synchronizations();
  for (int i = 0; i < 100; ++i) from({1, 2}, {2}).to(device);
  EXPECT_GT(synchronizations(), waits);
}

// The receiver reads the tensor on an unknown stream, and returns it meanwhile.
TEST(FarBehind, MemoryThatLeftByDlpackIsUsedAgainWhenItWasRead) {
  const runtime::Handle theirs = runtime::cuda().create_stream(device.index);
  DLManagedTensor* const out = to_dlpack(full({1000}, 1, f32, device));
  std::vector<float> read(1000);
  const simt::LateStreams late;
  runtime::cuda().copy(read.data(), out->dl_tensor.data, 4000, theirs, device.index);
  out->deleter(out);
  const Tensor next = full({1000}, 2, f32, device);
  synchronize(device);
  runtime::cuda().synchronize(theirs, device.index);
  EXPECT_EQ(read, std::vector<float>(1000, 1));
}

TEST(FarBehind, AnIndexOutOfRangeIsAnErrorWhenTheThreadAsks) {
  const Tensor table = ones({4, 2}, f32, device), index = from({1, 4}, {2}, i64).to(device);
  const simt::LateStreams late;
  const Tensor rows = embedding(table, index);  // (its row for 4 is undefined)
  EXPECT_EQ(test::error([&] { sum(rows).item(); }),
            "embedding: index 4 is out of range for 4 rows");
  EXPECT_EQ(sum(table).item(), 8) << "said once";
}

TEST(FarBehind, SuchAnIndexReachesNoOtherMemory) {
  const Tensor index = from({1, 0x1p40, -0x1p40}, {3}, i64).to(device);
  const Tensor x = ones({4, 2}, f32, device).set_requires_grad();
  const auto attempt = [&](auto f) {
    try {
      {
        const simt::LateStreams late;
        const Tensor y = f();
        if (y.requires_grad()) sum(y).backward();
      }
      synchronize(device);
      return std::string("no error");
    } catch (const Error& e) {
      const std::string text = e.what();
      return text.substr(0, text.find(" -1099511627776"));
    }
  };
  EXPECT_EQ(attempt([&] { return embedding(x, index); }), "embedding: index");
  EXPECT_EQ(attempt([&] { return index_select(x, 0, index); }), "index_select: index");
  const Tensor columns = index.reshape({3, 1});
  EXPECT_EQ(attempt([&] { return gather(x, 0, columns); }), "gather: index");
  EXPECT_EQ(attempt([&] { return scatter_add(x, 0, columns, ones({3, 1}, f32, device)); }),
            "scatter_add: index");
  EXPECT_EQ(attempt([&] { return index_put(x, {index}, ones({3, 2}, f32, device)); }),
            "index_put: index");
  const Tensor logits = ones({3, 2}, f32, device).set_requires_grad(),
               weights = ones({2}, f32, device);
  EXPECT_EQ(attempt([&] { return cross_entropy(logits, index, {.class_weights = weights}); }),
            "cross_entropy: target");
  EXPECT_EQ(attempt([&] { return nll_loss(logits, index, {.class_weights = weights}); }),
            "nll_loss: target");
}

// A step that a device skips is undone the same number of steps later, whenever the host learns of
// it, and also after resuming from a checkpoint.
TEST(FarBehind, SchedulesGiveEveryRunTheSameRates) {
  const auto lag = int64_t(optim::Schedule::lag);
  const auto rates = [&](bool late, int64_t cut) {
    std::optional<simt::LateStreams> streams;
    if (late) streams.emplace();
    const Tensor p = ones({2}, f32, device).set_requires_grad();
    optim::SGD opt({p}, {.lr = 0.1});
    std::optional<optim::Cosine> schedule(std::in_place, opt, optim::CosineOptions{30});
    amp::GradScaler scaler({.init_scale = 4});
    std::vector<double> rates;
    for (int64_t i = 0; i < 24; ++i) {
      opt.zero_grad();
      const int64_t waits = synchronizations();
      scaler.scale(sum(p * (i == 2 || i == 3 || i == 12 ? 1e39 : 1))).backward();
      const amp::StepResult result = scaler.step(opt);
      schedule->step(result);
      scaler.update();
      if (i < lag) {
        EXPECT_EQ(synchronizations(), waits);
      }
      rates.push_back(opt.lr());
      if (i + 1 != cut) continue;
      const StateDict saved = schedule->state_dict();
      EXPECT_TRUE(result.has_arrived()) << "saving waits";
      schedule.emplace(opt, optim::CosineOptions{30});
      schedule->load_state_dict(saved);
    }
    return rates;
  };
  const std::vector<double> whole = rates(false, 0);
  const Tensor p = ones({1}, f32, device).set_requires_grad();
  optim::SGD opt({p}, {.lr = 0.1});
  const optim::Cosine schedule(opt, {.total_steps = 30});
  for (int64_t i = 0; i < 24; ++i)
    EXPECT_EQ(whole[size_t(i)],
              schedule.at(i + 1 - (i >= 2 + lag) - (i >= 3 + lag) - (i >= 12 + lag)));
  for (const int64_t cut : {0, 2, 3, 5, 11, 12, 20}) {
    EXPECT_EQ(rates(true, cut), whole) << "cut after " << cut;
    EXPECT_EQ(rates(false, cut), whole) << "cut after " << cut;
  }
}

// Scaled steps with given gradients.
struct ScaledSteps {
  Tensor p = ones({2}, f32, device).set_requires_grad();
  optim::SGD opt{{p}, {.lr = 0.1}};
  amp::GradScaler scaler;

  explicit ScaledSteps(const amp::ScalerOptions& o) : scaler(o) {}
  void step(double gradient) {
    scaler.scale(sum(p)).backward();
    p.set_grad(full({2}, gradient, f32, device));
    scaler.step(opt);
    scaler.update();
  }
  void late(std::initializer_list<double> gradients) {
    const simt::LateStreams streams;
    for (const double gradient : gradients) step(gradient);
  }
};
constexpr double inf = std::numeric_limits<double>::infinity();

// A hit of the floor is reported even if the host reads the counters late.
TEST(FarBehind, AFloorIsNoticedLate) {
  ScaledSteps training({.init_scale = 4, .min_scale = 3});
  training.late({1, inf, 1});
  EXPECT_ERROR((training.step(1), training.step(1)), "the loss scale would fall below 3");
}

TEST(FarBehind, ACollapseIsNoticedLate) {
  const Tensor p = ones({2}, f32, device).set_requires_grad();
  optim::SGD opt({p}, {.lr = 0.1});
  amp::GradScaler scaler({.init_scale = 4, .max_consecutive_skips = 2});
  const auto step = [&] {
    opt.zero_grad();
    scaler.scale(sum(p * 1e39)).backward();
    scaler.step(opt);
    scaler.update();
  };
  {
    const simt::LateStreams late;
    for (int i = 0; i < 4; ++i) step();
  }
  EXPECT_THROW(for (int i = 0; i < 3; ++i) step(), amp::ScaleCollapse);
}

// When the counters arrive, the streak is over.
TEST(FarBehind, AStreakOfSkipsThatEndedIsNoticed) {
  ScaledSteps training({.init_scale = 4, .max_consecutive_skips = 3});
  training.late({1, inf, inf, inf, 1});
  EXPECT_ERROR((training.step(1), training.step(1)), "3 steps in a row were skipped");
  EXPECT_NO_THROW(for (int i = 0; i < 3; ++i) training.step(1));  // it was reported once
}

#endif

// All state of an optimizer follows a model that moves, including the extra bits of masters.
TEST(DeviceTraining, StateFollowsTheModel) {
  for (const bool flat : {false, true}) {
    const auto train = [&](bool moves) {
      const Seed seed(1);
      nn::Linear net(8, 4);
      net.to(f16);
      optim::AdamW opt(net.parameters(), {.lr = 1e-3},
                       {.multi_precision = true, .flat_master = flat});
      for (int step = 0; step < 4; ++step) {
        const Device on = moves && step % 2 == 1 ? device : Device::cpu();
        net.to(on);
        for (const Tensor& p : net.parameters()) p.set_grad(ones(p.shape(), f16, on));
        opt.step();
      }
      std::vector<double> state;
      for (const auto& [name, t] : opt.state_dict())
        for (const double value : to_vector(t.to(Device::cpu()))) state.push_back(value);
      return state;
    };
    const std::vector<double> moved = train(true), stayed = train(false);
    ASSERT_EQ(moved.size(), stayed.size());
    for (size_t i = 0; i < moved.size(); ++i) EXPECT_NEAR(moved[i], stayed[i], 1e-6) << i;
  }
}

}  // namespace device_train_test
}  // namespace mixtape
