// Initial values: their distributions.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "tests/support/errors.h"
#include "tests/support/moments.h"

namespace mixtape {
namespace nn_init_test {

using test::error;
using test::expect_normal;
using test::expect_uniform;
using test::moments;

TEST(Init, Distributions) {
  const Seed seed(1);
  const Tensor t = nn::parameter(zeros({64, 32, 3, 3}));
  EXPECT_EQ(nn::init::fan(t).in, 288);
  EXPECT_EQ(nn::init::fan(t).out, 576);
  expect_uniform(nn::init::uniform_(t, -2, 2), 2);
  expect_normal(nn::init::normal_(t, 0, 3), 3);
  expect_uniform(nn::init::kaiming_uniform_(t), std::sqrt(6.0 / 288));
  expect_uniform(nn::init::kaiming_uniform_(t, {.a = 2, .fan_out = true}),
                 std::sqrt(6.0 / 5 / 576));
  expect_normal(nn::init::kaiming_normal_(t), std::sqrt(2.0 / 288));
  expect_uniform(nn::init::xavier_uniform_(t, 2), 2 * std::sqrt(6.0 / 864));
  expect_normal(nn::init::xavier_normal_(t), std::sqrt(2.0 / 864));
  EXPECT_EQ(moments(nn::init::constant_(t, 3)).low, 3);
  EXPECT_EQ(moments(nn::init::ones_(t)).high, 1);
  EXPECT_EQ(moments(nn::init::zeros_(t)).high, 0);
  EXPECT_TRUE(t.is_leaf() && !t.grad_fn()) << "nothing was recorded";
  EXPECT_EQ(error([] { nn::init::kaiming_normal_(zeros({3})); }),
            "the weight has shape [3], not [out, in, ...]");
}

TEST(Init, DrawsFromTheGenerator) {
  const auto weight = [](uint64_t s) {
    const Seed seed(s);
    return nn::Linear(4, 4).weight;
  };
  EXPECT_TRUE(equal(weight(5), weight(5)));
  EXPECT_FALSE(equal(weight(5), weight(6)));
}

TEST(Init, TruncatedNormal) {
  const Seed seed(2);
  const Tensor t = zeros({100, 1000});
  nn::init::trunc_normal_(t);
  const auto m = moments(t);
  EXPECT_GE(m.low, -2);
  EXPECT_LE(m.high, 2);
  EXPECT_LT(m.low, -1.99);
  EXPECT_GT(m.high, 1.99);
  EXPECT_NEAR(m.mean, 0, 4 * 0.88 / std::sqrt(1e5));
  EXPECT_NEAR(m.std, 0.8796, 0.008) << "of a normal distribution cut off at two deviations";
  // Quartiles of the half-normal distribution.
  nn::init::trunc_normal_(t, {.mean = 3, .std = 2, .low = 3, .high = 1e9});
  EXPECT_NEAR(mean(lt(t, 3 + 2 * 0.318639).to(f32)).item(), 0.25, 0.006);
  EXPECT_NEAR(mean(lt(t, 3 + 2 * 0.674490).to(f32)).item(), 0.50, 0.006);
  EXPECT_NEAR(mean(lt(t, 3 + 2 * 1.150349).to(f32)).item(), 0.75, 0.006);
  EXPECT_EQ(moments(lt(t, 3.0).to(f32)).high, 0);
  // Far from the mean on either side, where almost all values are at the nearer end.
  nn::init::trunc_normal_(t, {.low = 10, .high = 12});
  const auto above = moments(t);
  EXPECT_NEAR(above.mean, 10.0981, 0.002);  // phi(10) / Q(10)
  EXPECT_GT(above.high, 10.5);
  nn::init::trunc_normal_(t, {.low = -12, .high = -10});
  EXPECT_NEAR(moments(t).mean, -10.0981, 0.002);
  // An infinite tail gives no infinite values, even for a seed with 24 zero bits first.
  const Seed zero(12121362);
  nn::init::trunc_normal_(t, {.low = -INFINITY, .high = 0});
  EXPECT_GT(moments(t).low, -6);
  EXPECT_EQ(error([&] { nn::init::trunc_normal_(t, {.low = 2}); }),
            "std must be > 0 and low < high, got 1 and 2 to 2");
  EXPECT_EQ(error([&] { nn::init::trunc_normal_(t, {.std = 0}); }),
            "std must be > 0 and low < high, got 0 and -2 to 2");
  EXPECT_EQ(error([&] { nn::init::trunc_normal_(zeros({2}, i64)); }),
            "the tensor must be a float, got i64");
}

double off_identity(const Tensor& t) { return max(abs(t - eye(t.size(0), t.dtype()))).item(); }

TEST(Init, Orthogonal) {
  const Seed seed(3);
  const Tensor wide = nn::parameter(zeros({40, 70}, f64)), tall = zeros({70, 40}, f64),
               filters = zeros({6, 2, 3, 3}, f64);
  EXPECT_TRUE(nn::init::orthogonal_(wide).is_same(wide));
  EXPECT_LT(off_identity(matmul(wide.detach(), wide.detach().t())), 1e-13);
  nn::init::orthogonal_(tall, 3);
  EXPECT_LT(off_identity(matmul(tall.t(), tall) / 9), 1e-13);
  nn::init::orthogonal_(filters);
  const Tensor rows = reshape(filters, {6, 18});
  EXPECT_LT(off_identity(matmul(rows, rows.t())), 1e-13);
  // Each element of a random rotation has mean square 1 / n and no preferred sign.
  double first = 0, square_of_first = 0;
  for (int i = 0; i < 400; ++i) {
    const Tensor small = zeros({3, 3}, f64);
    nn::init::orthogonal_(small);
    first += small.at(0) / 400;
    square_of_first += small.at(0) * small.at(0) / 400;
  }
  EXPECT_NEAR(first, 0, 4 * std::sqrt(1.0 / 3 / 400));
  EXPECT_NEAR(square_of_first, 1.0 / 3, 4 * 0.3 / 20);
  EXPECT_EQ(error([] { nn::init::orthogonal_(zeros({3})); }),
            "the tensor has shape [3], not [m, n]");
  EXPECT_EQ(nn::init::orthogonal_(zeros({0, 3})).numel(), 0);
}

TEST(Init, Identities) {
  const Tensor m = full({2, 3}, 7), filters = full({4, 2, 3, 2}, 7), x = randn({1, 4, 5, 6});
  nn::init::eye_(m);
  EXPECT_EQ(to_vector(m), (std::vector<double>{1, 0, 0, 0, 1, 0}));
  nn::init::dirac_(filters, 2);
  EXPECT_EQ(sum(filters).item(), 4);
  const Tensor y = conv2d(x, filters, {}, {.padding = {1, 1}, .groups = 2});
  EXPECT_TRUE(equal(narrow(y, 3, 0, 6), x)) << "every channel is passed on";
  const Tensor more_out = zeros({3, 2, 1});
  nn::init::dirac_(more_out);
  EXPECT_EQ(to_vector(more_out), (std::vector<double>{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(error([] { nn::init::eye_(zeros({3})); }), "the tensor has shape [3], not [m, n]");
  EXPECT_EQ(error([] { nn::init::dirac_(zeros({3, 3})); }),
            "the weight has shape [3, 3], not [out, in, kernel...]");
  EXPECT_EQ(error([] { nn::init::dirac_(zeros({3, 3, 1}), 2); }),
            "3 channels do not divide into 2 groups");
}

TEST(Init, GainsArePyTorchs) {
  using enum nn::init::Function;
  const auto gain = nn::init::calculate_gain;
  EXPECT_EQ(gain(Linear, 0.01), 1);
  EXPECT_EQ(gain(Sigmoid, 0.01), 1);
  EXPECT_EQ(gain(Tanh, 0.01), 5.0 / 3);
  EXPECT_EQ(gain(Relu, 0.01), std::sqrt(2.0));
  EXPECT_EQ(gain(LeakyRelu, 0.2), std::sqrt(2 / 1.04));
  EXPECT_EQ(gain(Selu, 0.01), 0.75);
}

}  // namespace nn_init_test
}  // namespace mixtape
