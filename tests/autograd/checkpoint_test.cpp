// Checkpoints: less memory, and otherwise the same results.

#include "autograd/checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "amp/amp.h"
#include "autograd/function.h"
#include "core/format.h"
#include "core/tf32.h"
#include "nn/nn.h"
#include "tests/support/errors.h"

namespace mixtape {
using namespace internal;
namespace checkpoint_test {

using Tensors = std::vector<Tensor>;
using Numbers = std::vector<double>;

Tensor leaf(const Shape& shape, uint64_t seed, DType dtype = f32) {
  const Seed fixed(seed);
  return randn(shape, dtype).set_requires_grad();
}

// Calls f, or a checkpoint of it.
template <class F, class... T>
auto run(bool again, const F& f, const T&... inputs) {
  if (again) return checkpoint(f, inputs...);
  return f(inputs...);
}

struct Outcome {
  Numbers y;
  std::vector<Numbers> grads;
  uint64_t drawn;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

// The loss of f, the gradients of some leaves, and how far the generator moved.
template <class F>
Outcome outcome(const Tensors& leaves, const F& f) {
  const Seed seed(5);
  const Tensor y = f();
  rand({3});  // after f and before backward
  sum(y * y).backward();
  Outcome o{to_vector(y), {}, generator().offset()};
  for (const Tensor& t : leaves) {
    o.grads.push_back(t.grad() ? to_vector(t.grad()) : Numbers{});
    t.set_grad({});
  }
  return o;
}

TEST(Checkpoint, CountsABatchOnce) {
  nn::BatchNorm1d norms[2] = {nn::BatchNorm1d(3), nn::BatchNorm1d(3)};
  const Tensor x = leaf({8, 3}, 1);
  for (const bool again : {false, true}) sum(square(run(again, norms[again], x))).backward();
  EXPECT_TRUE(equal(norms[0].running_mean, norms[1].running_mean));
  EXPECT_TRUE(equal(norms[0].running_var, norms[1].running_var));
  EXPECT_EQ(norms[1].num_batches_tracked.item(), 1);
}

TEST(Checkpoint, ChangesNoBit) {
  const Tensor x = leaf({8, 16}, 1), w = leaf({16, 16}, 2), b = leaf({16}, 3), g = leaf({16}, 4);
  const auto layer = [&](const Tensor& t) {  // uses w twice, draws, keeps results and extras
    const Tensor h = layer_norm(linear(dropout(gelu(linear(t, w, b)), 0.3), w), {16}, g);
    return softmax(h + t) * slice(h, 1, 0, 1);
  };
  const auto net = [&](bool again) {
    const Tensor y = run(again, layer, x * 2);
    return run(again, layer, y);
  };
  const Outcome plain = outcome({x, w, b, g}, [&] { return net(false); });
  EXPECT_EQ(outcome({x, w, b, g}, [&] { return net(true); }), plain);
  const auto nested = [&] { return checkpoint([&](const Tensor&) { return net(true); }, x); };
  EXPECT_EQ(outcome({x, w, b, g}, nested), plain);
  for (const Numbers& grad : plain.grads) EXPECT_FALSE(grad.empty());
}

TEST(Checkpoint, KeepsOnlyItsInputs) {
  const Tensor x = leaf({1 << 14}, 1);
  const int64_t size = x.numel() * 4;
  const auto layers = [](const Tensor& t) {
    Tensor y = t;
    for (int i = 0; i < 8; ++i) y = tanh(y);  // keeps its result
    return y;
  };
  struct Memory {
    int64_t kept, peak;
  };
  const auto memory = [&](bool again) {
    const int64_t before = memory_stats().in_use;
    Tensor y = x;
    for (int i = 0; i < 8; ++i) y = run(again, layers, y);
    const int64_t kept = memory_stats().in_use - before;
    reset_peak();
    sum(y).backward();
    x.set_grad({});
    return Memory{kept / size, (memory_stats().peak - before) / size};
  };
  const Memory plain = memory(false), less = memory(true);
  EXPECT_GE(plain.kept, 8 * 8);
  EXPECT_LE(less.kept, 8);
  EXPECT_GE(plain.peak, 8 * 8);
  EXPECT_LE(less.peak, 8 + 8 + 4) << "the inputs, and one call at a time";
}

TEST(Checkpoint, NothingLeaks) {
  const int64_t before = memory_stats().in_use;
  {
    const Tensor x = leaf({4}, 1), w = leaf({4}, 2);
    const auto f = [w](const Tensor& t) { return exp(t * w); };
    sum(checkpoint(f, checkpoint(f, x))).backward({.create_graph = true});
    x.set_grad({});
    w.set_grad({});
    const Tensor unused = checkpoint(f, x);
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

// Freeing a long history does not recurse either if its links are inputs without a graph.
TEST(Checkpoint, ALongHistoryIsFreed) {
  const Tensor w = leaf({1}, 1, f64);
  const int64_t before = memory_stats().in_use;
  {
    Tensor y = w * 1;
    for (int i = 0; i < 100'000; ++i)
      y = checkpoint([](const Tensor& a, const Tensor& h) { return a * h.detach(); }, w, y);
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(Checkpoint, WhatIsCapturedIsAnInputToo) {
  const Tensor w = leaf({3}, 1, f64), x = from({1, 2, 3}, {3}, f64);
  const Tensor made = w * 2;
  const auto f = [&](const Tensor& t) { return t * w + made; };
  const Tensor y = checkpoint(f, x);
  EXPECT_TRUE(y.requires_grad()) << "though no argument does";
  sum(y).backward({.retain_graph = true});
  EXPECT_EQ(to_vector(w.grad()), (Numbers{3, 4, 5}));
  EXPECT_EQ(to_vector(grad({sum(y)}, {made}, {.retain_graph = true})[0]), (Numbers{1, 1, 1}));
  EXPECT_EQ(to_vector(grad({sum(y)}, {w})[0]), (Numbers{3, 4, 5}));
  EXPECT_FALSE(checkpoint([](const Tensor& t) { return t * 2; }, x).requires_grad());
  EXPECT_EQ(to_vector(checkpoint([&] { return w + 0.0; })), to_vector(w)) << "no argument at all";
}

TEST(Checkpoint, SeveralInputsAndResults) {
  const Tensor a = leaf({2, 3}, 1, f64), b = leaf({2, 3}, 2, f64);
  const auto f = [](const Tensor& s, const Tensor& t) {
    const Tensor h = exp(s * t);
    return Tensors{h, argmax(h, 1), sum(h * t, {1}), s, Tensor(), h};
  };
  for (const bool once : {true, false}) {
    const Tensors plain = f(a, b), again = checkpoint(f, a, b);
    ASSERT_EQ(again.size(), plain.size());
    EXPECT_EQ(again[1].dtype(), i64);
    EXPECT_FALSE(again[1].requires_grad());
    EXPECT_TRUE(again[3].is_same(a)) << "what f did not make is passed on";
    EXPECT_FALSE(again[4]);
    const auto loss = [&](const Tensors& y) {
      return once ? sum(y[2] * y[2]) : sum(y[0] * unsqueeze(y[2], 1) + y[3] + y[5]);
    };
    const Tensors want = grad({loss(plain)}, {a, b}), got = grad({loss(again)}, {a, b});
    EXPECT_EQ(to_vector(got[0]), to_vector(want[0]));
    EXPECT_EQ(to_vector(got[1]), to_vector(want[1]));
  }
}

TEST(Checkpoint, WhatIsGivenTwiceIsOneTensor) {
  const Seed seed(1);
  for (int k = 0; k < 20; ++k) {
    const Tensor x = randn({8, 8}).set_requires_grad(), a = randn({8, 8}), b = randn({8, 8});
    const auto f = [](const Tensor& t) {
      const Tensor y = tanh(t);
      return Tensors{y, squeeze(y)};
    };
    const auto gradient = [&](const Tensors& y) {
      return to_vector(grad({sum(y[0] * a) + sum(y[1] * b) + sum(exp(y[0]))}, {x})[0]);
    };
    EXPECT_EQ(gradient(checkpoint(f, x)), gradient(f(x)));
  }
}

TEST(Checkpoint, ComputesAgainOncePerBackward) {
  const Tensor x = leaf({3}, 1, f64);
  int calls = 0;
  const auto f = [&](const Tensor& t) {
    ++calls;
    return Tensors{exp(t), sin(t), cos(t)};
  };
  Tensors y = checkpoint(f, x);
  y.pop_back();
  const Tensor loss = sum(y[0] * y[1]);
  EXPECT_EQ(calls, 1);
  loss.backward({.retain_graph = true});
  EXPECT_EQ(calls, 2);
  const Numbers once = to_vector(x.grad());
  loss.backward();
  EXPECT_EQ(calls, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(x.grad().at(i), 2 * once[size_t(i)]);
  EXPECT_ERROR(loss.backward(), "second backward() through");
  EXPECT_ERROR(sum(y[0]).backward(), "through checkpoint: its saved tensors were freed");
}

TEST(Checkpoint, NothingIsComputedAgainInVain) {
  const Tensor x = leaf({3}, 1, f64), v = leaf({3}, 2, f64);
  int calls = 0;
  const auto f = [&](const Tensor& t) {
    ++calls;
    return exp(t);
  };
  const Tensor y = checkpoint(f, x);
  EXPECT_EQ(to_vector(grad({sum(y * v)}, {v}, {.retain_graph = true})[0]), to_vector(y));
  EXPECT_EQ(to_vector(grad({sum(y * v)}, {y}, {.retain_graph = true})[0]), to_vector(v));
  EXPECT_EQ(calls, 1);
}

TEST(Checkpoint, MayBeDifferentiatedTwice) {
  const Tensor x = leaf({3}, 1, f64), w = leaf({3}, 2, f64);
  const auto f = [](const Tensors& in) {  // it saves inputs
    const Tensor captured = in[1];
    const auto inner = [captured](const Tensor& t) { return sin(t * captured); };
    return checkpoint([inner](const Tensor& t) { return tanh(checkpoint(inner, t)) * t; }, in[0]);
  };
  EXPECT_EQ(gradcheck(f, {x, w}, {.second_order = true}), "");
}

TEST(Checkpoint, HooksSeeEachGradientOnce) {
  const Tensor x = leaf({2}, 1, f64);
  std::string log;
  const auto note = [&](const char* name) {
    return [&log, name](const Tensor&) { return log += name, Tensor(); };
  };
  const Tensors y = checkpoint([](const Tensor& t) { return Tensors{t * 2, t * 3}; }, x);
  register_hook(x, note("x"));
  register_hook(y[0], note("a"));
  register_hook(y[1], [&](const Tensor& g) { return log += "b", g * 10; });
  sum(y[0] + y[1]).backward();
  std::sort(log.begin(), log.end());
  EXPECT_EQ(log, "abx");
  EXPECT_EQ(to_vector(x.grad()), (Numbers{32, 32}));
}

TEST(Checkpoint, RecordsNothingUnderNoGrad) {
  const Tensor x = leaf({2}, 1);
  const NoGrad off;
  EXPECT_FALSE(checkpoint([](const Tensor& t) { return exp(t); }, x).requires_grad());
}

TEST(Checkpoint, RefusesWhatItCanTell) {
  const Tensor x = leaf({2}, 1, f64), w = leaf({2}, 2, f64);
  int calls = 0;
  const auto changes = [&](const Tensor& t) { return ++calls > 1 ? sum(t) : t * 2; };
  EXPECT_ERROR(sum(checkpoint(changes, x)).backward(),
               "backward: checkpoint: result 0 is f64 [] the second time, f64 [2] the first");
  calls = 0;
  const auto stops = [&](const Tensor& t) { return ++calls > 1 ? t.detach() * 2 : t * 2; };
  EXPECT_ERROR(sum(checkpoint(stops, x)).backward(), "result 0 has no gradient the second time");
  calls = 0;
  const auto fewer = [&](const Tensor& t) { return ++calls > 1 ? Tensors{} : Tensors{t * 2}; };
  EXPECT_ERROR(sum(checkpoint(fewer, x)[0]).backward(),
               "0 results the second time, at least 1 the first");
  calls = 0;
  const auto draws = [&](const Tensor& t) { return ++calls > 1 ? t * 2 : dropout(t, 0.5); };
  EXPECT_ERROR(sum(checkpoint(draws, x)).backward(),
               "0 blocks of random numbers drawn the second time, 1 the first");
  const auto penalty = [&](const Tensor& t) {
    return grad({sum(t * t)}, {t}, {.create_graph = true})[0];
  };
  EXPECT_ERROR(checkpoint(penalty, x),
               "backward() or grad() inside checkpoint(), where mul saved nothing for it");
  const auto writes = [](const Tensor& t) {
    const NoGrad off;
    return mul_(t, 3);
  };
  EXPECT_ERROR(checkpoint(writes, ones({2}, f64)),
               "checkpoint: its function modified input 0, and would again when backward calls it");
  const auto uses = [&](const Tensor& t) { return t * w; };
  const Tensor y = checkpoint(uses, x);
  {
    const NoGrad off;
    fill_(w, 3);
  }
  EXPECT_ERROR(sum(y).backward(), "a tensor that checkpoint saved for backward was modified");
  // The checkpoint still works.
  EXPECT_ERROR(checkpoint([](const Tensor& t) { return matmul(t, ones({3}, f32)); }, x),
               "checkpoint: matmul: ");
  const Tensor z = sum(exp(x) * w);
  z.backward();
  EXPECT_EQ(to_vector(x.grad()), to_vector(exp(x) * w));
  EXPECT_EQ(Scope::innermost(), nullptr);
}

// ---- modules and autocast

struct Block : nn::Module<Block> {
  nn::Linear up, down;
  nn::Dropout drop{0.25};
  Block() : up(8, 16), down(16, 8) {}
  Tensor forward(const Tensor& x) const { return x + down(drop(gelu(up(x)))); }
  MIXTAPE_FIELDS(up, down, drop)
};

struct Net : nn::Module<Net> {
  std::vector<Block> blocks;
  bool again = false;
  Net() : blocks(3) {}
  Tensor forward(const Tensor& x) const {
    Tensor y = x;
    for (const Block& b : blocks) y = run(again, [&b](const Tensor& t) { return b(t); }, y);
    return y;
  }
  MIXTAPE_FIELDS(blocks)
};

struct Paths : Observer {
  std::vector<std::string> forward, backward;
  bool in_backward = false;
  void after(const Call& call, const Tensor& y) override {
    if (call.backward || call.op.name == "cast") return;
    const std::string* path = Scope::module_path();
    (in_backward ? backward : forward)
        .push_back(fmt::format("{}:{} {}", path ? *path : "", call.op.name, y.dtype()));
  }
};

TEST(Checkpoint, ComputesAgainInTheSameModulesAndRegion) {
  const Seed seed(1);
  Net net;
  const Tensor x = randn({4, 8});
  const auto forward = [&] {
    const amp::Autocast on(
        {.low = bf16, .overrides = {{"blocks.1.up", Precision::Full}, {"gelu", Precision::Full}}});
    return net(x);
  };
  const Outcome plain = outcome(net.parameters(), forward);
  net.again = true;
  EXPECT_EQ(outcome(net.parameters(), forward), plain);

  Paths paths;
  const Observe watch(paths);
  const Tensor y = forward();
  paths.in_backward = true;
  sum(y).backward();
  std::vector<std::string> wanted;  // the blocks, last first
  const auto& f = paths.forward;
  const size_t n = f.size() / 3;
  for (size_t block = 3; block-- > 0;)
    wanted.insert(wanted.end(), f.begin() + int64_t(block * n),
                  f.begin() + int64_t((block + 1) * n));
  ASSERT_FALSE(wanted.empty());
  for (const char* op : {"blocks.0.up:linear bf16", "blocks.1.up:linear f32", "blocks.2:gelu f32"})
    EXPECT_NE(std::find(wanted.begin(), wanted.end(), op), wanted.end()) << op;
  paths.backward.erase(paths.backward.begin(), paths.backward.end() - int64_t(wanted.size()));
  EXPECT_EQ(paths.backward, wanted);
}

TEST(Checkpoint, ComputesAgainOnTheSameDeviceAndWithTheSameTf32) {
  std::vector<std::pair<Device, bool>> seen;
  const Tensor x = ones({2}).set_requires_grad();
  Tensor y;
  {
    const DefaultDevice here(Device::best());
    const Tf32 fast;
    y = checkpoint(
        [&](const Tensor& t) {
          seen.emplace_back(DefaultDevice::current(), Tf32::allowed());
          return t * 2;
        },
        x);
  }
  sum(y).backward();
  EXPECT_EQ(seen, (std::vector(2, std::pair(Device::best(), true))));
  EXPECT_FALSE(Tf32::allowed());
}

TEST(Checkpoint, OfAModuleRefersToIt) {
  const nn::Sequential row(nn::Linear(4, 4), nn::Tanh());
  const nn::ModuleList list(nn::Linear(4, 4));
  Tensors leaves = row.parameters();
  for (const Tensor& t : list.parameters()) leaves.push_back(t);
  const Tensor x = randn({2, 4});
  const Outcome plain = outcome(leaves, [&] { return list[0](row(x)); });
  EXPECT_EQ(outcome(leaves, [&] { return checkpoint(list[0], checkpoint(row, x)); }), plain);
  EXPECT_EQ(outcome({}, [&] { return checkpoint(nn::PReLU(), x.clone().set_requires_grad()); }).y,
            to_vector(leaky_relu(x, 0.25)));
}

}  // namespace checkpoint_test
}  // namespace mixtape
