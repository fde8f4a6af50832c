// Graphs: a captured step, replayed, does bit for bit what the step does.
#include "core/graph.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "core/capture.h"
#include "core/random.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace device_graph_test {

const Device device = Device::cuda();

std::vector<double> values(const Tensor& t) { return to_vector(t); }

TEST(Graph, ReplaysAChain) {
  const Tensor x = full({1000}, 1, f32, device);
  Tensor y;
  const auto step = [&] { y = relu(x * 2 - 1) + exp(neg(x)); };
  step();
  Graph graph(device);
  {
    const Capture on(graph);
    step();
  }
  for (double value : {0.25, -1.0, 3.0}) {
    fill_(x, value);
    const Tensor eager = relu(x * 2 - 1) + exp(neg(x));
    graph.replay();
    EXPECT_EQ(values(y), values(eager)) << value;
  }
}

}  // namespace device_graph_test
}  // namespace mixtape
