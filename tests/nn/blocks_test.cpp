// Convolutions, norms, attention and blocks: initial values, options, errors.
// blocks_reference_test.cpp compares their numbers with PyTorch's.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "nn/nn.h"
#include "tests/support/errors.h"
#include "tests/support/moments.h"
#include "tests/support/values.h"

namespace mixtape {
namespace nn_blocks_test {

using nn::AttentionMasks;
using nn::AttentionWeights;
using test::error;
using test::expect_normal;
using test::expect_uniform;
using test::moments;

TEST(Conv1d, IsPyTorchs) {
  const Seed seed(1);
  const nn::Conv1d layer(6, 200, 5, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2});
  EXPECT_EQ(layer.weight.shape(), (Shape{200, 3, 5}));
  expect_uniform(layer.weight, 1 / std::sqrt(15.0));
  expect_uniform(layer.bias, 1 / std::sqrt(15.0));
  const Tensor x = randn({2, 6, 20});
  EXPECT_TRUE(equal(layer(x), conv1d(x, layer.weight, layer.bias,
                                     {.stride = 2, .padding = 1, .dilation = 2, .groups = 2})));
  EXPECT_FALSE(nn::Conv1d(1, 1, 3, {.bias = false}).bias);
  EXPECT_EQ(error([] { nn::Conv1d(4, 6, 3, {.groups = 4}); }),
            "Conv1d: 4 and 6 channels do not divide into 4 groups");
  EXPECT_EQ(error([] { nn::Conv1d(4, -6, 3); }), "Conv1d: channels must be positive: in 4, out -6");
  EXPECT_EQ(error([] { nn::Conv1d(4, 6, 0); }), "Conv1d: kernel must be >= 1, got 0");
  EXPECT_EQ(error([] { nn::Conv1d(4, 6, 3, {.stride = 0}); }),
            "Conv1d: stride must be >= 1, got 0");
  EXPECT_EQ(error([] { nn::Conv1d(4, 6, 3, {.padding = -1}); }),
            "Conv1d: padding must be >= 0, got -1");
  EXPECT_EQ(error([] { nn::Conv1d(4, 6, 3, {.dilation = 0}); }),
            "Conv1d: dilation must be >= 1, got 0");
}

TEST(ConvTranspose1d, IsPyTorchs) {
  const Seed seed(5);
  const nn::ConvTranspose1d layer(40, 60, 5, {.stride = 2, .padding = 1, .groups = 2});
  EXPECT_EQ(layer.weight.shape(), (Shape{40, 30, 5}));
  expect_uniform(layer.weight, 1 / std::sqrt(30.0 * 5));  // the fan in of a weight [out, in, ...]
  EXPECT_LE(std::max(moments(layer.bias).high, -moments(layer.bias).low), 1 / std::sqrt(150.0));
  EXPECT_EQ(layer.bias.shape(), Shape{60});
  const Tensor x = randn({1, 40, 4});
  EXPECT_TRUE(equal(layer(x), conv_transpose1d(x, layer.weight, layer.bias,
                                               {.stride = 2, .padding = 1, .groups = 2})));
  EXPECT_FALSE(nn::ConvTranspose1d(1, 1, 3, {.bias = false}).bias);
  EXPECT_EQ(error([] { nn::ConvTranspose1d(4, 6, 3, {.groups = 4}); }),
            "ConvTranspose1d: 4 and 6 channels do not divide into 4 groups");
  EXPECT_EQ(error([] { nn::ConvTranspose1d(4, 6, 3, {.output_padding = -1}); }),
            "ConvTranspose1d: output_padding must be >= 0, got -1");
  EXPECT_EQ(error([] { nn::ConvTranspose1d(4, 6, 0); }),
            "ConvTranspose1d: kernel must be >= 1, got 0");
}

TEST(ConvTranspose2d, IsPyTorchs) {
  const Seed seed(2);
  const nn::ConvTranspose2d layer(40, 60, {3, 5}, {.stride = 2, .groups = 2});
  EXPECT_EQ(layer.weight.shape(), (Shape{40, 30, 3, 5}));
  const double bound = 1 / std::sqrt(30.0 * 15);  // the fan in of a weight [out, in, ...]
  expect_uniform(layer.weight, bound);
  EXPECT_LE(std::max(moments(layer.bias).high, -moments(layer.bias).low), bound);
  EXPECT_EQ(layer.bias.shape(), Shape{60});
  const Tensor x = randn({1, 40, 4, 3});
  EXPECT_TRUE(equal(
      layer(x), conv_transpose2d(x, layer.weight, layer.bias, {.stride = {2, 2}, .groups = 2})));
  EXPECT_EQ(layer(x).shape(), (Shape{1, 60, 9, 9}));
  EXPECT_EQ(error([] { nn::ConvTranspose2d(4, 6, 3, {.groups = 4}); }),
            "ConvTranspose2d: 4 and 6 channels do not divide into 4 groups");
  EXPECT_EQ(error([] { nn::ConvTranspose2d(4, 6, 3, {.output_padding = {0, -1}}); }),
            "ConvTranspose2d: output_padding must be >= 0, got 0 x -1");
  EXPECT_EQ(error([] { nn::ConvTranspose2d(4, 6, {3, 0}); }),
            "ConvTranspose2d: kernel must be >= 1, got 3 x 0");
}

TEST(Norms, AreTheOps) {
  const Seed seed(3);
  const Tensor x = randn({3, 4, 2, 5});
  const nn::RMSNorm rms(5), rms2({2, 5}, {.eps = 1e-3}), bare(5, {.affine = false});
  nn::init::normal_(rms2.weight);
  EXPECT_TRUE(equal(rms(x), rms_norm(x, {5}, ones({5}), std::ldexp(1, -23))));
  EXPECT_TRUE(equal(rms2(x), rms_norm(x, {2, 5}, rms2.weight, 1e-3)));
  EXPECT_TRUE(bare.parameters().empty());
  const nn::GroupNorm group(2, 4), plain(4, 4, {.eps = 1e-3, .affine = false});
  nn::init::normal_(group.bias);
  EXPECT_TRUE(equal(group(x), group_norm(x, 2, ones({4}), group.bias)));
  EXPECT_TRUE(equal(plain(x), group_norm(x, 4, {}, {}, 1e-3)));
  const nn::InstanceNorm2d instance(4), affine(4, {.affine = true});
  EXPECT_TRUE(instance.state_dict().empty());
  EXPECT_EQ(affine.state_dict().size(), 2u);
  EXPECT_TRUE(equal(instance(x), instance_norm(x)));
  nn::Sequential all(nn::GroupNorm(2, 4), nn::InstanceNorm2d(4, {.affine = true}), nn::RMSNorm(5));
  all.to(bf16);
  for (const Tensor& t : all.parameters()) EXPECT_EQ(t.dtype(), f32);
  EXPECT_EQ(error([] { nn::RMSNorm(0); }), "RMSNorm: the shape must have elements, got [0]");
  EXPECT_EQ(error([] { nn::GroupNorm(3, 4); }),
            "GroupNorm: 4 channels do not divide into 3 groups");
  EXPECT_EQ(error([] { nn::InstanceNorm2d(0); }), "InstanceNorm2d: channels must be > 0, got 0");
  EXPECT_EQ(error([&] { instance(randn({2, 3, 4, 4})); }),
            "InstanceNorm2d: the input has shape [2, 3, 4, 4], not [n, c, h, w] with "
            "4 channels");
}

TEST(MultiheadAttention, StartsAsPyTorchs) {
  const Seed seed(4);
  const nn::MultiheadAttention layer(64, 4);
  expect_uniform(layer.in_proj_weight, std::sqrt(6.0 / (4 * 64)));
  expect_uniform(layer.out_proj.weight, 1 / std::sqrt(64.0));
  EXPECT_EQ(moments(layer.in_proj_bias).high, 0);
  EXPECT_EQ(moments(layer.out_proj.bias).low, 0);
  EXPECT_EQ(nn::MultiheadAttention(64, 4, {.bias = false}).state_dict().size(), 2u);
  EXPECT_EQ(error([] { nn::MultiheadAttention(6, 4); }),
            "MultiheadAttention: a size of 6 does not divide into 4 heads");
  EXPECT_EQ(error([] { nn::MultiheadAttention(8, 4, {.dropout = -1}); }),
            "MultiheadAttention: dropout must be from 0 to 1, got -1");
}

TEST(MultiheadAttention, TakesKeysAndValuesOfOtherSizes) {
  const Seed seed(4);
  const nn::MultiheadAttention layer(64, 4, {.kdim = 32, .vdim = 128});
  std::vector<std::string> names;
  for (const auto& [name, t] : layer.state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"q_proj_weight", "k_proj_weight", "v_proj_weight",
                                             "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
  expect_uniform(layer.q_proj_weight, std::sqrt(6.0 / (2 * 64)));
  expect_uniform(layer.k_proj_weight, std::sqrt(6.0 / (64 + 32)));
  expect_uniform(layer.v_proj_weight, std::sqrt(6.0 / (64 + 128)));
  // Equal sizes share one weight, given or by default.
  EXPECT_TRUE(nn::MultiheadAttention(4, 2, {.kdim = 4, .vdim = 4}).in_proj_weight);
  EXPECT_TRUE(nn::MultiheadAttention(4, 2, {.bias = false, .vdim = 2}).v_proj_weight);
  const Tensor q = zeros({2, 3, 64}), k = zeros({5, 3, 32}), v = zeros({5, 3, 128});
  EXPECT_EQ(layer(q, k, v).output.shape(), (Shape{2, 3, 64}));
  EXPECT_EQ(error([&] { layer(q, q, v); }),
            "MultiheadAttention: the key has shape [2, 3, 64], not [t, b, 32] or [t, 32]");
  EXPECT_EQ(error([&] { layer(q, k, zeros({4, 3, 128})); }),
            "MultiheadAttention: keys and values must differ in features alone, got shapes [5, 3, "
            "32] and [4, 3, 128]");
  EXPECT_EQ(error([] { nn::MultiheadAttention(4, 2, {.kdim = 0}); }),
            "MultiheadAttention: sizes must be positive: kdim 0, vdim 4");
}

TEST(MultiheadAttention, SameTensorsMakeOneProduct) {
  const Seed seed(5);
  nn::MultiheadAttention layer(4, 2);
  layer.to(f64);
  nn::init::normal_(layer.in_proj_bias);
  const Tensor x = randn({3, 2, 4}, f64), y = clone(x), z = clone(x);
  const Tensor one = layer(x, x, x).output;
  expect_near(layer(x, y, y).output, one, 1e-12);
  expect_near(layer(x, y, z).output, one, 1e-12);
  std::vector<Tensor> leaves = layer.parameters();
  for (const Tensor& t : {x, y, z}) leaves.push_back(t.set_requires_grad());
  EXPECT_EQ(gradcheck(
                [&](const std::vector<Tensor>& in) {
                  const size_t n = in.size();
                  return layer(in[n - 3], in[n - 2], in[n - 1]).output;
                },
                leaves),
            "");
}

// Products of queries and keys that overflow f16; divided by the root of their size some fit again.
TEST(MultiheadAttention, WeightsOfLargeScoresAreFinite) {
  nn::MultiheadAttention layer(64, 1);
  layer.to(f16);
  const NoGrad off;
  fill_(layer.in_proj_weight, 0);
  const Tensor x = zeros({2, 1, 64}, f16);
  for (const double size : {40, 300}) {
    fill_(layer.in_proj_bias, size);
    EXPECT_EQ(to_vector(layer(x, x, x, AttentionMasks{}, AttentionWeights::PerHead).weights),
              std::vector<double>(4, 0.5));
  }
}

// A half layer takes an f32 mask, with or without returning its weights.
TEST(MultiheadAttention, WeightsTakeAWideMask) {
  for (const DType low : {f16, bf16}) {
    nn::MultiheadAttention layer(4, 2);
    layer.to(low);
    const Tensor x = ones({2, 1, 4}, low), mask = from({0, -INFINITY, 0, 0}, {2, 2});
    const nn::AttentionOutput y =
        layer(x, x, x, AttentionMasks{.attn_mask = mask}, AttentionWeights::Averaged);
    EXPECT_EQ(y.weights.dtype(), low);
    EXPECT_EQ(to_vector(y.weights), (std::vector<double>{1, 0, 0.5, 0.5}));
  }
}

TEST(MultiheadAttention, MasksMeanTheSame) {
  const Seed seed(6);
  nn::MultiheadAttention layer(4, 2);
  layer.to(f64);
  const Tensor x = randn({3, 2, 4}, f64);
  const Tensor later = from({0, 1, 1, 0, 0, 1, 0, 0, 0}, {3, 3}, boolean);
  const Tensor minus = masked_fill(zeros({3, 3}, f64), later, -INFINITY);
  const Tensor padding = from({0, 0, 0, 0, 0, 1}, {2, 3}, boolean);
  const auto run = [&](const AttentionMasks& masks, AttentionWeights w = AttentionWeights::None) {
    return layer(x, x, x, masks, w);
  };
  const Tensor causal = run({.causal = true}).output;
  expect_near(run({.attn_mask = later}).output, causal, 1e-12);
  expect_near(run({.attn_mask = minus}).output, causal, 1e-12);
  const Tensor both = run({.attn_mask = later, .key_padding_mask = padding}).output;
  expect_near(run({.key_padding_mask = padding, .causal = true}).output, both, 1e-12);
  expect_near(run({.attn_mask = minus, .key_padding_mask = padding}).output, both, 1e-12);
  expect_near(select(both, 1, 0), select(causal, 1, 0), 1e-12);
  const Tensor every = expand(unsqueeze(later, 0), {4, 3, 3});
  expect_near(run({.attn_mask = every, .causal = true}).output, causal, 1e-12);

  const nn::AttentionOutput out = run({.causal = true}, AttentionWeights::PerHead);
  EXPECT_EQ(out.weights.shape(), (Shape{2, 2, 3, 3}));
  EXPECT_EQ(out.weights.at(1), 0);
  expect_near(sum(out.weights, {-1}), ones({2, 2, 3}, f64), 1e-12);
  expect_near(run({.causal = true}, AttentionWeights::Averaged).weights, mean(out.weights, {1}),
              1e-12);
  EXPECT_FALSE(run({}).weights);
  // A query that may attend to no key.
  const nn::AttentionOutput none =
      run({.key_padding_mask = full({2, 3}, 1, boolean)}, AttentionWeights::Averaged);
  EXPECT_EQ(sum(abs(none.weights)).item(), 0);
  expect_near(select(none.output, 0, 1), expand(layer.out_proj.bias, {2, 4}), 1e-12);

  // No keys.
  const Tensor no = zeros({0, 2, 4}, f64);
  EXPECT_EQ(layer(x, no, no, AttentionMasks{}, AttentionWeights::PerHead).weights.shape(),
            (Shape{2, 2, 3, 0}));

  const Tensor one = select(x, 1, 1);
  expect_near(
      layer(one, one, one, AttentionMasks{.key_padding_mask = select(padding, 0, 1)}).output,
      select(run({.key_padding_mask = padding}).output, 1, 1), 1e-12);
}

TEST(MultiheadAttention, DropsWeightsInTraining) {
  nn::MultiheadAttention layer(4, 2, {.dropout = 0.5});
  const Tensor x = randn({8, 2, 4});
  EXPECT_FALSE(equal(layer(x, x, x).output, layer(x, x, x).output));
  layer.eval();
  EXPECT_TRUE(equal(layer(x, x, x).output, layer(x, x, x).output));
}

TEST(MultiheadAttention, ErrorsNameBothShapes) {
  const nn::MultiheadAttention layer(4, 2);
  const Tensor x = zeros({3, 2, 4});
  EXPECT_EQ(error([&] { layer(zeros({3, 2, 5}), x, x); }),
            "MultiheadAttention: the query has shape [3, 2, 5], not [t, b, 4] or [t, 4]");
  EXPECT_EQ(error([&] { layer(x, zeros({3, 4}), zeros({3, 4})); }),
            "MultiheadAttention: the query has shape [3, 2, 4], the key [3, 4]: a batch, or none, "
            "of both");
  EXPECT_EQ(error([&] { layer(x, x, zeros({2, 2, 4})); }),
            "MultiheadAttention: keys and values must differ in features alone, got shapes [3, 2, "
            "4] and [2, 2, 4]");
  const Tensor other = zeros({3, 1, 4});
  EXPECT_EQ(error([&] { layer(x, other, other); }),
            "MultiheadAttention: queries and keys must have one batch size, got shapes [3, 2, 4] "
            "and [3, 1, 4]");
  EXPECT_EQ(error([&] { layer(x, x, x, AttentionMasks{.attn_mask = zeros({2, 3, 3})}); }),
            "MultiheadAttention: attn_mask has shape [2, 3, 3], not [3, 3] or [4, 3, 3]");
  EXPECT_EQ(error([&] { layer(x, x, x, AttentionMasks{.key_padding_mask = zeros({3, 2})}); }),
            "MultiheadAttention: key_padding_mask has shape [3, 2], not [2, 3]");
  EXPECT_EQ(error([&] { layer(x, x, x, AttentionMasks{.key_padding_mask = zeros({2, 3}, u8)}); }),
            "MultiheadAttention: a mask is u8, not bool or a float");
}

TEST(TransformerEncoder, CopiesItsLayer) {
  const Seed seed(7);
  const nn::TransformerEncoderLayer layer(4, 2, {.dim_feedforward = 8, .dropout = 0.5});
  nn::TransformerEncoder net(layer, 2, nn::LayerNorm(4));
  EXPECT_EQ(net.state_dict()[0].first, "layers.0.self_attn.in_proj_weight");
  EXPECT_EQ(net.state_dict()[25].first, "norm.bias");
  EXPECT_TRUE(equal(net.layers[1].linear1.weight, layer.linear1.weight));
  EXPECT_NE(net.layers[1].linear1.weight.storage(), net.layers[0].linear1.weight.storage());
  const Tensor x = randn({3, 2, 4});
  EXPECT_FALSE(equal(net(x), net(x)));
  net.eval();
  EXPECT_TRUE(equal(net(x), net(x)));
  const Tensor causal = net(x, AttentionMasks{.causal = true});
  EXPECT_TRUE(equal(select(causal, 0, 0), select(net(narrow(x, 0, 0, 1)), 0, 0)));
  EXPECT_EQ(error([&] { nn::TransformerEncoder(layer, 0); }),
            "TransformerEncoder: num_layers must be > 0, got 0");
  EXPECT_EQ(error([] { nn::TransformerEncoderLayer(6, 4); }),
            "MultiheadAttention: a size of 6 does not divide into 4 heads");
}

TEST(TransformerDecoder, CopiesItsLayer) {
  const Seed seed(7);
  const nn::TransformerDecoderLayer layer(4, 2, {.dim_feedforward = 8, .dropout = 0.5});
  nn::TransformerDecoder net(layer, 2);
  EXPECT_EQ(net.state_dict()[4].first, "layers.0.multihead_attn.in_proj_weight");
  EXPECT_NE(net.layers[1].linear1.weight.storage(), net.layers[0].linear1.weight.storage());
  const Tensor x = randn({3, 2, 4}), memory = randn({5, 2, 4});
  EXPECT_FALSE(equal(net(x, memory), net(x, memory)));
  net.eval();
  const Tensor causal = net(x, memory, AttentionMasks{.causal = true});
  EXPECT_TRUE(equal(select(causal, 0, 0), select(net(narrow(x, 0, 0, 1), memory), 0, 0)));
  EXPECT_EQ(error([&] { net(x, randn({5, 3, 4})); }),
            "layers.0.multihead_attn: queries and keys must have one batch size, got shapes [3, 2, "
            "4] and [5, 3, 4]");
  EXPECT_EQ(error([&] { nn::TransformerDecoder(layer, 0); }),
            "TransformerDecoder: num_layers must be > 0, got 0");
}

}  // namespace nn_blocks_test
}  // namespace mixtape
