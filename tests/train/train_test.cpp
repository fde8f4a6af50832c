// Trains a Sequential of common layers on a few images in each precision.
#include <gtest/gtest.h>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "nn/nn.h"
#include "optim/optim.h"

namespace mixtape {
namespace nn_train_test {

struct Mode {
  std::string name;
  DType low = f32;      // of autocast
  DType weights = f32;  // of the model
};

// The loss of each step.
std::vector<double> train(const Mode& mode) {
  const Seed seed(1);
  nn::Sequential net(nn::Conv2d(1, 8, 3, {.padding = 1}), nn::BatchNorm2d(8), nn::ReLU(),
                     nn::MaxPool2d(2), nn::Flatten(), nn::Linear(8 * 4 * 4, 16), nn::LayerNorm(16),
                     nn::GELU(), nn::Dropout(0.1), nn::Linear(16, 4));
  nn::CrossEntropyLoss loss_of({.class_weights = from({1, 2, 0.5, 1}, {4})});
  net.to(mode.weights);
  loss_of.to(mode.weights);
  const Tensor x = randn({32, 1, 8, 8}).to(mode.weights), y = randint(0, 4, {32});
  optim::AdamW opt(net.parameters(), {.lr = 1e-2});
  amp::GradScaler scaler(mode.low);
  std::vector<double> losses;
  for (int step = 0; step < 50; ++step) {
    opt.zero_grad();
    Tensor loss;
    {
      const amp::Autocast on({.low = mode.low});
      loss = loss_of(net(x), y);
    }
    losses.push_back(loss.item());
    scaler.scale(loss).backward();
    EXPECT_TRUE(scaler.step(opt));
    scaler.update();
  }
  for (const Tensor& p : net.parameters()) EXPECT_EQ(p.grad().dtype(), p.dtype());
  return losses;
}

struct Modes : testing::TestWithParam<Mode> {};
TEST_P(Modes, LearnTheSame) {
  const std::vector<double> losses = train(GetParam()), wide = train({"f32"});
  EXPECT_GT(losses.front(), 1);
  EXPECT_LT(losses.back(), 0.1);
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(losses[i], wide[i], 0.05 * wide[i]) << i;
}
INSTANTIATE_TEST_SUITE_P(Sequential, Modes,
                         testing::Values(Mode{"f32"}, Mode{"autocast_f16", f16},
                                         Mode{"autocast_bf16", bf16},
                                         Mode{"bf16_weights", f32, bf16}),
                         [](const auto& info) { return info.param.name; });

}  // namespace nn_train_test
}  // namespace mixtape
