// Every op, forward and backward, in a graph: replays compute what the op does, from other inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/graph.h"
#include "core/random.h"
#include "tests/support/op_cases.h"
#include "tests/support/owned.h"

namespace mixtape {
using namespace internal;
namespace device_graph_rows_test {

using tests::OpCase;

const Device device = Device::cuda();

// Ops whose shape the values of a mask decide, and one that moves to the host.
const std::vector<std::string> refused{"gather_index_mask", "gather_masked_select",
                                       "gather_masked_select_broadcast", "scatter_index_put_mask",
                                       "to_device"};

std::vector<Tensor> result_and_gradients(const OpCase& c, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all{c.run(inputs)}, leaves;
  for (const Tensor& x : inputs)
    if (x.requires_grad()) leaves.push_back(x);
  if (all[0].requires_grad())
    for (const Tensor& dx : grad({all[0]}, leaves,
                                 {.gradients = {full(all[0].shape(), 0.5, all[0].dtype(), device)},
                                  .allow_unused = true}))
      all.push_back(dx);
  return all;
}
class Rows : public testing::TestWithParam<OpCase> {};
TEST_P(Rows, ReplayWithOtherInputsOrSayWhyNot) {
  const OpCase& c = GetParam();
  const auto made = [&](uint64_t seed) {
    std::vector<Tensor> there;
    for (const Tensor& x : tests::make_inputs(c, f32, false, tests::shapes(c), seed))
      there.push_back(x.to(device));
    return there;
  };
  const std::vector<Tensor> inputs = made(100);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (c.differentiable && c.inputs[i].differentiated()) inputs[i].set_requires_grad();
  const auto run = [&] {
    const DefaultDevice there(device);
    const Seed seed(9);
    return result_and_gradients(c, inputs);
  };
  run();
  Graph graph(device);
  std::vector<Tensor> captured;
  const test::Owned owned(device);
  try {
    const Capture on(graph);
    captured = run();
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("impossible during a capture"), std::string::npos) << what;
    EXPECT_TRUE(std::ranges::count(refused, c.name())) << what;
    return;
  }
  for (const uint64_t seed : {100, 300}) {
    const NoGrad off;
    const std::vector<Tensor> next = made(seed);
    for (size_t i = 0; i < inputs.size(); ++i) copy_(inputs[i], next[i]);
    owned.poison();
    graph.replay();
    std::vector<Tensor> want;
    {
      const ScopedValue<&ThreadState::recording> record(true);
      want = run();
    }
    for (size_t i = 0; i < want.size(); ++i) {
      if (!want[i]) continue;
      const std::vector<double> x = to_vector(captured[i]), y = to_vector(want[i]);
      for (size_t k = 0; k < y.size(); ++k)
        ASSERT_TRUE(x[k] == y[k] || (std::isnan(x[k]) && std::isnan(y[k])))
            << "seed " << seed << ", result " << i << ", element " << k << ": " << x[k] << ", "
            << y[k];
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Every, Rows, testing::ValuesIn(tests::device_cases()),
                         [](const auto& info) { return info.param.name(); });

}  // namespace device_graph_rows_test
}  // namespace mixtape
