// Every op, forward and backward, on shapes alone: results and gradients have the shapes, dtypes
// and strides that they have on the device, and as much memory is taken at most.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/dispatch.h"
#include "core/format.h"
#include "core/random.h"
#include "tests/support/errors.h"
#include "tests/support/op_rows/rows.h"

namespace mixtape {
namespace autograd_meta_test {

using tests::OpCase;

// Rows that read values, of a mask or of lengths.
const std::vector<std::string> refused{
    "gather_index_mask", "gather_masked_select", "gather_masked_select_broadcast",
    "scatter_index_put_mask", "to_device",
    // composed
    "matmul_cov_weighted", "matmul_cov_of_times", "scatter_add_histc_of_all", "lerp_quantiles",
    "gather_quantiles_lower", "gather_quantiles_higher", "gather_quantiles_nearest",
    "lerp_quantiles_midpoint", "median_nanmedian_of_all", "where_nanquantiles",
    "gather_repeat_interleave_each", "embedding_bag", "embedding_bag_sum", "embedding_bag_weighted",
    "embedding_bag_max", "eq_one_hot", "argsort_unique", "ne_unique_consecutive",
    "argsort_unique_slices", "ne_unique_consecutive_slices", "scatter_add_bincount",
    "gather_ctc_loss_of_joined_targets"};

struct Watching final : internal::Observer {
  bool reads_values() const override { return false; }
};

struct Made {
  std::vector<std::string> tensors;  // the result, and gradients
  int64_t peak;
};

Made run_on(Device device, const OpCase& c, DType dtype) {
  std::vector<Tensor> inputs;
  for (const Tensor& x : tests::make_inputs(c, dtype, false)) inputs.push_back(x.to(device));
  std::vector<Tensor> leaves;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (c.differentiable && c.inputs[i].differentiated())
      leaves.push_back(inputs[i].set_requires_grad());
  const DefaultDevice here(device);
  const Seed seed(9);
  const int64_t before = memory_stats(device).in_use;
  reset_peak(device);
  Watching nothing;  // which changes nothing
  std::optional<Observe> watched;
  if (device.is_meta()) watched.emplace(nothing);
  std::vector<Tensor> all{c.run(inputs)};
  if (all[0].requires_grad())
    for (const Tensor& dx :
         grad({all[0]}, leaves,
              {.gradients = {full(all[0].shape(), 0.5, all[0].dtype())}, .allow_unused = true}))
      all.push_back(dx);
  Made made{{}, memory_stats(device).peak - before};
  for (const Tensor& t : all)
    made.tensors.push_back(t ? fmt::format("{} {} {}", t.dtype(), t.shape(), t.strides()) : "none");
  return made;
}

class Shapes : public testing::TestWithParam<OpCase> {};
TEST_P(Shapes, AreThoseOfTheDevice) {
  const OpCase& c = GetParam();
  for (const Device device : {Device::cpu(), Device::best()})
    for (const DType dtype : {f32, bf16}) {
      if ((is_half(dtype) && !c.half) || (c.cpu_only && !device.is_host())) continue;
      const Device meta = Device::meta(device.type);
      if (std::ranges::count(refused, c.name())) {
        EXPECT_ERROR(run_on(meta, c, dtype), "has a shape, but no values");
        continue;
      }
      const Made want = run_on(device, c, dtype), made = run_on(meta, c, dtype);
      EXPECT_EQ(made.tensors, want.tensors) << fmt::format("{} {}", device, dtype);
      if (c.op == "det_gradient") continue;  // singular matrices take more
      EXPECT_EQ(made.peak, want.peak) << fmt::format("{} {}", device, dtype);
    }
}
INSTANTIATE_TEST_SUITE_P(Composed, Shapes, testing::ValuesIn(tests::composed()),
                         [](const auto& c) { return c.param.name(); });
INSTANTIATE_TEST_SUITE_P(Meta, Shapes, testing::ValuesIn(tests::op_cases()),
                         [](const auto& c) { return c.param.name(); });

// A plan for a GPU must not accept what the GPU would refuse, in builds without CUDA either.
TEST(Meta, RefusesKernelsThatADeviceLacks) {
  int rows = 0;
  for (const OpCase& c : tests::op_cases()) {
    if (!c.cpu_only) continue;
    ++rows;
    EXPECT_ERROR(run_on(Device::meta(DeviceType::cuda), c, f32),
                 "runs on the CPU alone, not on meta:cuda (move the tensors: x.to(Device::cpu()))");
  }
  EXPECT_GT(rows, 0);
}

}  // namespace autograd_meta_test
}  // namespace mixtape
