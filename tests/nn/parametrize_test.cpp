// Layers with computed weights. blocks_reference_test compares numbers and names with PyTorch.
#include "nn/parametrize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "core/random.h"
#include "nn/linear.h"
#include "nn/more.h"
#include "nn/norm.h"
#include "nn/sequential.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace nn_parametrize_test {

using nn::Linear, nn::WeightNorm, nn::SpectralNorm;
using test::error;

std::vector<std::string> names(const nn::ModuleBase& m) {
  std::vector<std::string> all;
  for (const auto& [name, t] : m.state_dict()) all.push_back(name);
  return all;
}

TEST(WeightNorm, LeavesAFrozenLayerFrozen) {
  Linear plain(4, 3);
  plain.requires_grad_(false);
  WeightNorm layer(std::move(plain));
  for (const Tensor& p : layer.parameters()) EXPECT_FALSE(p.requires_grad());
}

TEST(WeightNorm, StartsAsTheLayer) {
  const Seed seed(1);
  Linear plain(4, 3);
  const Tensor x = randn({2, 4}), y = plain(x), weight = plain.weight.clone();
  WeightNorm layer(std::move(plain));
  expect_near(layer(x), y, 1e-6);
  expect_near(layer.weight(), weight, 1e-6);
  EXPECT_EQ(names(layer), (std::vector<std::string>{"bias", "parametrizations.weight.original0",
                                                    "parametrizations.weight.original1"}));
  EXPECT_EQ(layer.parametrization.g.shape(), (Shape{3, 1}));
  EXPECT_EQ(layer.parameters().size(), 3u);
  const NoGrad off;
  mul_(layer.parametrization.v, 5);
  expect_near(layer(x), y, 1e-5);
  mul_(layer.parametrization.g, 2);
  expect_near(layer.weight(), weight * 2, 1e-6);
}

TEST(WeightNorm, LoadsTheNamesOfPyTorchsFirst) {
  WeightNorm layer(Linear(4, 3));
  nn::Sequential net{WeightNorm(Linear(4, 3))};
  const auto& g = layer.parametrization.g;
  const auto& v = layer.parametrization.v;
  net.load_state_dict({{"0.bias", ones({3})}, {"0.weight_g", g * 2}, {"0.weight_v", v}});
  const auto& loaded = net[0].get<WeightNorm<Linear>>();
  expect_near(loaded.weight(), layer.weight() * 2, 1e-6);
  EXPECT_TRUE(error([&] {
                net.load_state_dict({{"0.bias", ones({3})}, {"0.weight_g", g}});
              }).find("0.parametrizations.weight.original1") != std::string::npos);
}

TEST(SpectralNorm, DividesByTheLargestSingularValue) {
  const Seed seed(2);
  Linear plain(3, 2, {.bias = false});
  {
    const NoGrad off;
    copy_(plain.weight, from({3, 0, 0, 0, -5, 0}, {2, 3}));
  }
  SpectralNorm layer(std::move(plain));
  expect_near(layer.weight(), from({.6, 0, 0, 0, -1, 0}, {2, 3}), 1e-4);
  layer.eval();
  const Values before = to_vector(layer.parametrization.u);
  (void)layer(ones({1, 3}));
  EXPECT_EQ(to_vector(layer.parametrization.u), before);
  {
    const NoGrad off;
    copy_(layer.parametrization.original, from({1, 2, 2, 2, 4, 4}, {2, 3}));  // of rank 1
  }
  layer.train();
  for (int i = 0; i < 3; ++i) (void)layer(ones({1, 3}));
  expect_near(layer.weight(), from({1, 2, 2, 2, 4, 4}, {2, 3}) / std::sqrt(45.0), 1e-6);
  EXPECT_EQ(names(layer), (std::vector<std::string>{"parametrizations.weight.original",
                                                    "parametrizations.weight.0._u",
                                                    "parametrizations.weight.0._v"}));
  EXPECT_EQ(layer.parameters().size(), 1u);
  EXPECT_EQ(layer.named_buffers().size(), 2u);
}

// Rows are the outputs, which a transposed convolution has in dimension 1.
TEST(SpectralNorm, TakesTheRowsOfAVolumesTransposedConvolution) {
  EXPECT_EQ(SpectralNorm(nn::ConvTranspose3d(2, 3, 2)).parametrization.u.shape(), Shape{3});
  EXPECT_EQ(SpectralNorm(nn::Conv3d(2, 3, 2)).parametrization.u.shape(), Shape{3});
  EXPECT_EQ(SpectralNorm(nn::ConvTranspose1d(2, 3, 2)).parametrization.u.shape(), Shape{3});
}

// As in a GAN's discriminator: the second call updates u and v before the first one's backward.
TEST(SpectralNorm, CalledTwiceBeforeBackward) {
  const Seed seed(3);
  const SpectralNorm layer(Linear(4, 4));
  const Tensor x = randn({2, 4});
  const Tensor first = sum(square(layer(x))), second = sum(square(layer(x + 1)));
  (first + second).backward();
  EXPECT_TRUE(all(isfinite(layer.parametrization.original.grad())).item());
}

// Each call updates u and v, except the recomputation of a checkpoint, which finds the same weight.
TEST(SpectralNorm, HasOneWeightWithinACheckpoint) {
  Values slopes[2], moved[2];
  for (const bool kept : {false, true}) {
    const Seed seed(3);
    const SpectralNorm layer(Linear(4, 4));
    {
      const NoGrad off;
      copy_(layer.parametrization.original, randn({4, 4}));  // unknown to u and v
    }
    const Tensor x = randn({2, 4}).set_requires_grad();
    sum(square(kept ? checkpoint(layer, x) : layer(x))).backward();
    slopes[kept] = to_vector(x.grad());
    moved[kept] = to_vector(layer.parametrization.u);
  }
  EXPECT_EQ(slopes[0], slopes[1]);
  EXPECT_EQ(moved[0], moved[1]);
}

// The weight is computed in f32 and is not a leaf, so each call casts its own.
template <class Layer>
void train_under_autocast(Layer layer, DType low) {
  const Tensor x = randn({8, 16}), y = randn({8, 4});
  optim::SGD sgd(layer.parameters(), {.lr = 0.1});
  amp::GradScaler scaler(low, {.init_scale = 1024});
  double first = 0, last = 0;
  const amp::Autocast on({.low = low});  // one region, and so one cache, for all steps
  for (int i = 0; i < 30; ++i) {
    const Tensor out = layer(x);
    EXPECT_EQ(out.dtype(), low);
    expect_near(out, linear(x, layer.weight().detach(), layer.state_dict()[0].second), 0.03);
    sgd.zero_grad();
    const Tensor loss = mse_loss(out, y);
    scaler.scale(loss).backward();
    for (const Tensor& p : layer.parameters()) EXPECT_EQ(p.grad().dtype(), f32);
    EXPECT_TRUE(scaler.step(sgd));
    scaler.update();
    (i == 0 ? first : last) = loss.item();
  }
  EXPECT_LT(last, 0.8 * first);
}
TEST(Parametrized, TrainUnderAutocast) {
  for (const DType low : {f16, bf16}) {
    const Seed seed(4);
    train_under_autocast(WeightNorm(Linear(16, 4)), low);
    train_under_autocast(SpectralNorm(Linear(16, 4)), low);
  }
}

TEST(Parametrized, TheWeightIsComputedWide) {
  const Seed seed(5);
  const WeightNorm layer(Linear(300, 2));
  const Tensor outside = layer.weight();
  const amp::Autocast on({.low = f16});
  EXPECT_TRUE(equal(layer.weight(), outside));
  SpectralNorm other(Linear(300, 2));
  other.eval();
  EXPECT_EQ(other.weight().dtype(), f32);
}

TEST(Parametrized, AreModules) {
  const Seed seed(6);
  nn::Sequential net(WeightNorm(Linear(3, 4)), SpectralNorm(Linear(4, 2)));
  EXPECT_EQ(net.state_dict()[1].first, "0.parametrizations.weight.original0");
  const Tensor x = randn({2, 3});
  net.eval();
  const Tensor y = net(x);
  nn::Sequential copy = net.clone();
  EXPECT_TRUE(equal(copy(x), y));
  const NoGrad off;
  fill_(copy.parameters()[1], 0);  // the lengths
  EXPECT_TRUE(equal(net(x), y)) << "a copy has tensors of its own";
  copy.load_state_dict(net.state_dict());
  EXPECT_TRUE(equal(copy(x), y));
  net.to(f16);
  EXPECT_EQ(net(x.to(f16)).dtype(), f16);
  expect_near(net(x.to(f16)).to(f32), y, 0.01);
}

// The inner layer follows the mode: here one whose result depends on it.
struct Scaled : nn::Module<Scaled> {
  Tensor weight = nn::parameter(ones({2, 2}));
  Tensor forward(const Tensor& x) const { return is_training() ? x : matmul(x, weight); }
  MIXTAPE_FIELDS(weight)
};
TEST(Parametrized, HandTheirModeOn) {
  WeightNorm layer{Scaled()};
  const Tensor x = ones({1, 2});
  EXPECT_EQ(to_vector(layer(x)), (Values{1, 1}));
  layer.eval();
  expect_near(layer(x), full({1, 2}, 2), 1e-6);
}

TEST(Parametrized, Errors) {
  EXPECT_EQ(error([] { WeightNorm(nn::LayerNorm(3)); }),
            "WeightNorm: a weight of shape [3] has no rows");
  EXPECT_EQ(error([] { SpectralNorm(nn::LayerNorm(3, {.affine = false})); }),
            "SpectralNorm: a weight of shape [] has no rows");
  EXPECT_EQ(error([] { WeightNorm(Linear(3, 2), 2); }),
            "WeightNorm: dimension 2 is out of range for rank 2");
  EXPECT_EQ(error([] { SpectralNorm(Linear(3, 2), {.n_power_iterations = 0}); }),
            "SpectralNorm: n_power_iterations must be > 0, got 0");
  EXPECT_EQ(error([] { SpectralNorm(Linear(3, 2), {.eps = -1}); }),
            "SpectralNorm: eps must be >= 0, got -1");
}

}  // namespace nn_parametrize_test
}  // namespace mixtape
