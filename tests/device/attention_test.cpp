// Attention on a device: one kernel that keeps no scores in memory and moves few bytes, and drops
// what the CPU drops.

#include <gtest/gtest.h>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/random.h"
#ifdef MIXTAPE_EMULATED
#include "emulator/simt/record.h"
#endif

namespace mixtape {
namespace device_attention_test {

const Device device = Device::cuda();

// Two heads, side by side in memory as linear layers make them.
struct Inputs {
  Tensor leaves[3], q, k, v, dy;
  Inputs(int64_t positions, int64_t features, DType dtype = bf16) {
    for (Tensor& t : leaves) {
      t = randn({1, positions, 2, features}, dtype, device);
      t.set_requires_grad();
    }
    q = transpose(leaves[0], 1, 2);
    k = transpose(leaves[1], 1, 2);
    v = transpose(leaves[2], 1, 2);
    dy = transpose(randn({1, positions, 2, features}, dtype, device), 1, 2);
  }
  // A forward and a backward pass.
  void run(const AttentionOptions& options = {.causal = true}) const {
    scaled_dot_product_attention(q, k, v, options).backward({.gradient = dy});
  }
};

TEST(DeviceAttention, ScoresAreNotInMemory) {
  const int64_t positions = 320, scores = 2 * positions * positions;
  const auto peak_of = [&](int64_t features) {
    const Inputs x(positions, features);
    reset_peak(device);
    const int64_t before = memory_stats(device).in_use;
    x.run();
    return memory_stats(device).peak_total - before;
  };
  EXPECT_LT(peak_of(32), scores);  // not even one byte for each
  EXPECT_GT(peak_of(40), 4 * scores);
}

// A mask that is added, for all heads; with a gradient of its own it takes the other way.
TEST(DeviceAttention, AddsAFloatMask) {
  const int64_t positions = 192;
  for (const DType dtype : {f32, bf16})
    for (const bool learned : {false, true}) {
      const Seed seed(1);
      const Inputs x(positions, 32);
      const Tensor mask = randn({positions, positions}, dtype, device);
      mask.set_requires_grad(learned);
      reset_peak(device);
      const int64_t before = memory_stats(device).in_use;
      x.run({.mask = mask});
      const int64_t peak = memory_stats(device).peak_total - before,
                    scores = 2 * positions * positions;
      EXPECT_EQ(peak > 4 * scores, learned) << peak;
      EXPECT_EQ(mask.has_grad(), learned);
      const auto on_cpu = [&](const Tensor& t) {
        return cast(t.detach().to(Device::cpu()), f32).set_requires_grad();
      };
      const Tensor q = on_cpu(x.q), k = on_cpu(x.k), v = on_cpu(x.v), m = on_cpu(mask);
      scaled_dot_product_attention(q, k, v, {.mask = m})
          .backward({.gradient = cast(x.dy.to(Device::cpu()), f32)});
      const Tensor* const wanted[] = {&q, &k, &v};
      for (size_t i = 0; i < 3; ++i) {
        const Tensor got = cast(transpose(x.leaves[i].grad(), 1, 2).to(Device::cpu()), f32),
                     want = wanted[i]->grad();
        EXPECT_LE(norm(got - want).item(), 0.01 * norm(want).item()) << i << learned;
      }
      if (learned) {
        const Tensor got = cast(mask.grad().to(Device::cpu()), f32);
        EXPECT_LE(norm(got - m.grad()).item(), 0.01 * norm(m.grad()).item());
      }
    }
}

#ifdef MIXTAPE_EMULATED
// The bytes of all operands of all kernels, each counted once a kernel, for 1,024
// positions of 64 features, forward and backward: heads and batches are alike. The number is
// a T^2 + b T + c for T positions, which follows from three small sizes.
TEST(DeviceAttention, MovesAtMostSixPercentOfTheBytesOfSeparateKernels) {
  const auto bytes_of = [&](int64_t positions, int64_t features) {
    const Inputs x(positions, features);
    const int64_t before = simt::bytes_given;
    x.run();
    return double(simt::bytes_given - before);
  };
  const auto at_1024 = [&](int64_t features) {
    const double y[] = {bytes_of(64, features), bytes_of(128, features), bytes_of(192, features)};
    const double n = 1024.0 / 64;  // the parabola through 1, 2 and 3
    return y[0] + (n - 1) * (y[1] - y[0]) + (n - 1) * (n - 2) / 2 * (y[2] - 2 * y[1] + y[0]);
  };
  // (Other numbers of features have no such kernel. Products of 72 features move 1 % more.)
  const double fused = at_1024(64), separate = at_1024(72);
  RecordProperty("percent", std::to_string(100 * fused / separate));
  EXPECT_LE(fused, 0.06 * separate) << fused << " and " << separate;
}
#endif

TEST(DeviceAttention, DropsWhatTheCpuDrops) {
  for (const int64_t keys : {64, 61}) {
    const Tensor q = zeros({3, 20, 64}, bf16), k = zeros({3, keys, 64}, bf16),
                 v = eye(64, bf16)[Slice(0, keys)];
    const auto kept = [&](Device on) {
      const Seed seed(5);
      return to_vector(
          scaled_dot_product_attention(q.to(on), k.to(on), v.to(on), {.dropout = 0.4}));
    };
    const std::vector<double> here = kept(Device::cpu()), there = kept(device);
    int64_t zeros = 0;
    for (size_t i = 0; i < here.size(); ++i) {
      EXPECT_EQ(here[i] == 0, there[i] == 0) << keys << " keys, element " << i;
      zeros += here[i] == 0;
    }
    EXPECT_GT(zeros, 1000);
    EXPECT_LT(zeros, 2500);
  }
}

// Dtypes, and how the result is stored, do not depend on the kernel.
TEST(DeviceAttention, RunsUnderAutocast) {
  const Inputs x(20, 32, f32);
  const amp::Autocast on({.low = f16});
  const Tensor y = scaled_dot_product_attention(x.q, x.k, x.v);
  EXPECT_EQ(y.dtype(), f16);
  EXPECT_EQ(y.shape(), (Shape{1, 2, 20, 32}));
  EXPECT_TRUE(transpose(y, 1, 2).is_contiguous());  // heads are joined without a copy
  sum(y).backward();
  EXPECT_EQ(x.leaves[0].grad().dtype(), f32);
}

// A gradient that is differentiated again is made of ops.
TEST(DeviceAttention, IsDifferentiatedTwice) {
  const Inputs x(5, 32);
  const Tensor y = scaled_dot_product_attention(x.q, x.k, x.v);
  const Tensor dq = grad({sum(square(y))}, {x.q}, {.retain_graph = true, .create_graph = true})[0];
  const Tensor once = grad({sum(square(y))}, {x.q}, {.retain_graph = true})[0];
  for (int64_t i = 0; i < once.numel(); ++i) EXPECT_NEAR(dq.at(i), once.at(i), 2e-2) << i;
  sum(square(dq)).backward();
  for (const Tensor& t : x.leaves) EXPECT_TRUE(t.has_grad());
}

}  // namespace device_attention_test
}  // namespace mixtape
