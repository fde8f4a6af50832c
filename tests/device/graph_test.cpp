// Graphs: a captured step, replayed, does bit for bit what the step does.
#include "core/graph.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/capture.h"
#include "core/check.h"
#include "core/random.h"
#include "core/stream.h"
#include "nn/nn.h"
#include "optim/optim.h"
#include "tests/support/child.h"
#include "tests/support/errors.h"
#include "tests/support/owned.h"

namespace mixtape {
using namespace internal;
namespace device_graph_test {

using test::error;
using test::Owned;

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
    const Tensor wide = cast(randint(0, int64_t{1} << 40, {300}, i64, device), f32);
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
    copy_(y, randint(0, 5, {16}, i64, device));
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
  std::optional<Owned> owned;
  for (int i = 0; i < 12; ++i) {
    t.load(i);
    if (i < 2) {
      t.step();
    } else {
      if (i == 2) {
        owned.emplace(device);
        const Capture on(graph);
        t.step();
      }
      owned->poison();
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

// The bits that a step draws change with the count of steps, which is on the device.
TEST(Graph, ReplaysStepsInLessMemory) {
  const auto train = [](bool replays) {
    const Seed seed(5);
    const Tensor p = randn({4200}, bf16, device).set_requires_grad();
    optim::AdamW opt({p}, {.lr = 0.01}, {.rounding = optim::Rounding::Stochastic, .state = i8});
    p.set_grad(randn({4200}, bf16, device));
    opt.step();
    Graph graph(device);
    if (replays) {
      const Capture on(graph);
      opt.step();
    }
    for (int i = 0; i < 4; ++i) replays ? graph.replay() : opt.step();
    return to_vector(p);
  };
  EXPECT_EQ(train(true), train(false));
}

// f in a capture; afterwards the device works as before.
std::string refusal(const std::function<void()>& f) {
  Graph graph(device);
  std::string what = "no error";
  try {
    const Capture on(graph);
    f();
  } catch (const Error& e) {
    what = e.what();
    what = what.substr(0, what.find("\n  at "));
  }
  EXPECT_FALSE(graph.is_captured());
  EXPECT_EQ(sum(ones({3}, f32, device)).item(), 3);
  return what;
}
TEST(Graph, RefusesWhatAReplayCannotRepeat) {
  const Tensor x = ones({4}, f32, device), mask = gt(x, 0);
  const auto cannot = [](const std::string& op, const std::string& why) {
    return op + "impossible during a capture: " + why;
  };
  const std::string read = "nothing has run that the host could read: it can after a replay",
                    write =
                        "a copy from the host would always bring the same values: copy into a "
                        "tensor before it";
  EXPECT_EQ(refusal([&] { (void)x.item(); }), "item() needs one element, but [4] has 4");
  EXPECT_EQ(refusal([&] { (void)sum(x).item(); }), cannot("", read));
  EXPECT_EQ(refusal([&] { nonzero(x); }), cannot("nonzero: ", read));
  EXPECT_EQ(refusal([&] { masked_select(x, mask); }), cannot("masked_select: nonzero: ", read));
  EXPECT_EQ(refusal([&] { x.to(Device::cpu()); }), cannot("to_device: ", read));
  EXPECT_EQ(refusal([&] { from({1, 2}, {2}, f32).to(device); }), cannot("to_device: ", write));
  EXPECT_EQ(refusal([&] { x.set(0, 1); }), cannot("", write));
  EXPECT_EQ(refusal([&] { synchronize(device); }),
            cannot("", "nothing has run that could be waited for"));
  EXPECT_EQ(refusal([&] { ones({2}, f32, Device::cpu()) + 1; }),
            cannot("", "the CPU runs at once, and a replay does not repeat it"));
  EXPECT_EQ(refusal([&] { generator().uniform(); }),
            cannot("", "a random number for the host would be the same in every replay"));
  EXPECT_EQ(refusal([&] { ones({2}, f32, Device::cuda(1)); }),
            "cuda:1 cannot be used during a capture for another device");
  EXPECT_EQ(refusal([&] { runtime::Event event(device); }),
            cannot("", "an event would be of the capture, not of a replay"));
  EXPECT_EQ(refusal([&] { embedding(ones({0, 3}, f32, device), cast(x, i64)); }),
            cannot("embedding: ", read));
}
TEST(Graph, RefusesStepsThatMakeState) {
  nn::Linear net(3, 2);
  net.to(device);
  const auto step = [&](optim::Optimizer& opt) {
    for (const Tensor& p : net.parameters()) p.set_grad(ones(p.shape(), p.dtype(), device));
    opt.step();
  };
  const std::string first = "impossible during a capture: the first step makes ";
  optim::Adam adam(net.parameters());
  EXPECT_EQ(refusal([&] { step(adam); }), "adam: " + first + "state: run it once before");
  optim::SGD shadowed(net.parameters(), {}, {.shadow = f16});
  EXPECT_EQ(
      refusal([&] { step(shadowed); }),
      "sgd: impossible during a capture: the optimizer makes a new shadow, and a replay would "
      "read the old: step once before, and keep no loss with its history");
  amp::GradScaler scaler;
  EXPECT_EQ(refusal([&] { scaler.scale(sum(net(ones({1, 3}, f32, device)))); }),
            "scale: impossible during a capture: a copy from the host would always bring the same "
            "values: copy into a tensor before it");
  optim::Cosine schedule(adam, {.total_steps = 5});
  EXPECT_EQ(refusal([&] { schedule.step(); }),
            "impossible during a capture: a schedule steps between replays");
  optim::Ema ema(net.parameters(), {.warmup = true});
  EXPECT_EQ(
      refusal([&] { ema.update(); }),
      "ema: impossible during a capture: the decay changes: update() averages between replays");
  net.to(f16);
  optim::SGD masters(net.parameters(), {}, {.multi_precision = true});
  EXPECT_EQ(refusal([&] { step(masters); }), "sgd: " + first + "masters: run it once before");
}
TEST(Graph, RefusesScalesThatTheHostFinds) {
  const Tensor w = ones({3}, f32, device).set_requires_grad();
  amp::GradScaler calibrating({.calibrate = true});
  calibrating.scale(sum(w.detach()));  // its state moves to the device
  EXPECT_EQ(refusal([&] { calibrating.scale(sum(w)); }),
            "scale: impossible during a capture: calibrate finds the scale on the host: scale a "
            "loss before");
  struct Kept : amp::LossScalePolicy {
    double next(const Update& u) override { return u.scale; }
  };
  amp::GradScaler asking({.policy = std::make_shared<Kept>()});
  optim::SGD opt({w}, 0.5);
  const auto iterate = [&] {
    asking.scale(sum(w)).backward();
    asking.step(opt);
    opt.zero_grad();
    asking.update();
  };
  iterate();
  EXPECT_EQ(refusal(iterate),
            "update: impossible during a capture: a policy of the scale runs on the host");
}
TEST(Graph, RefusesOptionsThatItCannotChange) {
  const Tensor p = ones({3}, f32, device).set_requires_grad();
  optim::SGD opt({p}, {.lr = 0.5, .momentum = 0.5});
  const auto step = [&] {
    p.set_grad(ones({3}, f32, device));
    opt.step();
  };
  step();
  Graph graph(device);
  {
    const Capture on(graph);
    step();
  }
  opt.set_option("momentum", 0);
  EXPECT_ERROR(graph.replay(),
               "replay: rescale_grad, maximize and the buffers that options ask for cannot change "
               "between replays");
  opt.set_option("momentum", 0.25);
  opt.set_lr(2);
  graph.replay();
  EXPECT_EQ(p.at(0), 1 - 0.5 - 2 * 1.25);
}

TEST(Graph, SaysWhatIsMissing) {
  EXPECT_ERROR(Graph(Device::cpu()),
               "Graph: cpu runs its work at once and queues none that a graph could repeat");
  Graph graph(device);
  EXPECT_ERROR(graph.replay(), "replay: there is no graph to replay: nothing was captured");
  try {
    const Capture on(graph);
    fail("stop");
  } catch (const Error&) {
  }
  EXPECT_ERROR(graph.replay(),
               "replay: there is no graph to replay: its capture was left by an exception");
  Tensor x = ones({4}, f32, device), y;
  {
    const Capture on(graph);
    y = x * 2;
    EXPECT_ERROR(Capture(graph), "Capture: a capture inside another");
    Graph other(device);
    EXPECT_ERROR(other.replay(), "replay: a replay during a capture");
  }
  EXPECT_EQ(graph.device(), device);
  EXPECT_ERROR(Capture(graph), "Capture: this graph was captured before: make another");
  graph.replay();
  EXPECT_EQ(y.at(3), 2);
  x = {};
  EXPECT_ERROR(graph.replay(),
               "replay: a tensor from before the capture is gone, though the graph uses it");
}

TEST(Graph, ForgetsACaptureThatFailed) {
  Graph graph(device);
  for (int i = 0; i < 2100; ++i) try {  // more than there is room for the numbers of
      const Capture on(graph);
      fail("stop");
    } catch (const Error& e) {
      ASSERT_EQ(std::string(e.what()).substr(0, 4), "stop");
    }
  const Tensor x = ones({4}, f32, device);
  Tensor y;
  {
    const Capture on(graph);
    y = x * 2;
  }
  graph.replay();
  EXPECT_EQ(to_vector(y), (std::vector<double>(4, 2)));
}
TEST(Graph, HasRoomForSomeNumbers) {
  EXPECT_EQ(refusal([] { capture()->number(40'000, [](void*) {}); }),
            "a graph has room for 32768 bytes of numbers that change");
  const Tensor v = ones({64}, f32, device);
  EXPECT_EQ(refusal([&] {
              for (int i = 0; i < 129; ++i)
                check_later(v.raw(), 256, device, [](const void*) { return std::string(); });
            }),
            "a graph has room for 32768 bytes to check");
}
#ifdef MIXTAPE_EMULATED
TEST(Graph, TakesAStream) {
  EXPECT_EQ(test::status_of_child([] {
              std::vector<std::unique_ptr<Graph>> all;
              const std::string what = error([&] {
                for (int i = 0; i < max_streams; ++i)
                  all.push_back(std::make_unique<Graph>(device));
              });
              all.clear();
              return what == "Graph: all 64 streams are taken, by threads and graphs" &&
                     Graph(device).device() == device;
            }),
            0);
}
// As a device does, the emulator refuses what a stream cannot do while it captures.
TEST(Graph, TheEmulatorRefusesWaitsInACapture) {
  const runtime::Runtime& cuda = runtime::cuda();
  const runtime::Handle stream = cuda.create_stream(0), other = cuda.create_stream(0);
  const runtime::Mark mark = cuda.create_mark(0, false);
  cuda.begin_capture(stream, 0);
  EXPECT_EQ(error([&] { cuda.record(mark, stream, 0); }),
            "the emulator: an event during a capture");
  EXPECT_EQ(error([&] { cuda.synchronize(stream, 0); }),
            "the emulator: waiting for a stream during a capture");
  EXPECT_EQ(error([&] { cuda.wait(stream, 0, other, 0); }),
            "the emulator: a wait during a capture");
  EXPECT_EQ(error([&] { cuda.wait(other, 0, stream, 0); }),
            "the emulator: waiting for a stream during a capture");
  cuda.destroy(cuda.end_capture(stream, 0));
  cuda.destroy_mark(mark);
}
#endif

TEST(Graph, FindsIndicesOutOfRangeAtEachReplay) {
  const Tensor table = randn({5, 3}, f32, device), index = full({2}, 1, i64, device);
  const Tensor p = full({2}, 0.5, f32, device);
  Tensor y;
  Graph graph(device);
  {
    const Capture on(graph);
    y = embedding(table, index);
    bernoulli(p);
  }
  graph.replay();
  synchronize(device);
  fill_(index, 7);
  graph.replay();
  EXPECT_EQ(error([&] { synchronize(device); }), "embedding: index 7 is out of range for 5 rows");
  fill_(index, 4);
  graph.replay();
  EXPECT_EQ(y.at(1), table.at(13));
  fill_(p, 2);
  graph.replay();
  EXPECT_EQ(error([&] { synchronize(device); }),
            "bernoulli: probabilities must be from 0 to 1, got 2 to 2");
}

TEST(Graph, OwnsItsMemory) {
  empty_cache(device);
  const int64_t reserved = memory_stats(device).reserved;
  {
    const Tensor x = ones({1000}, f32, device);
    const auto step = [&] {
      const Tensor large({20 << 20}, u8, device);
      return sum(exp(x * 2) + 1);
    };
    step();
    const int64_t calls = memory_stats(device).system_calls;
    Tensor y;
    Graph graph(device);
    {
      const Capture on(graph);
      y = step();
    }
    EXPECT_LE(memory_stats(device).system_calls, calls + 1) << "the large one was there";
    graph.replay();
    const double want = y.item();
    empty_cache(device);
    std::vector<Tensor> others;  // would overlap what the graph uses and has freed
    for (int i = 0; i < 30; ++i) others.push_back(full({1000}, NAN, f32, device));
    const Tensor large({20 << 20}, u8, device);
    EXPECT_EQ(memory_stats(device).system_calls, calls + 2);
    graph.replay();
    EXPECT_EQ(y.item(), want);
    EXPECT_TRUE(std::isnan(others.back().at(999)));
  }
  empty_cache(device);
  EXPECT_EQ(memory_stats(device).reserved, reserved);
}

TEST(Graph, ReplaysInOrderWithOtherThreads) {
  const Tensor x = ones({1000}, f32, device);
  Tensor y;
  Graph graph(device);
  {
    const Capture on(graph);
    y = x * 2;
  }
  for (int i = 0; i < 3; ++i) {
    std::thread([&] { fill_(x, i); }).join();
    std::thread([&] { graph.replay(); }).join();
    std::thread([&] { EXPECT_EQ(sum(y).item(), 2000 * i); }).join();
    fill_(x, 10 + i);
    graph.replay();
    std::thread([&] { fill_(y, 5); }).join();
    EXPECT_EQ(sum(y).item(), 5000);
  }
}

// A cast of another capture, or of none, is not of these values.
TEST(Graph, CastsWeightsAnewInARegionAroundIt) {
  const Tensor w = ones({4, 4}, f32, device).set_requires_grad(), x = ones({1, 4}, f32, device);
  const amp::Autocast on({.low = f16});
  matmul(x, w);
  Tensor y;
  Graph graph(device);
  {
    const Capture capture(graph);
    y = matmul(x, w);
  }
  EXPECT_EQ(matmul(x, w).at(0), 4);
  {
    const NoGrad off;
    fill_(w, 2);
  }
  graph.replay();
  EXPECT_EQ(y.at(0), 8);
}

TEST(Graph, CountsSkipsWhenTheScalerIsPolled) {
  nn::Linear net(2, 1);
  net.to(device);
  optim::SGD opt(net.parameters());
  amp::GradScaler scaler({.init_scale = 8, .max_consecutive_skips = 3});
  const Tensor x = ones({1, 2}, f32, device);
  amp::StepResult result;
  const auto step = [&] {
    opt.zero_grad();
    scaler.scale(sum(net(x))).backward();
    result = scaler.step(opt);
    scaler.update();
  };
  step();
  Graph graph(device);
  {
    const Capture on(graph);
    step();
  }
  graph.replay();
  const amp::StepResult first = result.latest();
  fill_(x, INFINITY);
  const auto skip = [&] {
    graph.replay();
    EXPECT_EQ(result.cause(), amp::StepResult::Cause::Loss);
    scaler.poll();
    synchronize(device);
    scaler.poll();
  };
  skip();
  skip();
  EXPECT_TRUE(bool(first));
  EXPECT_THROW(
      {
        skip();
        skip();
      },
      amp::ScaleCollapse);
}

}  // namespace device_graph_test
}  // namespace mixtape
