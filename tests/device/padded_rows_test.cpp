// Long rows of a product on a GPU begin at multiples of 16 bytes: only strides show it,
// and the products of their gradients copy 16 bytes at a time.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/format.h"
#include "tests/support/op_cases.h"
#ifdef MIXTAPE_EMULATED
#include "kernels/cuda/gpu.cuh"
#endif

namespace mixtape {
using namespace internal;
namespace padded_rows_test {

const Device device = Device::cuda();
constexpr int64_t features = 24;

struct Inputs {
  Tensor x, weight, bias, target;

  Inputs(DType dtype, int64_t classes, Device where) {
    const Seed seed(1);
    const auto made = [&](const Shape& shape) {
      return cast(randn(shape), dtype).to(where).set_requires_grad();
    };
    x = made({2, 5, features});
    weight = made({classes, features});
    bias = made({classes});
    target = cast(from({0, 5, 1026, 3, -100, 77, 1000, 2, 1, 8}, {2, 5}), i64).to(where);
  }
  std::vector<Tensor> parameters() const { return {x, weight, bias}; }
};

void expect_close(const Tensor& got, const Tensor& want, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  const std::vector<double> x = to_vector(got), y = to_vector(want);
  double scale = 1;
  for (const double v : y) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < y.size(); ++i)
    ASSERT_NEAR(x[i], y[i], tolerance * scale) << what << ", element " << i;
}

// Tensors of the loss and the gradients that `loss` gives on the device and on the CPU.
template <class Loss>
void expect_equal_to_cpu(const Loss& loss, const std::string& what) {
  for (const DType dtype : {f32, bf16}) {
    const Inputs here(dtype, 1027, device), there(dtype, 1027, Device::cpu());
    const Tensor got = loss(here), want = loss(there);
    got.backward();
    want.backward();
    const double tolerance = dtype == f32 ? 1e-5 : 2e-2;
    const std::string of = fmt::format("{} of {}", what, dtype);
    expect_close(got, want, tolerance, of);
    for (size_t i = 0; i < 3; ++i)
      expect_close(here.parameters()[i].grad(), there.parameters()[i].grad(), tolerance,
                   fmt::format("{}, gradient {}", of, i));
  }
}

TEST(PaddedRows, AreThoseOfLongResultsOfLinear) {
  for (const DType dtype : {f32, bf16, f16}) {
    const Inputs in(dtype, 1027, device);
    const Tensor y = linear(in.x, in.weight, in.bias);
    EXPECT_EQ(y.shape(), (Shape{2, 5, 1027}));
    EXPECT_EQ(y.strides(), (Shape{5 * 1032, 1032, 1}));
    EXPECT_EQ(cast(y, f32).strides(), y.strides()) << "elementwise results keep it";
    EXPECT_TRUE(y.contiguous().is_contiguous());
  }
  EXPECT_TRUE(
      linear(Inputs(f32, 1032, device).x, Inputs(f32, 1032, device).weight, {}).is_contiguous());
  EXPECT_TRUE(
      linear(Inputs(f32, 27, device).x, Inputs(f32, 27, device).weight, {}).is_contiguous());
  const Inputs on_cpu(f32, 1027, Device::cpu());
  EXPECT_TRUE(linear(on_cpu.x, on_cpu.weight, {}).is_contiguous());
}
TEST(PaddedRows, GiveTheSameLossesAndGradients) {
  const auto rows = [](const Tensor& y) { return reshape(y, {-1, y.size(-1)}); };
  expect_equal_to_cpu(
      [&](const Inputs& in) {
        return cross_entropy(rows(linear(in.x, in.weight, in.bias)), flatten(in.target),
                             {.label_smoothing = 0.1});
      },
      "cross_entropy");
  expect_equal_to_cpu(
      [&](const Inputs& in) {
        return linear_cross_entropy(rows(in.x), in.weight, flatten(in.target), {.bias = in.bias});
      },
      "linear_cross_entropy");
  for (const Activation f : {Activation::Relu, Activation::Gelu})
    expect_equal_to_cpu(
        [&](const Inputs& in) {
          const Tensor y = linear(in.x, in.weight, in.bias, {.activation = f});
          return mean(y * y + softmax(y, -1)) + mean(narrow(y, 2, 3, 1000)) + mean(y.t());
        },
        "activation");
}
TEST(PaddedRows, AreTakenByOps) {
  const Inputs in(f32, 1027, device);
  const NoGrad off;
  const Tensor padded = linear(in.x, in.weight, in.bias), dense = padded.contiguous();
  const std::pair<const char*, Tensor (*)(const Tensor&)> ops[] = {
      {"clone", [](const Tensor& t) { return clone(t); }},
      {"to the CPU", [](const Tensor& t) { return t.to(Device::cpu()); }},
      {"add_", [](const Tensor& t) { return add_(clone(t), t); }},
      {"flatten", [](const Tensor& t) { return flatten(t); }},
      {"sum", [](const Tensor& t) { return sum(t, {0, 1}); }},
      {"sums of rows", [](const Tensor& t) { return sum(t, {-1}); }},
      {"argmax", [](const Tensor& t) { return argmax(t, -1); }},
      {"log_softmax", [](const Tensor& t) { return log_softmax(t, -1); }},
      {"layer_norm", [](const Tensor& t) { return layer_norm(t, {t.size(-1)}); }},
      {"sort", [](const Tensor& t) { return sort(t).values; }},
      {"product", [](const Tensor& t) { return matmul(t, t.t()); }},
      {"cat", [](const Tensor& t) { return cat({t, t}, 1); }},
      {"where", [](const Tensor& t) { return where(gt(t, 0), t, -t); }},
      {"cumsum", [](const Tensor& t) { return cumsum(t, -1); }},
  };
  for (const auto& [name, op] : ops) expect_close(op(padded), op(dense), 1e-6, name);
}
#ifdef MIXTAPE_EMULATED
TEST(PaddedRows, AreCopiedInTheBackground) {
  // As many copies of 16 bytes as rows whose length needs no padding.
  const auto copies = [](int64_t classes, bool by_chunks) {
    const Inputs in(bf16, classes, device);
    const Tensor target = flatten(clamp(in.target, 0, 1000)), x = flatten(in.x, 0, 1);
    const int64_t before = simt::cp_asyncs();
    const Tensor loss = by_chunks ? linear_cross_entropy(x, in.weight, target)
                                  : cross_entropy(linear(x, in.weight, {}), target);
    loss.backward();
    synchronize(device);
    return simt::cp_asyncs() - before;
  };
  for (const bool by_chunks : {false, true}) {
    EXPECT_GT(copies(1032, by_chunks), 0);
    EXPECT_EQ(copies(1027, by_chunks), copies(1032, by_chunks)) << by_chunks;
  }
}
#endif

}  // namespace padded_rows_test
}  // namespace mixtape
