// Parameters that no MIXTAPE_FIELDS lists, and steps that train nothing: the step of an optimizer
// warns.

#include <gtest/gtest.h>

#include <memory>

#include "amp/scaler.h"
#include "autograd/ops.h"
#include "core/warn.h"
#include "nn/nn.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace forgotten_test {

// The warnings of a step of one optimizer after a backward pass through f.
template <class F>
std::vector<std::string> warnings(const std::vector<Tensor>& trained, const F& f, int steps = 2) {
  std::vector<std::string> all;
  const OnWarning listen([&](const std::string& text) { all.push_back(text); });
  optim::SGD opt(trained, {.lr = 0.01});
  for (int i = 0; i < steps; ++i) {
    opt.zero_grad();
    sum(f()).backward();
    opt.step();
  }
  return all;
}

std::string says(const std::string& list) {
  return "gradients reach parameters that no optimizer has, and that no module listed before it "
         "was "
         "made: " +
         list +
         ". They are not trained: list the fields that hold them in MIXTAPE_FIELDS, also vectors, "
         "give layers that were added later to add_group(), or freeze them";
}
using Warnings = std::vector<std::string>;

struct Scale : nn::Module<Scale> {
  nn::Linear out{2, 2};
  Tensor scale = nn::parameter(ones({2}));
  Tensor forward(const Tensor& x) const { return out(x) * scale; }
  MIXTAPE_FIELDS(out)
};
struct Stack : nn::Module<Stack> {
  nn::Linear out{2, 2};
  std::vector<nn::Linear> layers;
  Stack() {
    for (int i = 0; i < 3; ++i) layers.emplace_back(2, 2);
  }
  Tensor forward(const Tensor& x) const {
    Tensor h = x;
    for (const auto& layer : layers) h = layer(h);
    return out(h);
  }
  MIXTAPE_FIELDS(out)
};
struct Pointer : nn::Module<Pointer> {
  nn::Linear out{2, 2};
  std::unique_ptr<nn::Linear> hidden =
      std::make_unique<nn::Linear>(2, 2, nn::Linear::Options{.bias = false});
  Tensor forward(const Tensor& x) const { return out((*hidden)(x)); }
  MIXTAPE_FIELDS(out)
};
template <class M>
struct Outer : nn::Module<Outer<M>> {
  M inner;
  Tensor forward(const Tensor& x) const { return inner(x); }
  MIXTAPE_FIELDS(inner)
};

TEST(Forgotten, ParametersAreToldOnce) {
  const Tensor x = ones({1, 2});
  const Scale scale;
  EXPECT_EQ(warnings(scale.parameters(), [&] { return scale(x); }), Warnings{says("f32 [2]")});
  const Outer<Scale> within;
  EXPECT_EQ(warnings(within.parameters(), [&] { return within(x); }),
            Warnings{says("f32 [2] in inner")});
  const Stack stack;
  const Warnings of_stack = warnings(stack.parameters(), [&] { return stack(x); });
  ASSERT_EQ(of_stack.size(), 1u);
  EXPECT_NE(of_stack[0].find("f32 [2, 2]"), std::string::npos);
  EXPECT_NE(of_stack[0].find(" and 2 more. They"), std::string::npos);
  const Outer<Pointer> pointer;
  EXPECT_EQ(warnings(pointer.parameters(), [&] { return pointer(x); }),
            Warnings{says("f32 [2, 2] in inner")});
}

TEST(Forgotten, LayersAddedAfterTheOptimizer) {
  const auto warned = [](bool ran_before, bool grouped) {
    nn::Sequential net(nn::Linear(2, 2));
    Warnings all;
    const OnWarning listen([&](const std::string& text) { all.push_back(text); });
    optim::SGD opt(net.parameters(), {.lr = 0.01});
    const auto step = [&] {
      opt.zero_grad();
      sum(net(ones({1, 2}))).backward();
      opt.step();
    };
    if (ran_before) step();
    net.append(nn::Linear(2, 1));
    if (grouped) opt.add_group(net[1].module()->parameters(), {.lr = 0.01});
    step();
    step();
    return all;
  };
  const Warnings expected{says("f32 [1] in 1, f32 [1, 2] in 1")};
  for (const bool ran_before : {false, true}) {
    EXPECT_EQ(warned(ran_before, false), expected);
    EXPECT_EQ(warned(ran_before, true), Warnings());
  }
}

TEST(Forgotten, WhatIsListedTrainedOrFrozenIsNot) {
  const Tensor x = ones({1, 2});
  // A part of a model is trained alone.
  const Outer<Scale> model;
  const Stack stack;
  nn::Linear head(2, 1), body(2, 2), teacher(2, 2);
  EXPECT_EQ(warnings(head.parameters(), [&] { return head(body(x)); }), Warnings());
  // Another optimizer has it, or a module elsewhere lists it.
  const Tensor own = nn::parameter(ones({2})), constant = nn::parameter(ones({2})),
               plain = ones({2}).set_requires_grad();
  optim::SGD other({own});
  constant.set_requires_grad(false);
  EXPECT_EQ(warnings(head.parameters(), [&] { return head(x * own * constant * plain); }),
            Warnings());
  const Tensor thawed = nn::parameter(ones({2}));
  thawed.set_requires_grad(false);
  optim::SGD of_frozen({thawed});
  thawed.set_requires_grad();
  EXPECT_EQ(warnings(head.parameters(), [&] { return head(x * thawed); }), Warnings());
  struct Refers : nn::Module<Refers> {
    nn::Linear out{2, 2};
    const nn::Linear* shared = nullptr;
    Tensor forward(const Tensor& t) const { return out((*shared)(t)); }
    MIXTAPE_FIELDS(out)
  };
  Refers refers;
  refers.shared = &teacher;
  teacher.parameters();
  EXPECT_EQ(warnings(refers.parameters(), [&] { return refers(x); }), Warnings());
  nn::Linear loaded(2, 2);
  loaded.load_state_dict(teacher.state_dict());
  refers.shared = &loaded;
  EXPECT_EQ(warnings(refers.parameters(), [&] { return refers(x); }), Warnings());
}

TEST(Forgotten, ParametersListedLaterOrGoneAreNot) {
  const Tensor x = ones({1, 2});
  nn::Linear head(2, 1);
  {
    const Tensor brief = nn::parameter(ones({2}));
    sum(x * brief).backward();
  }
  const Tensor later = nn::parameter(ones({2}));
  sum(x * later).backward();
  optim::SGD other({later});
  EXPECT_EQ(warnings(head.parameters(), [&] { return head(x); }), Warnings());
  // Without an optimizer there is no warning, since a program may want only gradients.
  Warnings all;
  const OnWarning listen([&](const std::string& text) { all.push_back(text); });
  const Tensor alone = nn::parameter(ones({2}));
  sum(x * alone).backward();
  EXPECT_EQ(all, Warnings());
}

// --- steps that train nothing ---

// The warnings of f.
template <class F>
Warnings told(const F& f) {
  Warnings all;
  const OnWarning listen([&](const std::string& text) { all.push_back(text); });
  f();
  return all;
}

TEST(Idle, AStepWithoutGradientsWarns) {
  const Tensor x = ones({1, 2});
  const std::string says =
      "sgd: a step without gradients changes nothing: call backward() before, on a loss of these "
      "very parameters";
  nn::Linear net(2, 2), copy = net.clone();
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  const auto train = [&](const nn::Linear& which) {
    opt.zero_grad();
    sum(which(x)).backward();
    opt.step();
  };
  EXPECT_EQ(told([&] { train(net); }), Warnings());
  EXPECT_EQ(told([&] { train(copy); }), Warnings{says});
  EXPECT_EQ(told([&] {
              sum(net(x)).backward();
              opt.zero_grad();
              opt.step();
            }),
            Warnings{says});
  for (const bool enabled : {false, true})
    EXPECT_EQ(told([&] {
                amp::GradScaler scaler({.enabled = enabled});
                scaler.scale(sum(copy(x))).backward();
                EXPECT_FALSE(scaler.step(opt));
                scaler.update();
              }),
              Warnings{says});
  const Warnings zeros{
      "sgd: a step along the zeros of zero_grad(), which belongs before backward()"};
  for (const bool scales : {false, true})
    EXPECT_EQ(told([&] {
                amp::GradScaler scaler({.enabled = scales});
                scaler.scale(sum(net(x))).backward();
                opt.zero_grad(/*set_to_none=*/false);
                scaler.step(opt);
                scaler.update();
              }),
              zeros);
  EXPECT_EQ(told([&] {
              opt.zero_grad(/*set_to_none=*/false);
              sum(net(x)).backward();
              opt.step();
              opt.zero_grad(/*set_to_none=*/false);
              net.weight.grad().set(0, 1);  // the program's own
              opt.step();
            }),
            Warnings());
  opt.zero_grad();
  net.requires_grad_(false);
  EXPECT_EQ(told([&] { opt.step(); }),
            Warnings{"sgd: a step without gradients changes nothing: all parameters are frozen"});
}

TEST(Idle, AParameterWhoseLayerWasReplacedWarns) {
  const Tensor x = ones({1, 2});
  nn::Sequential net(nn::Linear(2, 3), nn::Linear(3, 2, {.bias = false}));
  optim::SGD opt(net.parameters(), {.lr = 0.1});
  const auto train = [&] {
    opt.zero_grad();
    sum(net(x)).backward();
    opt.step();
  };
  EXPECT_EQ(told(train), Warnings());
  net[0].module()->requires_grad_(false);
  EXPECT_EQ(told(train), Warnings());
  opt.zero_grad();
  net[1] = nn::Linear(3, 4, {.bias = false});
  net[0].module()->requires_grad_(true);
  EXPECT_EQ(told(train),
            (Warnings{says("f32 [4, 3] in 1"),
                      "sgd: parameter 2 of shape [2, 3] has no gradient, and only the optimizer "
                      "holds it. If its layer was replaced, make the optimizer after that"}));
}

TEST(Idle, AFieldThatIsNoParameterWarns) {
  struct Constant : nn::Module<Constant> {
    nn::Linear out{2, 2};
    Tensor scale = ones({2});
    Tensor forward(const Tensor& x) const { return out(x) * scale; }
    MIXTAPE_FIELDS(out, scale)
  };
  const auto says = [](int index, const std::string& shape) {
    return Warnings{"sgd: parameter " + std::to_string(index) + " of shape " + shape +
                    " is not trained, since nn::parameter() did not make it. (For constants there "
                    "is nn::Buffer, and a layer's weight takes values by copy_().)"};
  };
  const auto train = [](const auto& net) {
    return told([&] {
      optim::SGD opt(net.parameters(), {.lr = 0.1});
      sum(net(ones({1, 2}))).backward();
      opt.step();
    });
  };
  Constant net;
  EXPECT_EQ(train(net), says(2, "[2]"));
  EXPECT_EQ(train(net.clone()), says(2, "[2]"));
  net.requires_grad_(true);
  EXPECT_EQ(train(net), Warnings());

  nn::Linear layer(2, 2);
  layer.weight = ones({2, 2});
  EXPECT_EQ(train(layer), says(0, "[2, 2]"));
  nn::Linear frozen(2, 2);
  frozen.weight.set_requires_grad(false);
  EXPECT_EQ(train(frozen), Warnings());
  EXPECT_EQ(train(frozen.clone()), Warnings());
}

}  // namespace forgotten_test
}  // namespace mixtape
