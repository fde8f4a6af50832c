// Graphs: a captured step, replayed, does bit for bit what the step does.
#include "core/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/capture.h"
#include "core/random.h"
#include "core/stream.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace device_graph_test {

const Device device = Device::cuda();

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
    EXPECT_EQ(to_vector(y), to_vector(eager)) << value;
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

// A net, its training, and all that a step changes.
struct Net : nn::Module<Net> {
  nn::Linear in{12, 32};
  nn::BatchNorm1d norm{32};
  nn::Linear out{32, 5};
  MIXTAPE_FIELDS(in, norm, out)
  Tensor forward(const Tensor& x) const { return out(dropout(relu(norm(in(x))), 0.25)); }
};
struct Training {
  Seed seed{11};
  Net net;
  Tensor x{{16, 12}, f32, device}, y{{16}, i64, device}, boost{{}, f32, device}, loss, norm;
  amp::GradScaler scaler{{.init_scale = 1024, .growth_interval = 3}};
  std::unique_ptr<optim::Optimizer> opt;
  std::optional<optim::Cosine> schedule;
  amp::StepResult result;

  template <class Make>
  explicit Training(const Make& make) {
    net.to(device);
    opt = make(net);
    schedule.emplace(*opt, optim::CosineOptions{.total_steps = 20});
  }
  void step() {
    opt->zero_grad();
    {
      const amp::Autocast on({.low = f16});
      loss = cross_entropy(net(x), y) * boost;
    }
    scaler.scale(loss).backward();
    scaler.unscale(*opt);
    norm = optim::clip_grad_norm(net.parameters(), 0.5);
    result = scaler.step(*opt);
    scaler.update();
  }
  void load(int i) {
    const Seed other(uint64_t(i) + 100);
    copy_(x, randn({16, 12}, f32, device));
    copy_(y, randint(0, 5, {16}, device));
    fill_(boost, i == 6 ? 1e30 : 1);  // gradients overflow
  }
  std::vector<std::vector<double>> state() {
    std::vector<std::vector<double>> all;
    for (const auto& [name, t] : net.state_dict()) all.push_back(to_vector(t));
    for (const auto& [name, t] : opt->state_dict()) all.push_back(to_vector(t));
    for (const auto& [name, t] : scaler.state_dict()) all.push_back(to_vector(t));
    for (const Tensor& p : net.parameters())
      for (const double g : to_vector(p.grad())) all.push_back({std::isfinite(g) ? g : 0});
    all.push_back({loss.item(), double(bool(result)), opt->lr(), double((*seed).offset())});
    return all;
  }
};

template <class Make>
void expect_same_training(const Make& make) {
  std::vector<std::vector<std::vector<double>>> eager;
  {
    Training t(make);
    for (int i = 0; i < 12; ++i) {
      t.load(i);
      t.step();
      t.schedule->step(t.result);
      eager.push_back(t.state());
    }
  }
  Training t(make);
  Graph graph(device);
  for (int i = 0; i < 12; ++i) {
    t.load(i);
    if (i < 2) {
      t.step();
    } else {
      if (i == 2) {
        const Capture on(graph);
        t.step();
      }
      const int64_t waits = synchronizations();
      const MemoryStats before = memory_stats(device);
      graph.replay();
      EXPECT_EQ(synchronizations(), waits);
      EXPECT_EQ(memory_stats(device).allocations, before.allocations);
      EXPECT_EQ(memory_stats(device).system_calls, before.system_calls);
    }
    t.schedule->step(t.result);
    ASSERT_EQ(t.state(), eager[size_t(i)]) << "step " << i << " of " << t.opt->name();
  }
  EXPECT_EQ(t.scaler.counters().skipped, 1);
}
TEST(Graph, TrainsAsEagerly) {
  const auto with = []<class O>(const O& options) {
    return [=](const Net& net) {
      return std::make_unique<optim::OptimizerOf<O>>(net.parameters(), options);
    };
  };
  expect_same_training(with(optim::SGDOptions{.lr = 0.1, .momentum = 0.9}));
  expect_same_training(with(optim::AdamOptions{.lr = 0.01}));
  expect_same_training(with(optim::LambOptions{.lr = 0.01}));
  expect_same_training([](const Net& net) {
    auto all = std::make_unique<optim::Muon>(std::vector<Tensor>{net.in.weight, net.out.weight},
                                             optim::MuonOptions{.lr = 0.02},
                                             optim::CommonOptions{.shadow = f16});
    all->add_group({net.in.bias, net.out.bias, net.norm.weight, net.norm.bias},
                   optim::AdamWOptions{});
    return all;
  });
}

}  // namespace device_graph_test
}  // namespace mixtape
