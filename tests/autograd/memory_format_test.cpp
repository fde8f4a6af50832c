// Images with channels last: which ops keep the order of memory, and that numbers are the same.

#include <gtest/gtest.h>

#include <functional>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/tf32.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace memory_format_test {

constexpr MemoryFormat last = MemoryFormat::ChannelsLast, rows = MemoryFormat::Contiguous;

Tensor image() { return reshape(arange(0, 2 * 3 * 4 * 5, 1, f32), {2, 3, 4, 5}); }

TEST(MemoryFormat, OrdersTheSameElements) {
  const Tensor x = image(), y = x.to(last);
  EXPECT_EQ(y.shape(), x.shape());
  EXPECT_EQ(y.strides(), (Shape{60, 1, 15, 3}));
  EXPECT_EQ(to_vector(y), to_vector(x));
  EXPECT_TRUE(y.is_contiguous(last));
  EXPECT_FALSE(y.is_contiguous());
  EXPECT_FALSE(x.is_contiguous(last));
  EXPECT_TRUE(y.to(last).is_same(y));
  EXPECT_TRUE(x.to(rows).is_same(x));
  EXPECT_TRUE(y.to(rows).is_contiguous());
  EXPECT_TRUE(permute(y, {0, 2, 3, 1}).is_contiguous());
  EXPECT_TRUE(zeros({2, 1, 4, 5}).is_contiguous(last));  // both
  EXPECT_TRUE(zeros({2, 6, 1, 1}).is_contiguous(last));
  EXPECT_TRUE(zeros({0, 3, 4, 5}).is_contiguous(last));
  EXPECT_FALSE(zeros({3, 4}).is_contiguous(last));
  EXPECT_ERROR(zeros({3, 4}).to(last), "channels last of shape [3, 4], not [n, c, ...]");
  EXPECT_EQ(zeros({2, 3, 4}).to(last).strides(), (Shape{12, 1, 3}));
}

TEST(MemoryFormat, StaysInElementwiseOps) {
  const Tensor x = image().to(last), y = image();
  const std::vector<std::pair<Tensor, Tensor>> pairs = {
      {relu(x), relu(y)},
      {x * 2, y * 2},
      {x + x, y + y},
      {y + x, y + y},
      {x * reshape(arange(0, 3, 1, f32), {3, 1, 1}), y * reshape(arange(0, 3, 1, f32), {3, 1, 1})},
      {cast(x, f16), cast(y, f16)},
      {where(gt(x, 7), x, 0), where(gt(y, 7), y, 0)},
      {masked_fill(x, gt(x, 7), 1), masked_fill(y, gt(y, 7), 1)},
      {addcmul(x, x, x, 0.5), addcmul(y, y, y, 0.5)},
      {lerp(x, x * 3, 0.25), lerp(y, y * 3, 0.25)},
      {prelu(x - 9, full({3}, 0.5)), prelu(y - 9, full({3}, 0.5))},
      {cat({x, x * 2}, 1), cat({y, y * 2}, 1)},
      {cat({x, y}, -1), cat({y, y}, -1)},
      {pad(x, {1, 0, 2, 1, 0, 3}), pad(y, {1, 0, 2, 1, 0, 3})},
      {pad(slice(x, 2, 0, 4, 2), {0, 0, 0, 0, 1, 1}),
       pad(slice(y, 2, 0, 4, 2), {0, 0, 0, 0, 1, 1})},
      {max_pool2d(narrow(x, 1, 1, 2), 2), max_pool2d(narrow(y, 1, 1, 2), 2)},
      {gt(x, 7), gt(y, 7)},
  };
  for (const auto& [a, b] : pairs) {
    EXPECT_TRUE(a.is_contiguous(last)) << a.strides().to_string();
    EXPECT_EQ(to_vector(a), to_vector(b));
  }
  EXPECT_TRUE(empty_like(x).is_contiguous(last));
  EXPECT_TRUE(x.clone().is_contiguous());
  EXPECT_TRUE(relu(transpose(y, 1, 3)).is_contiguous());  // dense in neither order
}

// (Both orders of one pixel are the same: the op knows which one it was given.)
TEST(MemoryFormat, StaysInGradientsOfWholeImages) {
  for (const auto pool : {adaptive_avg_pool2d, adaptive_max_pool2d}) {
    const Tensor y = image().set_requires_grad().to(last);
    Tensor seen;
    const HookHandle hook = register_hook(y, [&](const Tensor& g) {
      seen = g;
      return Tensor();
    });
    sum(pool(y, {1, 1})).backward();
    EXPECT_TRUE(seen.is_contiguous(last)) << seen.strides().to_string();
  }
}

TEST(MemoryFormat, StaysInGradients) {
  const Tensor w = image() / 7;
  Tensor slopes[2];
  for (const bool ordered : {false, true}) {
    const Tensor x = image().set_requires_grad(), y = ordered ? x.to(last) : x;
    const Tensor a = relu(y - 30), b = a * a + a * 3 - tanh(a) + where(gt(a, 50), a, 0);
    Tensor seen;
    const HookHandle hook = register_hook(y, [&](const Tensor& g) {
      seen = g;
      return Tensor();
    });
    sum(b * (ordered ? w.to(last) : w)).backward();
    slopes[ordered] = x.grad();
    if (ordered) {
      EXPECT_TRUE(seen.is_contiguous(last)) << seen.strides().to_string();
    }
  }
  EXPECT_TRUE(slopes[1].is_contiguous());
  EXPECT_EQ(to_vector(slopes[1]), to_vector(slopes[0]));
}

// A part of an image is dense in neither order, until it is padded.
TEST(MemoryFormat, StaysInGradientsOfParts) {
  const std::vector<std::function<Tensor(const Tensor&)>> parts = {
      [](const Tensor& x) { return slice(x, 2, 0, x.size(2), 2); },
      [](const Tensor& x) { return narrow(narrow(x, 1, 1, 2), 3, 1, 2); },
  };
  for (const auto& part : parts) {
    const Tensor y = image().set_requires_grad().to(last);
    Tensor seen;
    const HookHandle hook = register_hook(y, [&](const Tensor& g) {
      seen = g;
      return Tensor();
    });
    const Tensor padded = pad(part(y), {0, 0, 0, 0, 1, 2});
    sum(padded * padded).backward();
    EXPECT_TRUE(seen.is_contiguous(last)) << seen.strides().to_string();
    EXPECT_EQ(to_vector(seen), to_vector(grad({sum(square(part(y)))}, {y})[0]));
  }
}

// A network of every op that has an order of its own, on the device of the tests.
Tensor network(const Tensor& x, const std::vector<Tensor>& w) {
  Tensor y = relu(
      batch_norm(conv2d(x, w[0], {}, {.padding = {1, 1}}), {}, {}, w[1], w[2], {.training = true}));
  y = max_pool2d(y, {2, 2}) + avg_pool2d(y, {2, 2});
  y = conv2d(y, w[3], w[4], {.stride = {2, 2}, .padding = {1, 1}, .activation = Activation::Gelu});
  y = conv2d(y, w[6], {}, {.activation = Activation::Relu, .residual = y});
  y = conv_transpose2d(y, w[5], w[4], {.stride = {2, 2}});
  return interpolate(y, {3, 5}, {.mode = Interpolation::Bilinear});
}
class NetworkFormat : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(MemoryFormat, NetworkFormat, testing::Values(bf16, f32));
TEST_P(NetworkFormat, Stays) {
  const Tf32 rounded;
  const std::vector<Shape> shapes = {{8, 3, 3, 3},   {8},           {8}, {16, 8, 3, 3}, {16},
                                     {16, 16, 2, 2}, {16, 16, 1, 1}};
  std::vector<Tensor> results[2];
  for (const bool ordered : {false, true}) {
    const Seed seed(3);
    std::vector<Tensor> w;
    for (const Shape& s : shapes) w.push_back((randn(s) / 4).set_requires_grad());
    const Tensor x = randn({2, 3, 6, 8}).set_requires_grad();
    const Tensor y = [&] {
      const amp::Autocast on({.low = bf16, .enabled = GetParam() == bf16});
      return network(ordered ? x.to(last) : x, w);
    }();
    if (ordered) {
      EXPECT_TRUE(y.is_contiguous(last));
    }
    sum(y * y).backward();
    results[ordered] = {y.detach(), x.grad()};
    for (const Tensor& p : w) results[ordered].push_back(p.grad());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    const Tensor want = cast(results[0][i], f32), got = cast(results[1][i], f32);
    EXPECT_LE(max(abs(got - want)).item(), 0.02 * max(abs(want)).item()) << i;
  }
}

struct FormatCase {
  const char* name;
  Shape x, w;
  Conv2dOptions options = {};
  bool residual = false;
};
const FormatCase format_cases[] = {
    {"Point", {3, 32, 5, 7}, {24, 32, 1, 1}},
    {"StridedPoint", {2, 16, 7, 6}, {32, 16, 1, 1}, {.stride = {2, 3}}},
    {"OneChannel", {2, 1, 6, 7}, {8, 1, 3, 3}},
    {"OnePixel", {4, 8, 1, 1}, {16, 8, 1, 1}},
    {"Window", {2, 17, 6, 9}, {19, 17, 3, 2}, {.padding = {1, 2}, .dilation = {2, 1}}},
    {"Groups", {2, 12, 6, 7}, {9, 4, 3, 3}, {.padding = {1, 1}, .groups = 3}},
    {"UnevenDepthwise", {2, 11, 7, 8}, {11, 1, 4, 3}, {.padding = {1, 1}, .groups = 11}},
    {"Residual",
     {2, 16, 4, 5},
     {21, 16, 3, 3},
     {.padding = {1, 1}, .activation = Activation::Relu},
     true},
    {"BeforeGelu", {2, 16, 4, 5}, {32, 16, 1, 1}, {.activation = Activation::Gelu}, true},
};
// The result and all gradients, with x, the residual and the gradient of y in one order.
std::vector<Tensor> convolved(const FormatCase& c, DType dtype, MemoryFormat order) {
  const Seed seed(5);
  const auto leaf = [&](const Shape& shape) {
    return (cast(randn(shape), dtype) / 4).detach().set_requires_grad();
  };
  const Tensor x = leaf(c.x), w = leaf(c.w), bias = leaf({c.w[0]});
  Conv2dOptions o = c.options;
  std::vector<Tensor> leaves{x, w, bias};
  const Shape shape = conv2d(x.detach(), w.detach(), {}, o).shape();
  if (c.residual) {
    leaves.push_back(leaf(shape));
    o.residual = leaves.back().to(order);
  }
  const Tensor y = conv2d(x.to(order), w, bias, o);
  EXPECT_TRUE(y.is_contiguous(order) || c.x[1] == 1);
  const Tensor dy = cast(randn(shape), y.dtype());
  y.backward({.gradient = dy.to(order)});
  std::vector<Tensor> all{y.detach()};
  for (const Tensor& t : leaves) all.push_back(t.grad());
  return all;
}
struct ConvFormat : testing::TestWithParam<std::tuple<FormatCase, DType>> {};
TEST_P(ConvFormat, HasTheSameResults) {
  const auto& [c, dtype] = GetParam();
  if (!DefaultDevice::current().is_host()) GTEST_SKIP() << "kernels of the CPU";
  const std::vector<Tensor> want = convolved(c, dtype, rows), got = convolved(c, dtype, last);
  // Gradients of depthwise weights, and of the bias with them, are summed in an order of their own.
  const size_t same = c.options.groups > 1 && c.options.groups == c.x[1] ? 2 : want.size();
  for (size_t i = 0; i < same; ++i) EXPECT_EQ(to_vector(got[i]), to_vector(want[i])) << i;
  for (size_t i = same; i < want.size(); ++i)
    EXPECT_LE(norm(got[i] - want[i]).item(), (is_half(dtype) ? 1e-2 : 1e-6) * norm(want[i]).item())
        << i;
}
INSTANTIATE_TEST_SUITE_P(MemoryFormat, ConvFormat,
                         testing::Combine(testing::ValuesIn(format_cases),
                                          testing::Values(f32, f64, f16, bf16)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  std::string(name(std::get<1>(info.param)));
                         });

TEST(MemoryFormat, IsTheSameWithoutMemory) {
  const Device here = DefaultDevice::current(), shapes = Device::meta(here.type);
  const auto strides = [](const Device device) {
    const Tensor x = Tensor({2, 8, 6, 9}, f32, device).to(last).set_requires_grad();
    const Tensor w({8, 8, 3, 3}, f32, device), each({8, 1, 3, 3}, f32, device);
    std::vector<Shape> all;
    for (const Tensor& y :
         {conv2d(x, w), conv2d(x, each, {}, {.groups = 8}), conv_transpose2d(x, w),
          max_pool2d(x, 2), adaptive_avg_pool2d(x, {1, 1}), interpolate(x, {12, 18}),
          batch_norm(x, {}, {}, {}, {}, {.training = true}), cat({x, x}, 1), pad(x, {1, 1}),
          pad(x, {-1, 1})}) {
      all.push_back(y.strides());
      const HookHandle hook = register_hook(x, [&](const Tensor& g) {
        all.push_back(g.strides());
        return Tensor();
      });
      sum(y).backward();
    }
    return all;
  };
  EXPECT_EQ(strides(shapes), strides(here));
}

TEST(MemoryFormat, StaysInPoolsAndInterpolation) {
  const std::vector<std::function<Tensor(const Tensor&)>> ops = {
      [](const Tensor& x) { return max_pool2d(x, {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}); },
      [](const Tensor& x) { return adaptive_max_pool2d(x, {3, 2}); },
      [](const Tensor& x) { return avg_pool2d(x, {3, 2}, {.stride = {1, 2}, .padding = {1, 0}}); },
      [](const Tensor& x) { return adaptive_avg_pool2d(x, {2, 5}); },
      [](const Tensor& x) { return adaptive_avg_pool2d(x, {1, 1}); },
      [](const Tensor& x) { return interpolate(x, {5, 12}, {.mode = Interpolation::Bicubic}); },
      [](const Tensor& x) { return interpolate(x, {14, 27}); },
  };
  for (const int64_t channels : {5, 16})
    for (const auto& op : ops) {
      const Tensor x = randn({2, channels, 7, 9});
      Tensor y[2], dx[2];
      for (const bool ordered : {false, true}) {
        const Tensor leaf = x.detach().clone().set_requires_grad();
        y[ordered] = op(ordered ? leaf.to(last) : leaf);
        sum(y[ordered] * y[ordered]).backward();
        dx[ordered] = leaf.grad();
      }
      EXPECT_TRUE(y[1].is_contiguous(last));
      EXPECT_TRUE(allclose(y[1], y[0], 1e-5, 1e-6));
      EXPECT_TRUE(allclose(dx[1], dx[0], 1e-5, 1e-6));
    }
}

}  // namespace memory_format_test
}  // namespace mixtape
