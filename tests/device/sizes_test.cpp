// Ops on a device at sizes for which kernels cooperate: several warps or blocks per result, several
// tiles or passes, parts that are joined. The rows of device_test are too small.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "autograd/ops.h"
#include "core/random.h"
#include "core/runtime.h"
#include "kernels/cuda/gemm/gemm.h"

namespace mixtape {
namespace device_sizes_test {

struct Case {
  const char* name;
  std::vector<Shape> shapes;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  double tolerance = 1e-5;
  DType dtype = f32;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

using In = const std::vector<Tensor>&;
Tensor indices(int64_t n, int64_t below, Device on) {
  return remainder(arange(0, n, 1, i64, Device::cpu()) * 7919, below).to(on);
}
Tensor product(In t) { return matmul(t[0], t[1]); }
// A product of 16-bit numbers that is added to f32, as in a block of a transformer.
Tensor added(In t) { return linear(cast(t[0], bf16), cast(t[1], bf16), {}, {.residual = t[2]}); }
// The product on the device, by the plan of larger ones.
template <int tile, int split>
Tensor by_plan(In t) {
  if (t[0].device().is_host()) return product(t).detach();
  const Tensor c({t[0].size(0), t[1].size(1)}, t[0].dtype(), t[0].device());
  kernels::Launch launch(c.device());
  kernels::cuda::gemm(launch, t[0], t[1], {}, c, {tile, split});
  return c;
}

// The same by groups of warps, of operands that are transposed or not.
template <int tile, int split, bool ta, bool tb>
Tensor by_groups(In t) {
  const Tensor a = ta ? transpose(t[0], 0, 1) : t[0], b = tb ? transpose(t[1], 0, 1) : t[1];
  if (a.device().is_host()) return matmul(a, b).detach();
  const Tensor c({a.size(0), b.size(1)}, a.dtype(), a.device());
  kernels::Launch launch(c.device());
  kernels::cuda::gemm(launch, a, b, {}, c, {tile, split, kernels::cuda::Tier::Groups});
  return c;
}

const Case cases[] = {
    {"softmax", {{3, 20'000}}, [](In t) { return softmax(t[0]); }},
    {"softmax_one_block", {{3, 3001}}, [](In t) { return softmax(t[0]); }},
    {"layer_norm", {{3, 5001}}, [](In t) { return layer_norm(t[0], {5001}); }},
    {"group_norm", {{2, 6, 40, 41}}, [](In t) { return group_norm(t[0], 2); }},
    {"batch_norm",
     {{8, 3, 40, 41}},
     [](In t) { return batch_norm(t[0], {}, {}, {}, {}, {.training = true}); }},
    {"cross_entropy",
     {{5, 9001}},
     [](In t) { return cross_entropy(t[0], indices(5, 9001, t[0].device())); }},
    {"sum", {{200'001}}, [](In t) { return sum(t[0]); }},
    {"sum_rows", {{3, 9001}}, [](In t) { return sum(t[0], {1}); }},
    {"sum_columns", {{9001, 40}}, [](In t) { return sum(t[0], {0}); }},
    {"max", {{3, 9001}}, [](In t) { return max(t[0], {1}); }},
    {"argmax", {{3, 30'001}}, [](In t) { return argmax(t[0], 1); }},
    {"argsort", {{2, 5001}}, [](In t) { return argsort(t[0]); }},
    {"argsort_one_block", {{3, 2000}}, [](In t) { return argsort(t[0]); }},
    {"topk", {{2, 9001}}, [](In t) { return topk(t[0], 40).values; }},
    {"cumsum", {{2, 20'001}}, [](In t) { return cumsum(t[0], 1); }, 1e-4},
    {"cumsum_columns", {{2001, 5}}, [](In t) { return cumsum(t[0], 0); }, 1e-4},
    {"nonzero", {{9001}}, [](In t) { return nonzero(gt(t[0], 0.0)); }},
    {"embedding",
     {{50, 33}},
     [](In t) { return embedding(t[0], indices(3000, 50, t[0].device())); },
     1e-4},
    {"max_pool2d",
     {{2, 3, 81, 80}},
     [](In t) { return max_pool2d(t[0], {3, 3}, {.stride = {2, 2}, .padding = {1, 1}}); }},
    {"depthwise",
     {{4, 2, 40, 41}, {2, 1, 3, 3}},
     [](In t) { return conv2d(t[0], t[1], {}, {.padding = {1, 1}, .groups = 2}); }},
    {"conv2d",
     {{9, 5, 20, 21}, {7, 5, 3, 3}},
     [](In t) { return conv2d(t[0], t[1], {}, {.padding = {1, 1}}); }},
    {"matmul", {{300, 70}, {70, 301}}, product},
    {"matmul_split", {{40, 5000}, {5000, 33}}, product},
    {"linear_and_residual", {{130, 260}, {133, 260}, {130, 133}}, added, 2e-2},
    {"matmul_f64", {{90, 300}, {300, 70}}, product, 1e-12, f64},
    {"tile_0_f16", {{130, 600}, {600, 260}}, by_plan<0, 2>, 3e-3, f16},
    {"tile_1_bf16", {{130, 257}, {257, 260}}, by_plan<1, 1>, 2e-2, bf16},
    {"tile_1_tf32", {{130, 600}, {600, 132}}, by_plan<1, 2>, 3e-3},
    {"tile_2_f16", {{130, 600}, {600, 70}}, by_plan<2, 1>, 3e-3, f16},
    {"tile_3_f32", {{130, 600}, {600, 133}}, by_plan<3, 2>},
};

// For devices of compute capability 9.0.
const Case hopper_cases[] = {
    {"f16", {{300, 600}, {600, 520}}, by_groups<0, 1, false, false>, 3e-3, f16},
    {"bf16_by_columns", {{600, 304}, {520, 600}}, by_groups<1, 2, true, true>, 2e-2, bf16},
    {"bf16_nt", {{300, 600}, {521, 600}}, by_groups<0, 1, false, true>, 2e-2, bf16},
    {"f16_tn", {{600, 304}, {600, 520}}, by_groups<1, 1, true, false>, 3e-3, f16},
    {"tf32", {{130, 300}, {264, 300}}, by_groups<0, 1, false, true>, 3e-3},
    {"batch", {{3, 136, 264}, {3, 264, 128}}, product, 2e-2, bf16},
    {"linear_and_residual", {{256, 512}, {520, 512}, {256, 520}}, added, 2e-2},
    {"linear",
     {{256, 512}, {512, 512}, {512}},
     [](In t) { return gelu(linear(t[0], t[1], t[2])); },
     2e-2,
     bf16},
};

struct Large : testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Large, testing::ValuesIn(cases),
                         [](const auto& i) { return i.param.name; });
struct LargeOnHopper : testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Sizes, LargeOnHopper, testing::ValuesIn(hopper_cases),
                         [](const auto& i) { return i.param.name; });

// The value, then the gradients.
std::vector<std::vector<double>> results(const Case& c, Device on) {
  const Seed seed(1);
  std::vector<Tensor> in;
  for (const Shape& shape : c.shapes)
    in.push_back(randn(shape, c.dtype, Device::cpu()).to(on).set_requires_grad());
  const Tensor y = c.run(in);
  std::vector<std::vector<double>> all{to_vector(y)};
  if (!y.requires_grad()) return all;
  const Tensor dy = randn(y.shape(), y.dtype(), Device::cpu()).to(on);
  for (const Tensor& dx : grad({y}, in, {.gradients = {dy}})) all.push_back(to_vector(dx));
  return all;
}

void expect_same_as_on_the_cpu(const Case& c, Device on) {
  const auto got = results(c, on), want = results(c, Device::cpu());
  ASSERT_EQ(got.size(), want.size());
  for (size_t k = 0; k < want.size(); ++k) {
    ASSERT_EQ(got[k].size(), want[k].size()) << k;
    double largest = 1;
    for (const double x : want[k]) largest = std::max(largest, std::abs(x));
    for (size_t i = 0; i < want[k].size(); ++i)
      ASSERT_NEAR(got[k][i], want[k][i], c.tolerance * largest)
          << (k == 0 ? "value" : "gradient") << ", element " << i;
  }
}
TEST_P(Large, IsWhatItIsOnTheCpu) { expect_same_as_on_the_cpu(GetParam(), Device::cuda()); }
TEST_P(LargeOnHopper, IsWhatItIsOnTheCpu) {
  const runtime::Runtime& cuda = runtime::cuda();
  for (int i = 0; i < cuda.device_count(); ++i)
    if (cuda.properties(i).major == 9)
      return expect_same_as_on_the_cpu(GetParam(), Device::cuda(i));
  GTEST_SKIP() << "no device of compute capability 9.0";
}

}  // namespace device_sizes_test
}  // namespace mixtape
