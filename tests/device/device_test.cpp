// Every op gives the same values and gradients on a device as on the CPU; moving tensors, streams,
// memory and errors of devices.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "amp/compare.h"
#include "amp/scaler.h"
#include "autograd/call.h"
#include "core/dlpack.h"
#include "core/dlpack_abi.h"
#include "core/format.h"
#include "core/stream.h"
#include "kernels/kernels.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#include "tests/support/op_cases.h"

namespace mixtape {
using namespace internal;
namespace device_test {

using test::error;
using tests::OpCase;

const Device device = Device::cuda();

// Within `tolerance` of the largest finite magnitude.
void expect_close(const Tensor& got, const Tensor& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  EXPECT_EQ(got.dtype(), want.dtype()) << what;
  EXPECT_EQ(got.device(), device) << what;
  const std::vector<double> x = to_vector(got), y = to_vector(want);
  double scale = 1;
  for (const double v : y)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < y.size(); ++i) {
    const bool same = x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]));
    EXPECT_TRUE(same || std::abs(x[i] - y[i]) <= tolerance * scale)
        << what << ", element " << i << ": " << x[i] << ", the CPU has " << y[i];
  }
}

struct Result {
  Tensor y;
  std::vector<Tensor> gradients;
};

enum class Strides { Dense, Permuted, Backwards };
Tensor with_strides(Tensor t, Strides strides) {
  if (strides == Strides::Permuted && t.rank() > 1)
    t = transpose(clone(transpose(t, 0, -1)), 0, -1);
  if (strides == Strides::Backwards) {
    t = flip(t, {});
    for (int d = 0; d < t.rank(); ++d) t = slice(t, d, -1, std::numeric_limits<int64_t>::max(), -1);
  }
  return t.detach();
}

// The row's value and gradients, with inputs created on the device.
Result result(const OpCase& c, DType dtype, Device on, const std::vector<Shape>& shapes,
              Strides strides) {
  std::vector<Tensor> inputs, leaves;
  for (const Tensor& made : make_inputs(c, dtype, true, shapes)) {
    const Tensor t = with_strides(made.detach().to(on), strides);
    if (made.requires_grad()) leaves.push_back(t.set_requires_grad());
    inputs.push_back(t);
  }
  const Seed seed(5);
  const DefaultDevice here(on);
  Result r{c.run(inputs), {}};
  if (r.y.requires_grad())
    r.gradients = grad({r.y}, leaves, {.gradients = {tests::output_gradient(r.y)}});
  return r;
}

struct OnDevice : testing::TestWithParam<OpCase> {
  static void compare(DType dtype, double tolerance, const std::vector<Shape>& shapes,
                      Strides strides = Strides::Dense) {
    const OpCase& c = GetParam();
    const Result want = result(c, dtype, Device::cpu(), shapes, strides),
                 got = result(c, dtype, device, shapes, strides);
    const std::string what = fmt::format("{} in {}", c.name(), dtype);
    expect_close(got.y, want.y, tolerance * c.tolerance, what);
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (size_t i = 0; i < want.gradients.size(); ++i)
      expect_close(got.gradients[i], want.gradients[i], tolerance * c.tolerance,
                   fmt::format("{}: gradient {}", what, i));
  }
};
INSTANTIATE_TEST_SUITE_P(Ops, OnDevice, testing::ValuesIn(tests::device_cases()),
                         [](const auto& i) { return i.param.name(); });

TEST_P(OnDevice, IsWhatItIsOnTheCpu) {
  compare(f64, 1e-12, shapes(GetParam()));
  compare(f32, 1e-5, shapes(GetParam()));
}
TEST_P(OnDevice, IsWhatItIsOnTheCpuInNarrowDtypes) {
  if (!GetParam().half) return;
  compare(f16, 2e-3, shapes(GetParam()));
  compare(bf16, 1.6e-2, shapes(GetParam()));
}
TEST_P(OnDevice, TakesAnyStridesAndEmpties) {
  for (const Strides s : {Strides::Permuted, Strides::Backwards})
    compare(f32, 1e-5, shapes(GetParam()), s);
  if (!GetParam().empty.empty()) compare(f32, 1e-5, GetParam().empty);
}
// Elements that only store are moved, or refused with the CPU's message: never read as others.
TEST_P(OnDevice, DoesWithStoredDtypesWhatTheCpuDoes) {
  const OpCase& c = GetParam();
  const auto run = [&](DType dtype, Device on) {
    std::vector<Tensor> inputs = make_inputs(c, f32, false);
    for (size_t i = 0; i < inputs.size(); ++i)
      inputs[i] = (c.inputs[i].real() ? inputs[i].to(dtype) : inputs[i]).to(on);
    const Seed seed(5);
    const DefaultDevice here(on);
    return c.run(inputs);
  };
  for (const DType dtype : {i8, i16, u16, u32, f8_e4m3}) {
    const std::string what = fmt::format("{} of {}", c.name(), dtype);
    Tensor want;
    const std::string refused = error([&] { want = run(dtype, Device::cpu()); });
    if (want)
      expect_close(run(dtype, device), want, 1e-5, what);
    else
      EXPECT_NE(error([&] { run(dtype, device); }), "no error")
          << what << ", the CPU says " << refused;
  }
}

struct Edge : OnDevice {};
INSTANTIATE_TEST_SUITE_P(Edges, Edge, testing::ValuesIn(tests::edge_cases()),
                         [](const auto& i) { return i.param.name(); });
TEST_P(Edge, IsWhatItIsOnTheCpu) {
  if (!GetParam().cpu_only) compare(f32, 1e-5, shapes(GetParam()));
}

TEST(Devices, KernelsOfTheCpuAloneSaySo) {
  int rows = 0;
  for (const OpCase& c : tests::op_cases()) {
    if (!c.cpu_only) continue;
    ++rows;
    std::vector<Tensor> inputs;
    for (const Tensor& t : make_inputs(c, f32, false)) inputs.push_back(t.to(device));
    const DefaultDevice here(device);
    EXPECT_ERROR(c.run(inputs),
                 "runs on the CPU alone, not on cuda:0 (move the tensors: x.to(Device::cpu()))");
  }
  EXPECT_GT(rows, 0);
}

TEST(Devices, TensorsMoveWithTheirHistory) {
  const Tensor x = from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  const Tensor there = x.to(device);
  EXPECT_EQ(there.device(), device);
  EXPECT_EQ(to_vector(there), to_vector(x));
  sum(there * there.t()).backward();
  EXPECT_EQ(x.grad().device(), Device::cpu());
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 6, 4, 8}));
  EXPECT_TRUE(there.to(device).is_same(there));
}

TEST(Devices, AViewMovesWithoutTheRestOfItsStorage) {
  const Tensor x = arange(0, 1000, 1, f32).reshape({10, 100});
  const Tensor column = x.detach().with_layout(Layout({10}, {100}, 7)), there = column.to(device);
  EXPECT_EQ(to_vector(there), to_vector(column));
  EXPECT_EQ(there.storage()->bytes(), 40u);
}

TEST(Devices, ElementsAreReadAndWrittenFromTheHost) {
  const Tensor x = zeros({2, 3}, bf16, device);
  x.set(4, 2.5);
  EXPECT_EQ(x.at(4), 2.5);
  EXPECT_EQ(to_string(x), "[[0.  0.  0. ]\n [0.  2.5 0. ]]\nbf16 [2, 3] on cuda:0");
}

TEST(Devices, TheHostCannotReachIn) {
  const Tensor x = zeros({2}, f32, device);
  EXPECT_EQ(error([&] { x.data<float>(); }),
            "the host cannot reach a tensor on cuda:0; bring it with .to(Device::cpu())");
  EXPECT_EQ(error([&] { add(x, zeros({2})); }),
            "add: inputs are on different devices: cuda:0 and cpu");
}

TEST(Devices, WithTensorCoresMultiplyNarrowNumbersFast) {
  for (const DType t : {f64, f32, f16, bf16})
    EXPECT_TRUE(device.supports_fast(t)) << fmt::format("{}", t);
  EXPECT_FALSE(device.supports_fast(i32));
}

TEST(Devices, TheDefaultIsAScope) {
  {
    const DefaultDevice there(device);
    EXPECT_EQ(zeros({2}).device(), device);
    EXPECT_EQ(from({1}, {1}).device(), device);
    {
      const DefaultDevice here(Device::cpu());
      EXPECT_EQ(ones({2}).device(), Device::cpu());
    }
    EXPECT_EQ(rand({2}).device(), device);
  }
  EXPECT_EQ(zeros({2}).device(), Device::cpu());
}

TEST(Devices, RandomNumbersAreThoseOfTheCpu) {
  const auto drawn = [](Device on) {
    const Seed seed(3);
    const DefaultDevice here(on);
    return to_vector(rand({1001}));
  };
  EXPECT_EQ(drawn(device), drawn(Device::cpu()));
}

TEST(Devices, UniformsAreRoundedOnce) {
  const auto drawn = [](Device on) {
    const Seed seed(5);
    return to_vector(uniform({20'000}, 0.1, 0.7, f64, on));
  };
  EXPECT_EQ(drawn(device), drawn(Device::cpu()));
}

TEST(Devices, TheMeanOfOnesIsOne) {
  for (int64_t n = 1; n < 300; ++n) EXPECT_EQ(mean(ones({n}, f32, device)).item(), 1) << n;
}

// A point with target 0 adds no loss, however large the others are.
TEST(Devices, NormsTakeNumbersWhoseSquaresDoNotFit) {
  const Tensor x = from({3e19, -3e19, 1, 2}, {1, 4}, bf16);
  const Tensor y = layer_norm(x.to(device), {4}), want = layer_norm(x, {4});
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(y.at(i), want.at(i), 1e-2);
}

TEST(Devices, GradientsStayOnTheirDevice) {
  const Tensor w = ones({2}).set_requires_grad();
  EXPECT_ERROR(backward(w * 2, {.gradient = ones({2}, f32, device)}),
               "the gradient is on cuda:0, the output on cpu");
  EXPECT_FALSE(w.grad());
}

TEST(Devices, MemoryIsCountedAndUsedAgain) {
  const MemoryStats before = memory_stats(device);
  void* first = nullptr;
  {
    const Tensor x({1000}, f32, device);
    first = x.raw();
    EXPECT_EQ(memory_stats(device).in_use, before.in_use + 4000);
  }
  const Tensor y({1000}, f32, device);
  EXPECT_EQ(y.raw(), first);
  EXPECT_EQ(memory_stats(device).allocations, before.allocations + 2);
  EXPECT_ERROR(Tensor({int64_t{1} << 50}, u8, device),
               "out of memory on cuda:0: 1125899906842624 bytes requested");
}

TEST(Devices, ConstantsOfDerivativesGoWithTheirOperands) {
  const Tensor x = full({2}, 3, f32, device).set_requires_grad();
  const Tensor once = grad({sum(pow(x, 3.0))}, {x}, {.create_graph = true})[0];
  EXPECT_EQ(to_vector(grad({sum(once)}, {x})[0]), (std::vector<double>{18, 18}));
}

#ifdef MIXTAPE_EMULATED
TEST(Devices, KernelsTakeMemoryOfTheirOwn) {
  const Tensor here = ones({4}, f32, Device::cpu()), there = ones({4}, f32, device);
  const std::vector<View> list{there, here};
  std::vector<kernels::Update> updates(1);
  updates[0].param = updates[0].grad = here;
  EXPECT_ERROR(kernels::convert(device, here, there),
               "kernel 'convert' on cuda:0 is given memory of cpu");
  EXPECT_ERROR(kernels::convert(Device::cpu(), here, there),
               "kernel 'convert' on cpu is given memory of cuda:0");
  EXPECT_ERROR(kernels::clip_value(device, list, 1.0),
               "kernel 'clip_value' on cuda:0 is given memory of cpu");
  const auto step = [&](const kernels::StepControl& control) {
    kernels::optimizer_step(device, kernels::SGD{}, updates, control);
  };
  EXPECT_ERROR(step({}), "kernel 'optimizer_step' on cuda:0 is given memory of cpu");
  updates[0].param = updates[0].grad = there;
  EXPECT_ERROR(step({.skip = here}), "kernel 'optimizer_step' on cuda:0 is given memory of cpu");
}
#endif

TEST(Devices, ATensorTakesItsOrderToAnotherThread) {
  const Tensor x = ones({4}, f32, device);
  const int64_t before = orders_between_streams();
  std::thread([&] { EXPECT_EQ(to_vector(x + 1), (std::vector<double>{2, 2, 2, 2})); }).join();
  EXPECT_EQ(orders_between_streams(), before + 1) << "the thread's stream waits for ours";
  EXPECT_EQ(sum(x).item(), 4);
  EXPECT_EQ(orders_between_streams(), before + 2) << "and ours for what the thread did with it";
}
TEST(Devices, MemoryUsedByAnotherThreadComesBackInOrder) {
  int64_t before = 0;
  {
    const Tensor x = ones({4}, f32, device);
    std::thread([&] { add(x, x); }).join();
    before = orders_between_streams();
  }
  EXPECT_EQ(orders_between_streams(), before + 1);
}

// Threads beyond max_streams share a stream, which is freed once when all have ended. A stream is
// left for each other device.
TEST(Devices, StreamsAreSharedOnlyWhereThereAreTooManyThreads) {
  const auto streams_of = [](int n) {
    std::set<int> numbers;
    std::mutex mutex;
    std::barrier all_have_one(n);
    std::vector<std::jthread> threads;
    for (int i = 0; i < n; ++i)
      threads.emplace_back([&] {
        const int number = Stream::current(Device::cuda()).number;
        {
          const std::lock_guard lock(mutex);
          numbers.insert(number);
        }
        all_have_one.arrive_and_wait();
      });
    threads.clear();
    return numbers.size();
  };
  streams_of(max_streams + 8);
  EXPECT_EQ(streams_of(10), 10u);
  for (const Device d : runtime::devices()) EXPECT_EQ(ones({2}, f32, d).at(0), 1);
  EXPECT_LT(Stream::current(Device::meta(DeviceType::cuda)).number, max_streams);
}

TEST(Devices, AGradientDoesNotFollowALeafThatMoved) {
  const Tensor x = ones({3}).set_requires_grad(), loss = sum(x + 1);
  x.set_data(x.detach().to(device));
  EXPECT_EQ(error([&] { loss.backward(); }),
            "backward: a gradient on cpu for a leaf that has moved to cuda:0");
}

TEST(Devices, WaitsAreCounted) {
  const Tensor x = ones({4}, f32, device);
  const int64_t before = synchronizations();
  const Tensor y = x * 2 + 1;
  EXPECT_EQ(synchronizations(), before);
  EXPECT_EQ(sum(y).item(), 12);
  EXPECT_EQ(synchronizations(), before + 1);
}

TEST(Devices, WhatLeavesByDlpackIsReady) {
  const Tensor x = ones({3}, f32, Device::cuda());
  const int64_t before = synchronizations();
  DLManagedTensor* const out = to_dlpack(x);
  EXPECT_EQ(synchronizations(), before + 1);
  out->deleter(out);
}

TEST(Devices, AttentionIsDifferentiatedTwiceBesideTheDefaultDevice) {
  const Tensor q = rand({1, 1, 3, 2}, f32, Device::cuda());
  q.set_requires_grad();
  const Tensor y = scaled_dot_product_attention(q, q, q, {.causal = true});
  const Tensor dq = grad({sum(square(y))}, {q}, {.create_graph = true})[0];
  sum(square(dq)).backward();
  EXPECT_EQ(q.grad().device(), Device::cuda());
}

TEST(Devices, AScalerStepsWhereTheLossIs) {
  if (runtime::devices().size() < 2) GTEST_SKIP() << "needs two devices";
  const Tensor p = ones({2}, f32, Device::cuda(1));
  p.set_requires_grad();
  optim::SGD opt({p}, {.lr = 0.1});
  amp::GradScaler scaler(f16);
  scaler.scale(sum(square(p)).to(Device::cuda(0))).backward();
  EXPECT_ERROR(scaler.step(opt), "parameter 0 of sgd is on cuda:1, others or the loss on cuda:0");
}

TEST(Devices, EventsTellTheTimeBetweenThem) {
  for (const Device on : {Device::cpu(), device}) {
    const runtime::Event first(on);
    const Tensor x = ones({1000}, f32, on) + 1;
    const runtime::Event second(on);
    EXPECT_GT(first.milliseconds_until(second), 0);
    EXPECT_TRUE(first.has_passed());
  }
}

// The default device is the CPU.
TEST(Devices, AComparisonCountsTheMemoryOfItsResults) {
  const Tensor x = ones({64, 64}, f32, device);
  amp::Compare compare(
      [&](const amp::AutocastOptions& region) {
        const amp::Autocast on(region);
        matmul(x, x);
      },
      {.region = {.low = bf16}});
  EXPECT_GE(compare.overrides(1).peak, 2 * 64 * 64);
}

}  // namespace device_test
}  // namespace mixtape
