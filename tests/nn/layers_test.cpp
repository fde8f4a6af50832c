// Layers: each is its functional op, has PyTorch's initial values and the right gradient.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "amp/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/moments.h"

namespace mixtape {
namespace nn_layers_test {

using test::error;
using test::expect_normal;
using test::expect_uniform;
using test::moments;

TEST(PReLU, LearnsItsSlopes) {
  const nn::PReLU one, each(3, 0.5);
  EXPECT_EQ(to_vector(one.weight), std::vector<double>{0.25});
  EXPECT_EQ(to_vector(each.weight), std::vector<double>(3, 0.5));
  const Tensor x = randn({2, 3, 4});
  EXPECT_TRUE(equal(one(x), leaky_relu(x, 0.25)));
  EXPECT_TRUE(equal(each(x), prelu(x, each.weight)));
  EXPECT_EQ(
      error([&] { each(randn({3, 4})); }),
      "PReLU: prelu: a weight of shape [3] for an input of shape [3, 4]: one number, or one per "
      "channel");

  const Tensor low = full({64, 2}, -60, f16);  // the weight's gradient overflows f16
  prelu(low, one.weight).backward({.gradient = full({64, 2}, 1000, f16)});
  EXPECT_EQ(one.weight.grad().item(), -60.0 * 1000 * 128);
}

TEST(Linear, IsPyTorchs) {
  const nn::Linear layer(100, 300);
  EXPECT_EQ(layer.weight.shape(), (Shape{300, 100}));
  expect_uniform(layer.weight, 0.1);
  expect_uniform(layer.bias, 0.1);
  EXPECT_TRUE(layer.weight.requires_grad() && layer.bias.requires_grad());
  const Tensor x = randn({2, 5, 100});
  EXPECT_TRUE(equal(layer(x), linear(x, layer.weight, layer.bias)));
  const nn::Linear plain(100, 3, {.bias = false});
  EXPECT_FALSE(plain.bias);
  EXPECT_TRUE(equal(plain(x), linear(x, plain.weight)));
  const nn::Linear ended(100, 3, {.activation = Activation::Gelu});
  EXPECT_TRUE(equal(ended(x), linear(x, ended.weight, ended.bias, {Activation::Gelu})));
  EXPECT_FALSE(equal(ended(x), linear(x, ended.weight, ended.bias)));
  EXPECT_EQ(error([] { nn::Linear(0, 3); }), "Linear: sizes must be positive: in 0, out 3");
}

TEST(Conv2d, IsPyTorchs) {
  const nn::Conv2d layer(6, 60, {3, 5},
                         {.stride = 2, .padding = {1, 2}, .dilation = {1, 2}, .groups = 3});
  EXPECT_EQ(layer.weight.shape(), (Shape{60, 2, 3, 5}));
  const double bound = 1 / std::sqrt(30.0);
  expect_uniform(layer.weight, bound);
  EXPECT_LE(std::max(moments(layer.bias).high, -moments(layer.bias).low), bound);
  const Tensor x = randn({2, 6, 9, 11});
  EXPECT_TRUE(equal(
      layer(x), conv2d(x, layer.weight, layer.bias,
                       {.stride = {2, 2}, .padding = {1, 2}, .dilation = {1, 2}, .groups = 3})));
  const nn::Conv2d ended(6, 4, 3, {.activation = Activation::Relu});
  EXPECT_TRUE(equal(ended(x), relu(conv2d(x, ended.weight, ended.bias))));
  const nn::Conv1d line(6, 4, 3, {.activation = Activation::Gelu});
  EXPECT_TRUE(equal(line(flatten(x, 2)), conv1d(flatten(x, 2), line.weight, line.bias,
                                                {.activation = Activation::Gelu})));
  EXPECT_FALSE(nn::Conv2d(1, 1, 3, {.bias = false}).bias);
  EXPECT_EQ(error([] { nn::Conv2d(4, 6, 3, {.groups = 4}); }),
            "Conv2d: 4 and 6 channels do not divide into 4 groups");
  EXPECT_EQ(error([] { nn::Conv2d(4, 6, {3, 0}); }), "Conv2d: kernel must be >= 1, got 3 x 0");
  EXPECT_EQ(error([] { nn::Conv2d(4, -6, 3); }), "Conv2d: channels must be positive: in 4, out -6");
  EXPECT_EQ(error([] { nn::Conv2d(4, 6, 3, {.stride = 0}); }),
            "Conv2d: stride must be >= 1, got 0 x 0");
  EXPECT_EQ(error([] { nn::Conv2d(4, 6, 3, {.padding = {-1, 0}}); }),
            "Conv2d: padding must be >= 0, got -1 x 0");
  EXPECT_EQ(error([] { nn::Conv2d(4, 6, 3, {.dilation = {1, 0}}); }),
            "Conv2d: dilation must be >= 1, got 1 x 0");
}

TEST(Conv, PadsInAnyMode) {
  const Tensor image = randn({2, 3, 7, 9}).set_requires_grad(), line = randn({2, 3, 9});
  for (const PadMode mode : {PadMode::Reflect, PadMode::Replicate, PadMode::Circular}) {
    const nn::Conv2d layer(
        3, 4, 3, {.stride = {1, 2}, .padding = {1, 2}, .dilation = 2, .padding_mode = mode});
    const Tensor y = layer(image);
    const Tensor wanted = conv2d(pad(image, {2, 2, 1, 1}, mode), layer.weight, layer.bias,
                                 {.stride = {1, 2}, .dilation = 2});
    EXPECT_TRUE(equal(y, wanted));
    EXPECT_TRUE(equal(grad({sum(y * y)}, {image})[0], grad({sum(wanted * wanted)}, {image})[0]));
    const amp::Autocast on(f16);
    EXPECT_EQ(layer(image).dtype(), f16);
    const nn::Conv1d other(3, 4, 3, {.padding = 1, .bias = false, .padding_mode = mode});
    EXPECT_TRUE(equal(other(line), conv1d(pad(line, {1, 1}, mode), other.weight)));
  }
  const nn::Conv2d zero(3, 4, 3, {.padding = 1, .padding_mode = PadMode::Constant});
  EXPECT_TRUE(equal(zero(image), conv2d(image, zero.weight, zero.bias, {.padding = 1})));
  const nn::Conv1d wide(3, 4, 3, {.padding = 9, .padding_mode = PadMode::Reflect});
  EXPECT_EQ(error([&] { wide(line); }),
            "Conv1d: pad: margins of 9 and 9 elements cannot come from 9");
}

TEST(MaxPool2d, IsTheOp) {
  const Tensor x = randn({2, 3, 7, 8});
  EXPECT_TRUE(equal(nn::MaxPool2d(2)(x), max_pool2d(x, {2, 2})));
  EXPECT_TRUE(equal(nn::MaxPool2d({2, 3}, {.stride = 1, .padding = {1, 0}})(x),
                    max_pool2d(x, {2, 3}, {.stride = {1, 1}, .padding = {1, 0}})));
  EXPECT_EQ(error([] { nn::MaxPool2d(0); }), "MaxPool2d: the window must be > 0, got 0 x 0");
}

TEST(BatchNorm, TracksTheBatchesItSaw) {
  nn::BatchNorm2d layer(3);
  const Tensor x = randn({4, 3, 5, 5}) * 2.0 + 1.0;
  Tensor running_mean = zeros({3}), running_var = ones({3});
  for (int step = 0; step < 3; ++step) {
    const Tensor expected =
        batch_norm(x, running_mean, running_var, layer.weight, layer.bias, {.training = true});
    EXPECT_TRUE(equal(layer(x), expected));
  }
  EXPECT_EQ(layer.num_batches_tracked.item(), 3);
  EXPECT_NE(error([&] { layer(ones({2, 4, 5, 5})); }), "");  // a rejected batch does not count
  EXPECT_EQ(layer.num_batches_tracked.item(), 3);
  EXPECT_TRUE(equal(layer.running_mean, running_mean));
  EXPECT_TRUE(equal(layer.running_var, running_var));
  const Tensor batch_mean = mean(x, {0, 2, 3}), batch_var = var(x, {0, 2, 3});
  for (int c = 0; c < 3; ++c) {  // 1 - 0.9^3 of the way after three steps
    EXPECT_NEAR(running_mean.at(c), 0.271 * batch_mean.at(c), 1e-5);
    EXPECT_NEAR(running_var.at(c), 0.729 + 0.271 * batch_var.at(c), 1e-5);
  }
  layer.eval();
  EXPECT_TRUE(equal(layer(x), batch_norm(x, running_mean, running_var, layer.weight, layer.bias)));
  EXPECT_EQ(layer.num_batches_tracked.item(), 3);
}

TEST(BatchNorm, AveragesAllBatchesWithoutAMomentum) {
  nn::BatchNorm2d layer(3, {.momentum = std::nullopt});
  Tensor means = zeros({3}), vars = zeros({3});
  for (int step = 1; step <= 4; ++step) {
    const Tensor x = randn({4, 3, 5, 5}) * double(step) + 1.0;
    EXPECT_TRUE(
        equal(layer(x), batch_norm(x, {}, {}, layer.weight, layer.bias, {.training = true})));
    means += mean(x, {0, 2, 3});
    vars += var(x, {0, 2, 3});
    EXPECT_EQ(layer.num_batches_tracked.item(), step);
    EXPECT_LT(max(abs(layer.running_mean - means / double(step))).item(), 1e-5);
    EXPECT_LT(max(abs(layer.running_var - vars / double(step))).item(), 1e-4);
  }
  layer.eval();
  const Tensor before = layer.running_mean.clone();
  layer(randn({4, 3, 5, 5}));
  EXPECT_TRUE(equal(layer.running_mean, before));
  const nn::BatchNorm1d bare(3, {.momentum = {}, .track_running_stats = false});
  EXPECT_EQ(bare(randn({4, 3})).shape(), (Shape{4, 3}));
}

TEST(BatchNorm, SurvivesABatchThatIsNotFinite) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  nn::BatchNorm1d layer(3, {.momentum = 0.5});
  for (const double bad : {inf, -inf, double(NAN)}) {
    const Tensor mean = layer.running_mean.clone(), var = layer.running_var.clone();
    layer(from({1, bad, 2, 3, 4, 2}, {2, 3}, f16));
    EXPECT_EQ(layer.running_mean.at(1), mean.at(1));
    EXPECT_EQ(layer.running_var.at(1), var.at(1));
    EXPECT_EQ(layer.running_mean.at(0), (mean.at(0) + 2) / 2) << "the other channels";
    EXPECT_EQ(layer.running_var.at(2), var.at(2) / 2);
  }
}

// Without a momentum, an average is that of the batches whose statistics are all finite.
TEST(BatchNorm, AveragesBatchesThatAreFinite) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  nn::BatchNorm1d layer(3, {.momentum = std::nullopt});
  const auto batch = [](double x) { return from({1, x, 2, 3, 4, 2}, {2, 3}); };
  layer(batch(inf));
  EXPECT_EQ(layer.num_batches_tracked.item(), 0);
  EXPECT_TRUE(equal(layer.running_mean, zeros({3})));
  EXPECT_TRUE(equal(layer.running_var, ones({3})));
  for (const double x : {2.0, inf, 6.0, 1e30, double(NAN), 7.0}) layer(batch(x));
  EXPECT_EQ(layer.num_batches_tracked.item(), 3);
  EXPECT_TRUE(allclose(layer.running_mean, from({2, 4.5, 2}, {3})));
  EXPECT_TRUE(allclose(layer.running_var, from({2, (2 + 2 + 4.5) / 3, 0}, {3})));
}

TEST(BatchNorm, Options) {
  nn::BatchNorm1d bare(3, {.eps = 1e-3, .affine = false, .track_running_stats = false});
  EXPECT_TRUE(bare.state_dict().empty());
  const Tensor x = randn({8, 3});
  bare.eval();
  EXPECT_TRUE(equal(bare(x), batch_norm(x, {}, {}, {}, {}, {.training = true, .eps = 1e-3})));
  nn::BatchNorm1d fast(3, {.momentum = 1});
  fast(x);
  EXPECT_NEAR(fast.running_mean.at(1), mean(x, {0}).at(1), 1e-6);
  EXPECT_EQ(fast(randn({2, 3, 4})).shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(error([&] { fast(randn({2, 3, 4, 4})); }),
            "BatchNorm1d: the input has shape [2, 3, 4, 4], not [n, c] or [n, c, length]");
  EXPECT_EQ(error([&] { nn::BatchNorm2d(3)(x); }),
            "BatchNorm2d: the input has shape [8, 3], not [n, c, h, w]");
  EXPECT_EQ(error([&] { nn::BatchNorm2d(0); }), "BatchNorm: channels must be > 0, got 0");
  EXPECT_EQ(error([&] { nn::BatchNorm2d(3, {.momentum = 2}); }),
            "BatchNorm: momentum must be from 0 to 1, got 2");
  EXPECT_EQ(error([&] { nn::BatchNorm2d(3, {.eps = -1}); }), "BatchNorm: eps must be >= 0, got -1");
  EXPECT_EQ(error([&] { nn::LayerNorm(3, {.eps = NAN}); }), "LayerNorm: eps must be >= 0, got nan");
}

TEST(LayerNorm, IsTheOp) {
  const Tensor x = randn({3, 4, 5});
  const nn::LayerNorm last(5), both({4, 5}, {.eps = 1e-3, .bias = false}),
      bare(5, {.affine = false});
  nn::init::normal_(both.weight);
  EXPECT_TRUE(equal(last(x), layer_norm(x, {5}, ones({5}), zeros({5}))));
  EXPECT_TRUE(equal(both(x), layer_norm(x, {4, 5}, both.weight, {}, 1e-3)));
  EXPECT_TRUE(equal(bare(x), layer_norm(x, {5})));
  EXPECT_TRUE(bare.parameters().empty());
  EXPECT_EQ(error([] { nn::LayerNorm(0); }), "LayerNorm: the shape must have elements, got [0]");
}

TEST(Dropout, ActsOnlyInTraining) {
  nn::Dropout layer(0.25);
  const Tensor x = ones({1000});
  Tensor dropped;
  {
    const Seed seed(3);
    dropped = layer(x);
  }
  const Seed seed(3);
  EXPECT_TRUE(equal(dropped, dropout(x, 0.25)));
  EXPECT_NEAR(mean(eq(dropped, 0.0).to(f32)).item(), 0.25, 4 * std::sqrt(0.25 * 0.75 / 1000));
  layer.eval();
  EXPECT_TRUE(layer(x).is_same(x));
  EXPECT_EQ(error([] { nn::Dropout(1.5); }), "Dropout: p must be from 0 to 1, got 1.5");
}

TEST(Embedding, IsATableOfNormalRows) {
  const nn::Embedding table(200, 50);
  expect_normal(table.weight, 1);
  const Tensor index = from({3, 199, 0, 3}, {2, 2}, i64);
  EXPECT_TRUE(equal(table(index), embedding(table.weight, index)));
  EXPECT_EQ(error([] { nn::Embedding(3, 0); }),
            "Embedding: sizes must be positive: rows 3, size 0");
}

// rows_reference_test compares numbers with PyTorch.
TEST(EmbeddingBag, IsTheRowsOfABagTogether) {
  nn::EmbeddingBag bag(5, 2, {.mode = BagMode::Sum, .padding_idx = -1});
  const Tensor& table = bag.weight;
  EXPECT_EQ(to_vector(select(table, 0, 4)), (std::vector<double>{0, 0}));
  const Tensor index = from({0, 1, 4, 3, 4}, {5}, i64), begins = from({0, 2, 2, 4}, {4}, i64);
  const Tensor y = bag(index, begins), row = table.detach();
  EXPECT_TRUE(equal(y, stack({select(row, 0, 0) + select(row, 0, 1), zeros({2}), select(row, 0, 3),
                              zeros({2})})));
  sum(y).backward();
  EXPECT_EQ(to_vector(bag.weight.grad()), (std::vector<double>{1, 1, 1, 1, 0, 0, 1, 1, 0, 0}));
  EXPECT_TRUE(equal(bag(from({0, 1, 4, 4}, {2, 2}, i64)),
                    slice(bag(slice(index, 0, 0, 3), from({0, 2}, {2}, i64)), 0, 0, 2)));
  for (const BagMode mode : {BagMode::Sum, BagMode::Mean, BagMode::Max}) {
    const nn::EmbeddingBag other(5, 2, {.mode = mode, .padding_idx = 4});
    EXPECT_EQ(to_vector(other(from({4, 4}, {1, 2}, i64))), (std::vector<double>{0, 0}));
    EXPECT_EQ(to_vector(other(zeros({2, 0}, i64))), std::vector<double>(4));
    EXPECT_EQ(to_vector(other(zeros({0}, i64), zeros({2}, i64))), std::vector<double>(4));
    EXPECT_EQ(other(zeros({0}, i64), zeros({0}, i64)).shape(), (Shape{0, 2}));
    sum(other(zeros({0}, i64), zeros({2}, i64))).backward();
    EXPECT_EQ(to_vector(other.weight.grad()), std::vector<double>(10));
  }
}

TEST(EmbeddingBag, OneLongBagDoesNotPadTheOthers) {
  constexpr int64_t bags = 2000;  // alternately one row and none, and 2000 rows in the middle one
  std::vector<int64_t> index, begins;
  for (int64_t b = 0; b < bags; ++b) {
    begins.push_back(int64_t(index.size()));
    for (int64_t i = b == bags / 2 ? bags : b % 2; i > 0; --i) index.push_back((b + 3 * i) % 7);
  }
  const Tensor table = randn({7, 4}, f64).set_requires_grad();
  for (const BagMode mode : {BagMode::Sum, BagMode::Mean, BagMode::Max}) {
    reset_peak();
    const int64_t before = memory_stats().peak_total;
    const Tensor y =
        embedding_bag(table, from_data(index), from_data(begins), {.mode = mode, .padding_idx = 2});
    const Tensor weight = randn(y.shape(), f64), dy = grad({sum(y * weight)}, {table})[0];
    EXPECT_LT(memory_stats().peak_total - before, 10 << 20);  // padded, the rows are 128 MB
    std::vector<Tensor> alone;
    for (size_t b = 0; b < begins.size(); ++b) {
      const int64_t end = b + 1 < begins.size() ? begins[b + 1] : int64_t(index.size());
      alone.push_back(embedding_bag(table, unsqueeze(slice(from_data(index), 0, begins[b], end), 0),
                                    {}, {.mode = mode, .padding_idx = 2}));
    }
    EXPECT_LT(max(abs(y - cat(alone))).item(), 1e-12);
    EXPECT_LT(max(abs(dy - grad({sum(cat(alone) * weight)}, {table})[0])).item(), 1e-9);
  }
}

TEST(EmbeddingBag, WeighsSamples) {
  const nn::EmbeddingBag bag(5, 2, {.mode = BagMode::Sum, .include_last_offset = true});
  const Tensor index = from({0, 4, 1, 1, 2, 3}, {6}, i64);
  for (const DType dtype : {f32, f16}) {
    const Tensor weights = tensor({1, -2, 0.5, 3, 0, 1}).to(dtype).set_requires_grad();
    const Tensor rows = embedding(bag.weight, index) * unsqueeze(weights.to(f32), 1);
    const Tensor wanted =
        stack({sum(slice(rows, 0, 0, 4), {0}), zeros({2}), sum(slice(rows, 0, 4), {0})});
    const Tensor y = bag(index, from({0, 4, 4, 6}, {4}, i64), weights);
    EXPECT_LT(max(abs(y - wanted)).item(), 1e-6);
    const auto slopes = [&](const Tensor& t) { return grad({sum(t * t)}, {bag.weight, weights}); };
    const auto got = slopes(y), want = slopes(wanted);
    for (size_t i : {0, 1})
      EXPECT_LT(max(abs(got[i] - want[i])).item(), dtype == f16 ? 1e-2 : 1e-5);
    const nn::EmbeddingBag plain(5, 2, {.mode = BagMode::Sum});
    EXPECT_LT(max(abs(plain(reshape(index, {2, 3}), Tensor(), reshape(weights, {2, 3})) -
                      sum(reshape(embedding(plain.weight, index) * unsqueeze(weights.to(f32), 1),
                                  {2, 3, 2}),
                          {1})))
                  .item(),
              1e-6);
  }
  EXPECT_EQ(error([&] { bag(index, from({0, 4, 5}, {3}, i64)); }),
            "EmbeddingBag: embedding_bag: the last offset must be the number of indices, 6, got 5");
  EXPECT_EQ(error([&] { bag(index, from({0, 6}, {2}, i64), ones({5})); }),
            "EmbeddingBag: embedding_bag: per_sample_weights has shape [5], not [6]");
  EXPECT_EQ(error([&] { nn::EmbeddingBag(5, 2)(unsqueeze(index, 0), Tensor(), ones({1, 6})); }),
            "EmbeddingBag: embedding_bag: per_sample_weights are for BagMode::Sum alone");
  EXPECT_EQ(error([&] { nn::EmbeddingBag(5, 2, {.per_sample_weights = ones({1, 6})}); }),
            "EmbeddingBag: each call gets its own per_sample_weights");
}

TEST(EmbeddingBag, Errors) {
  const nn::EmbeddingBag bag(5, 2);
  const Tensor index = from({0, 1, 4}, {3}, i64);
  const auto of = [&](const Tensor& i, const Tensor& offsets) {
    return error([&] { bag(i, offsets); });
  };
  EXPECT_EQ(of(index, {}),
            "EmbeddingBag: embedding_bag: the index has shape [3], not [bags, k], without offsets");
  EXPECT_EQ(of(unsqueeze(index, 0), index),
            "EmbeddingBag: embedding_bag: the index has shape [1, 3], not [k], beside offsets");
  EXPECT_EQ(of(index, zeros({2})),
            "EmbeddingBag: embedding_bag: offsets must be integers, got f32");
  EXPECT_EQ(of(index, from({1, 2}, {2}, i64)),
            "EmbeddingBag: embedding_bag: offsets begin at 1, and the smallest of their bags of 3 "
            "indices has 1");
  EXPECT_EQ(of(index, from({0, 2, 1}, {3}, i64)),
            "EmbeddingBag: embedding_bag: offsets begin at 0, and the smallest of their bags of 3 "
            "indices has -1");
  EXPECT_EQ(of(index, from({0, 4}, {2}, i64)),
            "EmbeddingBag: embedding_bag: offsets begin at 0, and the smallest of their bags of 3 "
            "indices has -1");
  const int64_t most = std::numeric_limits<int64_t>::max();  // bags whose sizes wrap around
  EXPECT_EQ(of(index, from_data(std::vector{int64_t{0}, most, int64_t{-2}})),
            "EmbeddingBag: embedding_bag: offsets begin at 0, and the smallest of their bags of 3 "
            "indices has 5");
  EXPECT_EQ(error([] { nn::EmbeddingBag(4, 3, {.padding_idx = 4}); }),
            "EmbeddingBag: padding_idx 4 is out of range for 4 rows");
}

TEST(Embedding, PaddingIsZeroAndStaysSo) {
  nn::Embedding table(4, 3, {.padding_idx = -2});
  EXPECT_TRUE(equal(select(table.weight, 0, 2), zeros({3})));
  EXPECT_NE(table.weight.at(9), 0);
  EXPECT_TRUE(table.weight.is_leaf());
  const Tensor index = from({2, 1, 2, 3}, {2, 2}, i64);
  sum(table(index)).backward();
  EXPECT_EQ(to_vector(sum(table.weight.grad(), {1})), (std::vector<double>{0, 3, 0, 3}));
  nn::init::constant_(table.weight, 5);
  EXPECT_EQ(table(index).at(0), 5) << "only the start and the gradient are special";
  EXPECT_EQ(error([] { nn::Embedding(4, 3, {.padding_idx = 4}); }),
            "Embedding: padding_idx 4 is out of range for 4 rows");
  EXPECT_EQ(error([] { nn::Embedding(4, 3, {.padding_idx = -5}); }),
            "Embedding: padding_idx -5 is out of range for 4 rows");
  EXPECT_EQ(error([&] { embedding(table.weight, index, {.padding_idx = 4}); }),
            "embedding: padding_idx 4 is out of range for 4 rows");
  const Tensor own = ones({4, 3}).set_requires_grad();
  sum(embedding(own, index, {.padding_idx = -2})).backward();
  EXPECT_TRUE(equal(own.grad(), table.weight.grad())) << "the op, too, counts from the end";
}

TEST(Activations, AreTheOps) {
  const Tensor x = randn({2, 3, 4});
  EXPECT_TRUE(equal(nn::ReLU()(x), relu(x)));
  EXPECT_TRUE(equal(nn::GELU()(x), gelu(x)));
  EXPECT_TRUE(equal(nn::SiLU()(x), silu(x)));
  EXPECT_TRUE(equal(nn::Sigmoid()(x), sigmoid(x)));
  EXPECT_TRUE(equal(nn::Tanh()(x), tanh(x)));
  EXPECT_TRUE(equal(nn::Softmax(1)(x), softmax(x, 1)));
  EXPECT_TRUE(equal(nn::Flatten()(x), reshape(x, {2, 12})));
  EXPECT_TRUE(equal(nn::Flatten(0, 1)(x), reshape(x, {6, 4})));
  EXPECT_TRUE(nn::Identity()(x).is_same(x));
}

// Gradients of the input and of every parameter, in f64.
template <class M>
void expect_gradients(M net, const Shape& input) {
  net.to(f64);
  std::vector<Tensor> leaves = net.parameters();
  if (input.rank) leaves.push_back(nn::parameter(randn(input, f64)));
  EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return net(in.back()); }, leaves), "");
}

TEST(Gradient, OfEveryLayer) {
  const Seed seed(7);
  expect_gradients(nn::Linear(3, 4), {2, 3});
  expect_gradients(nn::Conv2d(2, 4, 3, {.stride = 2, .padding = 1, .groups = 2}), {2, 2, 5, 5});
  expect_gradients(nn::LayerNorm({2, 3}), {4, 2, 3});
  expect_gradients(nn::BatchNorm2d(2), {3, 2, 2, 2});
  nn::BatchNorm1d fixed(3);
  nn::init::uniform_(fixed.running_var, 0.5, 2);
  fixed.eval();
  expect_gradients(std::move(fixed), {4, 3});
  expect_gradients(nn::Sequential(nn::GELU(), nn::SiLU(), nn::Sigmoid(), nn::Tanh(), nn::Softmax()),
                   {2, 4});
  expect_gradients(nn::Sequential(nn::Conv2d(1, 2, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                                  nn::Linear(8, 3)),
                   {2, 1, 6, 6});
}

// A pre-norm transformer, to show that the ops suffice for one.
struct Attention : nn::Module<Attention> {
  nn::Linear qkv, proj;
  int64_t heads;
  Attention(int64_t size, int64_t heads) : qkv(size, 3 * size), proj(size, size), heads(heads) {}
  Tensor forward(const Tensor& x) const {
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const std::vector<Tensor> parts = chunk(qkv(x), 3, -1);
    const auto split_heads = [&](const Tensor& p) {
      return transpose(reshape(p, {b, t, heads, c / heads}), 1, 2);
    };
    const Tensor later =
        lt(reshape(arange(0, double(t)), {t, 1}), reshape(arange(0, double(t)), {1, t}));
    const Tensor scores = matmul(split_heads(parts[0]), transpose(split_heads(parts[1]))) /
                          std::sqrt(static_cast<double>(c / heads));
    const Tensor mixed =
        matmul(softmax(masked_fill(scores, later, -INFINITY)), split_heads(parts[2]));
    return proj(reshape(transpose(mixed, 1, 2), {b, t, c}));
  }
  MIXTAPE_FIELDS(qkv, proj)
};
struct TransformerBlock : nn::Module<TransformerBlock> {
  nn::LayerNorm ln1, ln2;
  Attention attn;
  nn::Sequential mlp;
  TransformerBlock(int64_t size, int64_t heads)
      : ln1(size),
        ln2(size),
        attn(size, heads),
        mlp(nn::Linear(size, 4 * size), nn::GELU(), nn::Linear(4 * size, size)) {}
  Tensor forward(const Tensor& x) const {
    const Tensor h = x + attn(ln1(x));
    return h + mlp(ln2(h));
  }
  MIXTAPE_FIELDS(ln1, attn, ln2, mlp)
};
struct Transformer : nn::Module<Transformer> {
  nn::Embedding token, position;
  std::vector<TransformerBlock> blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  Transformer(int64_t vocabulary, int64_t length, int64_t size, int64_t heads, int layers)
      : token(vocabulary, size),
        position(length, size),
        norm(size),
        head(size, vocabulary, {.bias = false}) {
    for (int i = 0; i < layers; ++i) blocks.emplace_back(size, heads);
    head.weight = token.weight;
  }
  Tensor forward(const Tensor& index) const {  // i64 [b, t] -> [b, t, vocabulary]
    Tensor x = token(index) + position(arange(0, double(index.size(1))));
    for (const TransformerBlock& block : blocks) x = block(x);
    return head(norm(x));
  }
  MIXTAPE_FIELDS(token, position, blocks, norm, head)
};

TEST(Transformer, HasTheRightGradients) {
  const Seed seed(11);
  Transformer net(5, 3, 4, 2, 2);
  EXPECT_EQ(net.state_dict()[4].first, "blocks.0.attn.qkv.weight");
  net.to(f64);
  const Tensor index = from({1, 4, 0, 2, 2, 3}, {2, 3}, i64);
  EXPECT_EQ(gradcheck([&](const std::vector<Tensor>&) { return net(index); }, net.parameters()),
            "");
}

TEST(Transformer, LooksOnlyBack) {
  const Transformer net(5, 3, 4, 2, 2);
  const Tensor a = net(from({1, 4, 0}, {1, 3}, i64)), b = net(from({1, 4, 3}, {1, 3}, i64));
  EXPECT_TRUE(equal(narrow(a, 1, 0, 2), narrow(b, 1, 0, 2)));
  EXPECT_FALSE(equal(select(a, 1, 2), select(b, 1, 2)));
  EXPECT_EQ(error([&] { net(from({9}, {1, 1}, i64)); }).substr(0, 17), "token: embedding:");
}

TEST(Transformer, Learns) {
  const Seed seed(13);
  Transformer net(5, 4, 8, 2, 2);
  const Tensor x = from({0, 1, 2, 3}, {1, 4}, i64), y = from({1, 2, 3, 4}, {4}, i64);
  double first = 0, last = 0;
  for (int step = 0; step < 60; ++step) {
    net.zero_grad();
    const Tensor loss = cross_entropy(reshape(net(x), {4, 5}), y);
    loss.backward();
    const NoGrad off;
    for (const Tensor& p : net.parameters()) add_(p, p.grad() * -0.05);
    (step ? last : first) = loss.item();
  }
  EXPECT_LT(last, 0.1 * first);
}

}  // namespace nn_layers_test
}  // namespace mixtape
