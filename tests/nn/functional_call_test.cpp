// A module as a function of its tensors.
#include "nn/functional_call.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/vmap.h"
#include "core/random.h"
#include "nn/nn.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace nn_functional_call_test {

using nn::functional_call;
using test::error;

struct Net : nn::Module<Net> {
  nn::Linear in{3, 4};
  nn::BatchNorm1d norm{4};
  nn::Linear out{4, 2};
  Tensor forward(const Tensor& x) const { return out(tanh(norm(in(x)))); }
  MIXTAPE_FIELDS(in, norm, out)
};
struct Tied : nn::Module<Tied> {
  nn::Linear a{3, 3}, b{3, 3};
  Tied() { b.weight = a.weight; }
  Tensor forward(const Tensor& x) const { return b(a(x)); }
  MIXTAPE_FIELDS(a, b)
};

TEST(FunctionalCall, IsTheModuleWithOtherTensors) {
  const Seed seed(1);
  Net net, other;
  net.eval();
  other.eval();
  const Tensor x = randn({5, 3});
  const auto before = to_vector(net(x));
  EXPECT_EQ(to_vector(functional_call(net, other.state_dict(), x)), to_vector(other(x)));
  EXPECT_EQ(to_vector(functional_call(net, {}, x)), before);
  EXPECT_EQ(to_vector(net(x)), before);
  const Tensor some = functional_call(net, {{"in.weight", other.in.weight}}, x);
  net.in.weight = other.in.weight;
  EXPECT_EQ(to_vector(some), to_vector(net(x)));
}

TEST(FunctionalCall, GradientsFlowToWhatIsGiven) {
  const Seed seed(2);
  const Net net;
  const Tensor x = randn({5, 3}), scale = full({}, 2).set_requires_grad();
  const Tensor w = net.out.weight.detach() * scale;
  const Tensor y = sum(functional_call(net, {{"out.weight", w}}, x));
  y.backward();
  EXPECT_FALSE(net.out.weight.grad());
  EXPECT_TRUE(net.in.weight.grad());
  EXPECT_TRUE(scale.grad());
}

// In training, as in a plain call; a buffer that is given takes the place of its own.
TEST(FunctionalCall, UpdatesBuffers) {
  const Seed seed(3);
  const Net net;
  const Tensor x = randn({5, 3}), mean = zeros({4});
  functional_call(net, {{"norm.running_mean", mean}}, x);
  EXPECT_EQ(to_vector(net.norm.running_mean), (std::vector<double>(4, 0)));
  EXPECT_NE(to_vector(mean), (std::vector<double>(4, 0)));
  functional_call(net, {}, x);
  EXPECT_EQ(to_vector(net.norm.running_mean), to_vector(mean));
}

TEST(FunctionalCall, ReplacesTiedTensorsTogether) {
  const Seed seed(4);
  const Tied net;
  Tied other;
  other.a.bias = net.a.bias;
  other.b.bias = net.b.bias;
  const Tensor x = randn({2, 3}), w = other.a.weight;
  EXPECT_EQ(to_vector(functional_call(net, {{"b.weight", w}}, x)), to_vector(other(x)));
  EXPECT_EQ(to_vector(functional_call(net, {{"a.weight", w}, {"b.weight", w}}, x)),
            to_vector(other(x)));
  EXPECT_EQ(error([&] { functional_call(net, {{"a.weight", w}, {"b.weight", w + 1}}, x); }),
            "functional_call: 'a.weight' and 'b.weight' are one tensor, but two are given");
}

// The copy that runs must live until a checkpoint in it has called it again.
TEST(FunctionalCall, OutlivesCheckpoints) {
  struct Deep : nn::Module<Deep> {
    std::vector<Tied> blocks;
    Deep() { blocks.resize(2); }
    Tensor forward(const Tensor& x) const {
      return checkpoint(blocks[1], checkpoint(blocks[0], x));
    }
    MIXTAPE_FIELDS(blocks)
  };
  const Seed seed(5);
  const Deep net;
  const Tensor x = randn({2, 3}), w = randn({3, 3}).set_requires_grad(),
               same = w.detach().clone().set_requires_grad();
  sum(functional_call(net, {{"blocks.0.a.weight", w}}, x)).backward();
  const Tensor plain = functional_call(net.blocks[0], {{"a.weight", same}}, x);
  sum(net.blocks[1](plain)).backward();
  EXPECT_EQ(to_vector(w.grad()), to_vector(same.grad()));
}

// Results that `make` builds from a tensor.
template <class Make>
struct Returns : nn::Module<Returns<Make>> {
  Tensor weight = nn::parameter(ones({2}));
  std::shared_ptr<int> copies = std::make_shared<int>();  // as many as it has owners
  Make make;
  explicit Returns(Make m) : make(std::move(m)) {}
  auto forward(const Tensor& x) const { return make(x * weight); }
  MIXTAPE_FIELDS(weight)
};

TEST(FunctionalCall, LivesAsLongAsAnyResult) {
  const auto expect_kept = [](auto make) {
    const Returns<decltype(make)> net(make);
    {
      const auto results = functional_call(net, {}, ones({2}));
      EXPECT_EQ(net.copies.use_count(), 2);
    }
    EXPECT_EQ(net.copies.use_count(), 1);
  };
  expect_kept([](const Tensor& y) { return std::pair(y, y + 1); });
  expect_kept([](const Tensor& y) { return std::tuple(1.5, y, std::string("y")); });
  expect_kept([](const Tensor& y) { return std::array{y, y + 1}; });
  expect_kept([](const Tensor& y) { return std::vector<nn::Tensors>{{y}, {y, y + 1}}; });
  expect_kept([](const Tensor& y) { return std::map<std::string, Tensor>{{"y", y}}; });
  expect_kept([](const Tensor& y) { return std::pair(0, nn::RnnOutput{y, y + 1}); });
}

TEST(FunctionalCall, RunsOnSeveralThreads) {
  const Seed seed(6);
  const Tied net;
  const Tensor x = randn({2, 3});
  std::vector<Tensor> weights, results(4);
  for (int i = 0; i < 4; ++i) weights.push_back(full({3, 3}, i));
  const auto run = [&](size_t i) { return functional_call(net, {{"a.weight", weights[i]}}, x); };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int k = 0; k < 20; ++k) results[i] = run(i);
    });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(to_vector(results[i]), to_vector(run(i)));
}

TEST(FunctionalCall, SaysWhatDoesNotFit) {
  const Net net;
  const Tensor x = ones({2, 3});
  EXPECT_EQ(error([&] { functional_call(net, {{"in.wait", x}}, x); }),
            "functional_call: the module has no tensor 'in.wait'");
  EXPECT_EQ(error([&] { functional_call(net, {{"in.weight", x}}, x); }),
            "functional_call: 'in.weight' has shape [4, 3], got [2, 3]");
  EXPECT_EQ(error([&] { functional_call(net, {{"in.weight", Tensor()}}, x); }),
            "functional_call: 'in.weight' has shape [4, 3], got no tensor");
}

// An ensemble: one call for each set of weights.
TEST(FunctionalCall, GoesWithVmap) {
  const Seed seed(7);
  const Tied net;
  const Tensor weights = randn({3, 3, 3}), x = randn({2, 3});
  const Tensor all =
      vmap([&](const Tensor& w) { return functional_call(net, {{"a.weight", w}}, x); })(weights);
  ASSERT_EQ(all.shape(), (Shape{3, 2, 3}));
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(to_vector(select(all, 0, i)),
              to_vector(functional_call(net, {{"a.weight", select(weights, 0, i)}}, x)));
}

}  // namespace nn_functional_call_test
}  // namespace mixtape
