// Hooks of modules: they see and may replace tensors and gradients, and move with their module.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <span>

#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/check.h"
#include "nn/nn.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace nn_hooks_test {

using nn::Tensors;
using test::error;
using Values = std::vector<double>;

struct Scale : nn::Module<Scale> {  // w x
  Tensor weight;
  explicit Scale(double w) : weight(nn::parameter(from({w}, {}))) {}
  Tensor forward(const Tensor& x) const { return x * weight; }
  MIXTAPE_FIELDS(weight)
};
struct Product : nn::Module<Product> {  // a b, and a number
  Tensor forward(const Tensor& a, const Tensor& b, double factor) const { return a * b * factor; }
  MIXTAPE_FIELDS()
};
struct Pair : nn::Module<Pair> {  // two results
  Tensors forward(const Tensor& x) const { return {x * 2.0, x * 3.0}; }
  MIXTAPE_FIELDS()
};

Tensor leaf(std::initializer_list<double> values) {
  return from(values, {static_cast<int64_t>(values.size())}).set_requires_grad();
}

TEST(Hooks, SeeAndReplaceInputsAndOutputs) {
  Scale net(3);
  std::vector<std::string> log;
  net.register_forward_pre_hook([&](const nn::ModuleBase& m, Tensors& in) {
    EXPECT_EQ(&m, &net);
    log.push_back("before " + std::to_string(int(in.at(0).item())));
    in[0] = in[0] + 1;
  });
  net.register_forward_pre_hook([&](const nn::ModuleBase&, Tensors& in) {
    log.push_back("before " + std::to_string(int(in.at(0).item())));
  });
  net.register_forward_hook([&](const nn::ModuleBase&, const Tensors& in, Tensors& out) {
    log.push_back("after " + std::to_string(int(in.at(0).item())) + " " +
                  std::to_string(int(out.at(0).item())));
    out[0] = out[0] * 10;
  });
  EXPECT_EQ(net(from({1}, {1})).item(), 60);
  EXPECT_EQ(log, (std::vector<std::string>{"before 1", "before 2", "after 2 6"}));
  EXPECT_EQ(net.forward(from({1}, {1})).item(), 3) << "forward itself has no hooks";
}

TEST(Hooks, LeaveOtherArgumentsAlone) {
  Product net;
  net.register_forward_pre_hook([](const nn::ModuleBase&, Tensors& in) {
    ASSERT_EQ(in.size(), 2u);
    std::swap(in[0], in[1]);
    in[0] = in[0] + 1;
  });
  const Tensor a = from({2}, {1}), b = from({3}, {1});
  EXPECT_EQ(net(a, b, 0.5).item(), 4);
  EXPECT_EQ(a.item(), 2) << "the caller's tensors are its own";
}

TEST(Hooks, BackwardSeesAndReplacesGradients) {
  Scale net(3);
  Values seen;
  net.register_full_backward_hook([&](Tensors& dx, const Tensors& dy) {
    ASSERT_EQ(dx.size(), 1u);
    ASSERT_EQ(dy.size(), 1u);
    seen = {dx[0].at(0), dy[0].at(0), dy[0].at(1)};
    dx[0] = dx[0] * 100;
  });
  const Tensor x = leaf({1, 2});
  const Tensor y = net(x);
  y.backward({.gradient = from({5, 7}, {2}), .retain_graph = true});
  EXPECT_EQ(seen, (Values{15, 5, 7}));
  EXPECT_EQ(to_vector(x.grad()), (Values{1500, 2100}));
  EXPECT_EQ(net.weight.grad().item(), 19) << "parameters' gradients are not the hook's";
  y.backward({.gradient = from({1, 0}, {2})});
  EXPECT_EQ(seen, (Values{3, 1, 0})) << "once per backward";
}

TEST(Hooks, BackwardWaitsForAllInputsAndOutputs) {
  Product net;
  int calls = 0;
  Values first, second;
  net.register_full_backward_hook([&](Tensors& dx, const Tensors& dy) {
    ++calls;
    ASSERT_EQ(dx.size(), 2u);
    first = to_vector(dx[0]);
    second = to_vector(dx[1]);
    EXPECT_EQ(to_vector(dy[0]), Values{1});
    std::swap(dx[0], dx[1]);
  });
  const Tensor a = leaf({2}), b = leaf({3});
  // a is used elsewhere, too; those gradients do not pass the hook.
  (a * 1000 + net(a, b, 1.0)).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(first, Values{3});
  EXPECT_EQ(second, Values{2});
  EXPECT_EQ(a.grad().item(), 1002);
  EXPECT_EQ(b.grad().item(), 3);

  Pair pair;
  Tensors of_outputs;
  pair.register_full_backward_hook([&](Tensors&, const Tensors& dy) { of_outputs = dy; });
  const Tensor x = leaf({1});
  const Tensors y = pair(x);
  (y[0] * 5 + y[1] * 7).backward();
  ASSERT_EQ(of_outputs.size(), 2u);
  EXPECT_EQ(of_outputs[0].item(), 5);
  EXPECT_EQ(of_outputs[1].item(), 7);
  EXPECT_EQ(x.grad().item(), 31);
  pair(x)[1].backward();
  EXPECT_FALSE(of_outputs[0]) << "no gradient came";
  EXPECT_EQ(of_outputs[1].item(), 1);
  EXPECT_EQ(x.grad().item(), 34);
}

// An input cast from f32 gets an f32 gradient.
TEST(Hooks, LeaveGradientsAsWideAsTheyAre) {
  for (const bool hooked : {false, true}) {
    Scale net(3);
    net.to(f16);
    if (hooked) net.register_full_backward_hook([](Tensors&, const Tensors&) {});
    const Tensor x = leaf({4});
    sum(net(x.to(f16)).to(f32) * 3e4).backward();
    EXPECT_EQ(x.grad().item(), 9e4) << hooked;
  }
}

TEST(Hooks, BackwardWithoutAnInputThatWantsOne) {
  Scale net(3);
  int calls = 0;
  net.register_full_backward_hook([&](Tensors& dx, const Tensors& dy) {
    ++calls;
    ASSERT_EQ(dx.size(), 1u);
    EXPECT_FALSE(dx[0]);
    EXPECT_EQ(dy[0].item(), 1);
  });
  net(from({2}, {1})).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(net.weight.grad().item(), 2);
  const NoGrad off;
  EXPECT_FALSE(net(from({2}, {1})).requires_grad());
}

TEST(Hooks, SecondOrderGoesThrough) {
  Scale net(3);
  net.register_full_backward_hook([](Tensors& dx, const Tensors&) { dx[0] = dx[0] * 2; });
  const Tensor x = leaf({4});
  const Tensor y = net(x);
  const Tensor dx = grad({sum(y * y)}, {x}, {.create_graph = true})[0];  // 2 (2 w^2 x)
  EXPECT_EQ(dx.item(), 144);
  // Its derivative by w: dy = 2 w x at the output, times w, times 2.
  EXPECT_EQ(grad({sum(dx)}, {net.weight})[0].item(), 96);
}

// A second gradient may reach a module's inputs and not its outputs.
TEST(Hooks, WithoutAGradientOfAnOutputSeeThatThereIsNone) {
  nn::Sequential net(Scale(3), nn::SiLU(), Scale(2));
  std::vector<bool> given;
  net[1].module()->register_full_backward_hook([&](Tensors& dx, const Tensors& dy) {
    ASSERT_EQ(dy.size(), 1u);
    EXPECT_TRUE(dx[0]);
    given.push_back(bool(dy[0]));
  });
  const Tensor x = leaf({4});
  sum(grad({sum(net(x))}, {x}, {.create_graph = true})[0]).backward();
  EXPECT_EQ(given, (std::vector<bool>{true, false}));
}

// If stored, the gradients of the outputs would wait for gradients of inputs that are not needed,
// and keep their graph alive.
TEST(Hooks, KeepNoGraphWhereInputsAreNotWanted) {
  Scale net(3);
  int calls = 0;
  net.register_full_backward_hook([&](Tensors&, const Tensors&) { ++calls; });
  const Tensor x = ones({100}).set_requires_grad();
  const auto in_use_after = [&] {
    const Tensor y = net(x);
    EXPECT_EQ(grad({sum(y * y)}, {net.weight}, {.create_graph = true})[0].item(), 600);
    return memory_stats(Device::cpu()).in_use;
  };
  const auto first = in_use_after();
  EXPECT_EQ(in_use_after(), first);
  EXPECT_EQ(calls, 0);
  (void)grad({sum(net(x))}, {net.weight, x});
  EXPECT_EQ(calls, 1);
}

TEST(Hooks, BackwardForgetsGradientsOfAPassThatFailed) {
  Pair net;
  bool fails = true;
  net.register_full_backward_hook([](Tensors&, const Tensors&) {});
  const Tensor x = leaf({4});
  const Tensors y = net(x);
  register_hook(y[0], [&](const Tensor&) {
    check(!fails, "planted");
    return Tensor();
  });
  EXPECT_EQ(error([&] { (y[0] + y[1]).backward({.retain_graph = true}); }),
            "backward: hook on module hook: planted");
  fails = false;
  y[0].backward();
  EXPECT_EQ(x.grad().item(), 2);
}

TEST(Hooks, ReplacedOutputsReachBackward) {
  Scale net(3);
  net.register_forward_hook(
      [](const nn::ModuleBase&, const Tensors&, Tensors& out) { out[0] = out[0] * 10; });
  Values seen;
  net.register_full_backward_hook([&](Tensors&, const Tensors& dy) { seen = to_vector(dy[0]); });
  const Tensor x = leaf({4});
  net(x).backward();
  EXPECT_EQ(seen, Values{1}) << "of what the hooks made of the output";
  EXPECT_EQ(x.grad().item(), 30);
}

TEST(Hooks, AreRemovable) {
  Scale net(1);
  int calls = 0;
  const auto count = [&](const nn::ModuleBase&, const Tensors&, Tensors&) { ++calls; };
  nn::HookHandle first = net.register_forward_hook(count);
  net.register_forward_hook(count);
  net(from({1}, {1}));
  EXPECT_EQ(calls, 2);
  first.remove();
  first.remove();
  net(from({1}, {1}));
  EXPECT_EQ(calls, 3);

  nn::HookHandle once;
  once = net.register_forward_pre_hook([&](const nn::ModuleBase&, Tensors&) {
    calls += 100;
    once.remove();
  });
  net(from({1}, {1}));
  net(from({1}, {1}));
  EXPECT_EQ(calls, 105) << "a hook may remove itself";

  nn::HookHandle orphan;
  {
    Scale gone(1);
    orphan = gone.register_forward_hook(count);
  }
  orphan.remove();

  const Tensor x = leaf({1});
  nn::HookHandle backward =
      net.register_full_backward_hook([&](Tensors&, const Tensors&) { calls += 1000; });
  const Tensor y = net(x);
  backward.remove();
  y.backward();
  EXPECT_LT(calls, 1000);
}

struct Watch : nn::Module<Watch> {  // where its argument is
  Tensor forward(const Tensor& x) const {
    seen = &x;
    return x;
  }
  mutable const Tensor* seen = nullptr;
  MIXTAPE_FIELDS()
};

TEST(Hooks, OnceRemovedCostACallNothing) {
  Watch net;
  nn::HookHandle hook = net.register_forward_pre_hook([](const nn::ModuleBase&, Tensors&) {});
  const Tensor x = from({1}, {1});
  net(x);
  EXPECT_NE(net.seen, &x) << "hooks get tensors of their own";
  hook.remove();
  net(x);
  EXPECT_EQ(net.seen, &x);
  nn::summary(net, x);
  net(x);
  EXPECT_EQ(net.seen, &x) << "a summary leaves none behind";
}

TEST(Hooks, MoveWithTheModuleButAreNotCloned) {
  Scale net(1);
  int calls = 0;
  nn::HookHandle handle =
      net.register_forward_hook([&](const nn::ModuleBase&, const Tensors&, Tensors&) { ++calls; });
  Scale moved = std::move(net);
  moved(from({1}, {1}));
  EXPECT_EQ(calls, 1);
  const Scale copy = moved.clone();
  copy(from({1}, {1}));
  EXPECT_EQ(calls, 1);
  nn::Sequential row(nn::Identity(), std::move(moved));
  row(from({1}, {1}));
  EXPECT_EQ(calls, 2);
  Scale other(2);
  other = std::move(row[1].get<Scale>());
  other(from({1}, {1}));
  EXPECT_EQ(calls, 3);
  handle.remove();
  other(from({1}, {1}));
  EXPECT_EQ(calls, 3);
}

TEST(Hooks, SeeStructsOfTensors) {
  nn::LSTM net(2, 3);
  std::vector<size_t> sizes;
  net.register_forward_hook([&](const nn::ModuleBase&, const Tensors& in, Tensors& out) {
    sizes = {in.size(), out.size()};
    out[2] = out[2] * 0;
  });
  const Tensor x = randn({4, 1, 2});
  EXPECT_EQ(sum(abs(net(x).c_n)).item(), 0);
  EXPECT_EQ(sizes, (std::vector<size_t>{1, 3}));
  net(x, nn::LstmState{zeros({1, 1, 3}), zeros({1, 1, 3})});
  EXPECT_EQ(sizes, (std::vector<size_t>{3, 3}));
}

// Arguments and results of several parts, among them others than tensors.
struct Parts : nn::Module<Parts> {
  using Result = std::tuple<Tensor, double, std::vector<std::array<Tensor, 2>>>;
  Result forward(const std::pair<Tensor, int>& x, const StateDict& all) const {
    return {x.first * x.second, 1.5, {{all[0].second, all[1].second * 2.0}}};
  }
  MIXTAPE_FIELDS()
};

TEST(Hooks, SeeTensorsWithinPairsTuplesAndContainers) {
  const Parts net;
  Parts& hooked = const_cast<Parts&>(net);
  std::vector<size_t> sizes;
  hooked.register_forward_hook([&](const nn::ModuleBase&, const Tensors& in, Tensors& out) {
    sizes = {in.size(), out.size()};
    out[2] = out[2] * 10;
  });
  hooked.register_full_backward_hook([&](Tensors& dx, const Tensors& dy) {
    sizes.insert(sizes.end(), {dx.size(), dy.size()});
    dx[2] = dx[2] + 1;
  });
  const Tensor a = leaf({1}), b = leaf({2}), c = leaf({3});
  const auto [x, number, rest] = net(std::pair(a, 5), StateDict{{"b", b}, {"c", c}});
  EXPECT_EQ(number, 1.5);
  sum(x + rest[0][0] + rest[0][1]).backward();
  EXPECT_EQ(rest[0][1].item(), 60);
  EXPECT_EQ(sizes, (std::vector<size_t>{3, 3, 3, 3}));
  EXPECT_EQ(a.grad().item(), 5);
  EXPECT_EQ(c.grad().item(), 21);
}

struct Unlisted {
  Tensor y;
};
static_assert(nn::HoldsTensors<std::map<std::string, Tensor>>);
static_assert(!nn::HoldsTensors<Unlisted> && !nn::HoldsTensors<std::vector<Unlisted>>);
static_assert(!nn::HoldsTensors<std::pair<int, std::string>> && !nn::HoldsTensors<std::tuple<>>);
static_assert(!nn::HoldsTensors<std::span<Tensor>> && !nn::HoldsTensors<std::filesystem::path>);

struct Sign : nn::Module<Sign> {
  BoolTensor forward(const Tensor& x) const { return x > 0; }
  MIXTAPE_FIELDS()
};

TEST(Hooks, SeeBuffersAndBools) {
  Sign net;
  net.register_forward_pre_hook([](const nn::ModuleBase&, Tensors& in) { in.at(0) = -in[0]; });
  net.register_forward_hook(
      [](const nn::ModuleBase&, const Tensors&, Tensors& out) { out.at(0) = logical_not(out[0]); });
  const nn::Buffer x = from({-1, 1}, {2});
  EXPECT_EQ(to_vector(net(x)), (Values{0, 1}));
  EXPECT_EQ(to_vector(x), (Values{-1, 1}));
}

struct Reader : nn::Module<Reader> {
  nn::LSTM lstm{2, 3};
  Tensor forward(const Tensor& x) const { return lstm(x).h_n; }
  MIXTAPE_FIELDS(lstm)
};

TEST(Hooks, SummariesShowTheFirstOfSeveralResults) {
  Reader net;
  const std::string text = nn::summary(net, zeros({4, 1, 2}));
  EXPECT_NE(text.find("lstm    LSTM    [4, 1, 3]"), std::string::npos) << text;
}

TEST(Hooks, MayNotChangeHowManyThereAre) {
  Scale net(1);
  const Tensor x = leaf({1});
  nn::HookHandle hook =
      net.register_forward_pre_hook([](const nn::ModuleBase&, Tensors& in) { in.clear(); });
  EXPECT_EQ(error([&] { net(x); }), "Scale: a hook must leave all 1 inputs, got 0");
  hook.remove();
  hook = net.register_forward_hook(
      [](const nn::ModuleBase&, const Tensors&, Tensors& out) { out.resize(2); });
  EXPECT_EQ(error([&] { net(x); }), "Scale: a hook must leave all 1 outputs, got 2");
  hook.remove();
  hook = net.register_full_backward_hook([](Tensors& dx, const Tensors&) { dx.clear(); });
  EXPECT_EQ(error([&] { net(x).backward(); }),
            "backward: module hook: a hook must leave all 1 gradients, got 0");
  hook.remove();
  net.register_full_backward_hook([](Tensors& dx, const Tensors&) { dx[0] = zeros({2}); });
  EXPECT_EQ(error([&] { net(x).backward(); }),
            "backward: module hook: the gradient has shape [2], the input [1]");
}

}  // namespace nn_hooks_test
}  // namespace mixtape
