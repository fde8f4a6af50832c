// Layers with a scale of their own.
#include "amp/layer_group.h"
#include "amp/gradient_histogram.h"
#include "autograd/vmap.h"
#include "core/random.h"
#include "core/warn.h"

#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace layer_group_test {

TEST(LayerGroup, MultipliesInsideAndDividesOutside) {
  const Tensor x = parameter({1, 2}), w = parameter({3, 5});
  const LayerGroup group({w}, 8);
  double inside = 0;
  const Tensor y = group.begin(x) * w;
  register_hook(y, [&](const Tensor& g) {
    inside = g.at(0);
    return Tensor();
  });
  const Tensor out = group.end(y);
  EXPECT_EQ(to_vector(out), (std::vector<double>{3, 10}));
  (sum(out) + sum(x)).backward();
  EXPECT_EQ(inside, 8);
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{4, 6})) << "another use of x is its own";
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2}));
}

TEST(LayerGroup, EndsWithItsLife) {
  const Tensor w = parameter({3, 5}), x = parameter({1, 2}).detach();
  {
    const LayerGroup group({w}, 8);
  }
  sum(x * w).backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2}));
  const LayerGroup group({w}, 8);
  EXPECT_EQ(group.scale(), 8);
  EXPECT_FALSE(group.begin(x).requires_grad());
}

TEST(LayerGroup, HoldsUntilItsGraphEnds) {
  const Tensor x = parameter({1, 2}), w = parameter({3, 5});
  const auto loss = [&] {
    const LayerGroup group({w}, 8);
    return sum(group.end(group.begin(x) * w));
  };
  loss().backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{3, 5}));
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2}));
  w.set_grad({});
  sum(x * w).backward();
  EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2})) << "the graph is gone";
}

TEST(LayerGroup, FollowsUnfrozenParameters) {
  const Tensor x = parameter({1, 2}), w = parameter({3, 5});
  w.set_requires_grad(false);
  const LayerGroup group({w}, 8);
  sum(group.end(group.begin(x) * w)).backward();
  for (int i = 0; i < 3; ++i) {
    w.set_requires_grad(false);
    w.set_requires_grad(true);
    w.set_grad({});
    sum(group.end(group.begin(x) * w)).backward();
    EXPECT_EQ(to_vector(w.grad()), (std::vector<double>{1, 2}));
  }
}

TEST(LayerGroup, RefusesGradientsThatItCannotDivide) {
  const Tensor x = parameter({1, 2}), w = parameter({3, 5});
  const LayerGroup group({w}, 8);
  const auto losses = [&](const Tensor& in) {
    return sum(square(group.end(group.begin(in) * w)), {1});
  };
  EXPECT_ERROR(grad({sum(losses(unsqueeze(x, 0)))}, {x}, {.create_graph = true}),
               "gradients of a LayerGroup can't be differentiated again");
  EXPECT_ERROR(
      per_sample_gradients([&](const auto& in) { return losses(in[0]); }, {w}, {ones({3, 2})}),
      "per_sample_gradients() runs no hooks");
}

TEST(LayerGroup, PassesThroughUnderNoGrad) {
  const Tensor x = parameter({1, 2});
  const LayerGroup group({parameter({3, 5})}, 8);
  const NoGrad off;
  EXPECT_EQ(to_vector(group.begin(x)), to_vector(x));
  EXPECT_EQ(to_vector(group.end(x)), to_vector(x));
}

TEST(LayerGroup, ChecksItsArguments) {
  EXPECT_ERROR(LayerGroup({parameter({1})}, 0),
               "LayerGroup: the scale and its inverse must be positive and finite in f32, got 0");
  EXPECT_ERROR(LayerGroup({parameter({1})}, 1e39), "in f32, got 1e+39");
  EXPECT_ERROR(LayerGroup({parameter({1}), parameter({1}, f16)}, 2),
               "LayerGroup: parameter 1 has gradients of f16, which would lose what the group's "
               "scale saves: keep parameters in f32");
}

// Three layers, each of which reaches the loss through the next by a factor of 2^-20 alone: the
// gradients of the first are 2^-40 of the last's, and f16 has 2^40 between its ends.
struct Deep {
  static constexpr double gain = 0x1p-20;
  std::vector<Tensor> w;
  Tensor x, y;

  Deep() {
    const Seed seed(5);
    for (int i = 0; i < 3; ++i) w.push_back((randn({16, 16}) * 0.25).detach().set_requires_grad());
    x = randn({32, 16}), y = randn({32, 16});
  }
  Tensor loss(DType low, const LayerGroup* outer, const LayerGroup* inner) const {
    const Autocast on({.low = low});
    const auto end = [](const LayerGroup* g, const Tensor& h) { return g ? g->end(h) : h; };
    Tensor h = tanh(matmul(x, w[0]));
    h = tanh(matmul(x, w[1]) + end(inner, h) * gain);
    h = tanh(matmul(x, w[2]) + end(outer, h) * gain);
    return mse_loss(h, y);
  }
};

// The weights after some steps, each layer at a rate by which it learns.
std::vector<Tensor> train(DType low, bool grouped, double& zeros) {
  const Deep net;
  optim::SGD opt({net.w[0]}, {.lr = 0x1p40});
  opt.add_group({net.w[1]}, {.lr = 0x1p20});
  opt.add_group({net.w[2]}, {.lr = 1});
  std::optional<LayerGroup> outer, inner;
  if (grouped) outer.emplace(std::vector{net.w[0], net.w[1]}, 0x1p20);
  if (grouped) inner.emplace(std::vector{net.w[0]}, 0x1p20);
  GradScaler scaler(low, {.calibrate = true, .histogram = 1});
  for (int i = 0; i < 20; ++i) {
    opt.zero_grad();
    scaler.scale(net.loss(low, outer ? &*outer : nullptr, inner ? &*inner : nullptr)).backward();
    EXPECT_TRUE(scaler.step(opt));
    scaler.update();
  }
  if (low == f16) zeros = scaler.histogram(opt).rows[0].zeros();
  return net.w;
}

TEST(LayerGroup, TrainsWhatExceedsTheRangeOfF16) {
  const OnWarning quiet([](const std::string&) {});
  double zeros = 0;
  const Deep start;
  const std::vector<Tensor> right = train(f32, false, zeros), lost = train(f16, false, zeros);
  EXPECT_GT(zeros, 0.5);
  const std::vector<Tensor> grouped = train(f16, true, zeros);
  EXPECT_LT(zeros, 0.01);
  const auto moved = [&](const std::vector<Tensor>& w, size_t i) { return w[i] - start.w[i]; };
  for (size_t i = 0; i < 3; ++i) {
    const double length = norm(moved(right, i).detach()).item();
    EXPECT_GT(length, 0.01) << i;
    EXPECT_LT(norm((grouped[i] - right[i]).detach()).item(), 0.05 * length) << i;
  }
  EXPECT_GT(norm((lost[0] - right[0]).detach()).item(),
            0.5 * norm(moved(right, 0).detach()).item());
}

}  // namespace layer_group_test
}  // namespace mixtape::amp
