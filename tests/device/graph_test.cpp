// Graphs: a captured step, replayed, does bit for bit what the step does.
#include "core/graph.h"

#include <gtest/gtest.h>

#include "autograd/checkpoint.h"
#include "autograd/functional.h"
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

TEST(Graph, DrawsNewNumbersAtEachReplay) {
  const Tensor x = full({300}, 1, f32, device), w = full({300}, 2, f32, device);
  w.set_requires_grad();
  Tensor y, dw;
  const auto step = [&] {  // a mask in forward, in backward, and in a second forward
    y = dropout(x * w, 0.5) + rand({300}, f32, device);
    const Tensor z = checkpoint([&](const Tensor& t) { return dropout(t * t, 0.25); }, y);
    const Tensor wide = cast(randint(0, int64_t{1} << 40, {300}, device), f32);
    dw = grad({sum(z * wide)}, {w})[0];
  };
  step();
  Graph graph(device);
  std::vector<std::vector<double>> eager, replayed;
  {
    const Seed seed(7);
    for (int i = 0; i < 3; ++i) {
      step();
      eager.push_back(to_vector(y));
      eager.push_back(to_vector(dw));
    }
  }
  Seed seed(7);
  {
    const Capture on(graph);
    step();
  }
  EXPECT_EQ((*seed).offset(), 0u);  // nothing was drawn yet
  for (int i = 0; i < 3; ++i) {
    if (i == 2) {  // where the generator is now
      const uint64_t at = (*seed).offset();
      rand({8}, f32, device);
      (*seed).set_offset(at);
    }
    graph.replay();
    replayed.push_back(to_vector(y));
    replayed.push_back(to_vector(dw));
  }
  EXPECT_EQ(replayed, eager);
  EXPECT_NE(eager[0], eager[2]);
}

TEST(Graph, ASeedInsideDrawsTheSameAtEachReplay) {
  Tensor y;
  Graph graph(device);
  {
    const Capture on(graph);
    const Seed seed(3);
    y = rand({5}, f32, device);
  }
  const Seed seed(3);
  const std::vector<double> want = to_vector(rand({5}, f32, device));
  for (int i = 0; i < 2; ++i) {
    graph.replay();
    EXPECT_EQ(to_vector(y), want);
  }
}

}  // namespace device_graph_test
}  // namespace mixtape
