// Modules without parameters: each calls its function with its options.

#include <gtest/gtest.h>

#include <cmath>

#include "nn/nn.h"
#include "tests/support/errors.h"

namespace mixtape::nn {
namespace nn_modules_test {

const Tensor& sample() {
  static const Tensor x = [] {
    const Seed seed(3);
    return randn({2, 4, 6, 6});
  }();
  return x;
}
template <class M>
void expect_is(const M& module, const Tensor& want, const Tensor& x = sample()) {
  const Tensor y = module(x);
  EXPECT_EQ(y.shape(), want.shape());
  EXPECT_EQ(to_vector(y), to_vector(want));
}

TEST(Activations, AreTheirFunctions) {
  const Tensor& x = sample();
  expect_is(ReLU(), relu(x));
  expect_is(GELU(), gelu(x));
  expect_is(GELU("tanh"), gelu_tanh(x));
  expect_is(GELUTanh(), gelu_tanh(x));
  expect_is(SiLU(), silu(x));
  expect_is(SELU(), selu(x));
  expect_is(ReLU6(), relu6(x));
  expect_is(Mish(), mish(x));
  expect_is(Softplus(), softplus(x));
  expect_is(Softplus(1, 20), softplus(x));
  expect_is(Softplus(2, 0.5), softplus(x, 2, 0.5));
  expect_is(Softsign(), softsign(x));
  expect_is(LogSigmoid(), log_sigmoid(x));
  expect_is(Hardsigmoid(), hardsigmoid(x));
  expect_is(Hardswish(), hardswish(x));
  expect_is(LeakyReLU(), leaky_relu(x, 0.01));
  expect_is(LeakyReLU(0.3), leaky_relu(x, 0.3));
  expect_is(ELU(2), elu(x, 2));
  expect_is(GLU(1), glu(x, 1));
  expect_is(LogSoftmax(1), log_softmax(x, 1));
  expect_is(Softmax(), softmax(x, -1));
  expect_is(Softmax(1, f64), softmax(x.to(f64), 1));
  EXPECT_ERROR(GELU("Tanh"), "GELU: approximate must be \"none\" or \"tanh\", got \"Tanh\"");
  EXPECT_ERROR(gelu(x, "exact"), "approximate must be \"none\" or \"tanh\", got \"exact\"");
  EXPECT_ERROR(softplus(x, 0), "softplus: beta must be > 0, got 0");
}

TEST(Pools, AreTheirFunctions) {
  const Tensor& x = sample();
  const Tensor line = reshape(x, {2, 4, 36});
  expect_is(MaxPool2d(2), max_pool2d(x, {2, 2}));
  expect_is(MaxPool2d({3, 2}, {.stride = 2, .padding = 1, .ceil_mode = true}),
            max_pool2d(x, {3, 2}, {.stride = {2, 2}, .padding = {1, 1}, .ceil_mode = true}));
  expect_is(AvgPool2d(3, {.padding = 1, .count_include_pad = false}),
            avg_pool2d(x, {3, 3}, {.padding = {1, 1}, .count_include_pad = false}));
  expect_is(MaxPool1d(3, {.stride = 2}), max_pool1d(line, 3, {.stride = 2}), line);
  expect_is(AvgPool1d(4), avg_pool1d(line, 4), line);
  expect_is(MaxPool2d(3, 2, 1), max_pool2d(x, 3, {.stride = 2, .padding = 1}));
  expect_is(MaxPool2d({2, 3}, 1, {0, 1}), max_pool2d(x, {2, 3}, {.stride = 1, .padding = {0, 1}}));
  expect_is(MaxPool2d({3, 2}, {2, 1}), max_pool2d(x, {3, 2}, {.stride = {2, 1}}));
  expect_is(AvgPool2d(3, {2, 1}, {1, 0}), avg_pool2d(x, 3, {.stride = {2, 1}, .padding = {1, 0}}));
  expect_is(AvgPool2d(2, 2), avg_pool2d(x, 2));
  expect_is(AvgPool1d(4, 2, 1), avg_pool1d(line, 4, {.stride = 2, .padding = 1}), line);
  expect_is(AdaptiveAvgPool2d(1), adaptive_avg_pool2d(x, {1, 1}));
  expect_is(AdaptiveMaxPool2d({2, 3}), adaptive_max_pool2d(x, {2, 3}));
  expect_is(AdaptiveAvgPool1d(5), adaptive_avg_pool1d(line, 5), line);
  expect_is(AdaptiveMaxPool1d(5), adaptive_max_pool1d(line, 5), line);
  EXPECT_ERROR(MaxPool2d(0), "MaxPool2d: the window must be > 0, got 0 x 0");
  EXPECT_ERROR(AvgPool2d({2, 0}), "AvgPool2d: the window must be > 0, got 2 x 0");
  EXPECT_ERROR(MaxPool1d(0), "MaxPool1d: the window must be > 0, got 0");
  EXPECT_ERROR(AvgPool1d(-1), "AvgPool1d: the window must be > 0, got -1");
}

TEST(Upsample, TakesLines) {
  const Tensor x = reshape(sample(), {2, 4, 36});
  expect_is(Upsample({.scale_factor = 2}), interpolate(x, {.scale_factor = 2}), x);
  expect_is(Upsample({.size = 5}), interpolate(x, 5), x);
}

// Numbers stand in PyTorch's order, and two in braces are rows and columns of one option.
TEST(Layers, TakeNumbersInPlaceOfNames) {
  const auto expect_same = [](const auto& layer, const auto& named, const Tensor& x) {
    const nn::Evaluating now(
        const_cast<nn::ModuleBase&>(static_cast<const nn::ModuleBase&>(named)));
    const_cast<std::remove_cvref_t<decltype(named)>&>(named).load_state_dict(layer.state_dict());
    EXPECT_TRUE(equal(layer(x), named(x)));
  };
  const Tensor& x = sample();
  const int64_t c = x.size(1);
  const Tensor line = reshape(x, {2, c, -1});
  expect_same(Conv2d(c, 6, {3, 2}, {2, 1}), Conv2d(c, 6, {3, 2}, {.stride = {2, 1}}), x);
  expect_same(Conv2d(c, 4, 3, 1, {2, 1}, 2, 2, false),
              Conv2d(c, 4, 3, {.padding = {2, 1}, .dilation = 2, .groups = 2, .bias = false}), x);
  expect_same(
      Conv1d(c, 4, 3, 2, 1, 2, 2, false),
      Conv1d(c, 4, 3, {.stride = 2, .padding = 1, .dilation = 2, .groups = 2, .bias = false}),
      line);
  expect_same(ConvTranspose2d(c, 3, 3, 2, {1, 0}, {1, 0}),
              ConvTranspose2d(c, 3, 3, {.stride = 2, .padding = {1, 0}, .output_padding = {1, 0}}),
              x);
  expect_same(ConvTranspose1d(c, 3, 3, 2, 1, 1),
              ConvTranspose1d(c, 3, 3, {.stride = 2, .padding = 1, .output_padding = 1}), line);
  expect_same(
      ConvTranspose2d(c, 6, 3, 2, 0, 0, 2, false, {1, 2}),
      ConvTranspose2d(c, 6, 3, {.stride = 2, .dilation = {1, 2}, .groups = 2, .bias = false}), x);
  expect_same(ConvTranspose1d(c, 6, 3, 1, 0, 0, 2, false, 2),
              ConvTranspose1d(c, 6, 3, {.dilation = 2, .groups = 2, .bias = false}), line);
  const Tensor small = x * 1e-3;  // so that eps shows
  expect_same(LayerNorm(6, 1e-3), LayerNorm(6, {.eps = 1e-3}), small);
  expect_same(LayerNorm({6, 6}, 1e-3, true, false), LayerNorm({6, 6}, {.eps = 1e-3, .bias = false}),
              small);
  expect_same(RMSNorm(6, 1e-3, false), RMSNorm(6, {.eps = 1e-3, .affine = false}), small);
  expect_same(RMSNorm({6, 6}, 1e-3), RMSNorm({6, 6}, {.eps = 1e-3}), small);
  expect_same(GroupNorm(2, c, 1e-3, false), GroupNorm(2, c, {.eps = 1e-3, .affine = false}), small);
  const auto batch_norm = [&](const BatchNorm2d& norm) {
    norm(small);
    nn::Evaluating now(const_cast<BatchNorm2d&>(norm));
    return norm(small);
  };
  EXPECT_TRUE(equal(batch_norm(BatchNorm2d(c, 1e-3, 0.5)),
                    batch_norm(BatchNorm2d(c, {.eps = 1e-3, .momentum = 0.5}))));
  EXPECT_TRUE(equal(batch_norm(BatchNorm2d(c, 1e-3, std::nullopt, false)),
                    batch_norm(BatchNorm2d(c, {.eps = 1e-3, .momentum = std::nullopt}))));
  EXPECT_EQ(BatchNorm1d(c, 1e-3, 0.1, false, false).state_dict().size(), 0u);
  const Embedding padded(4, 3, 0), last(4, 3, -1);
  EXPECT_TRUE(equal(padded.weight[0], zeros({3})));
  EXPECT_TRUE(equal(last.weight[-1], zeros({3})));
  const Tensor sequence = ones({5, 2, c});
  const auto attend = [&](const MultiheadAttention& m) {
    return m(sequence, sequence, sequence, AttentionMasks{}, AttentionWeights::PerHead).weights;
  };
  EXPECT_EQ(MultiheadAttention(c, 2, 0.5, false).parameters().size(), 2u);
  EXPECT_EQ(attend(MultiheadAttention(c, 2, 0.5)).shape(), (Shape{2, 2, 5, 5}));
  expect_same(TransformerEncoderLayer(c, 2, 8, 0.0),
              TransformerEncoderLayer(c, 2, {.dim_feedforward = 8}), sequence);
  EXPECT_EQ(TransformerDecoderLayer(c, 2, 8).linear1.weight.size(0), 8);
  expect_same(Linear(3, 4, false), Linear(3, 4, {.bias = false}), ones({2, 3}));
  EXPECT_FALSE(Linear(3, 4, false).bias);
  EXPECT_EQ(LSTM(3, 4, 2).weights.size(), 2u);
  EXPECT_EQ(GRU(3, 4, 2, false, true, 0.1, true).weights.size(), 4u);
  EXPECT_FALSE(GRU(3, 4, 2, false).weights[0].bias_ih);
  EXPECT_EQ(LSTM(3, 4, 1, true, true)(zeros({2, 5, 3})).h_n.shape(), (Shape{1, 2, 4}));
  EXPECT_EQ(RNN(3, 4, 3, Nonlinearity::Relu).weights.size(), 3u);
}

TEST(Pools, TakeOneImageWithoutABatch) {
  const Tensor one = select(sample(), 0, 1), line = select(one, 1, 2);
  const auto expect_same = [](const auto& pool, const Tensor& x) {
    expect_is(pool, squeeze(pool(unsqueeze(x, 0)), 0), x);
  };
  expect_same(MaxPool2d(2), one);
  expect_same(AvgPool2d(2), one);
  expect_same(AdaptiveMaxPool2d(4), one);
  expect_same(AdaptiveAvgPool2d(4), one);
  expect_same(MaxPool1d(2), line);
  expect_same(AvgPool1d(2), line);
  expect_same(AdaptiveMaxPool1d(4), line);
  expect_same(AdaptiveAvgPool1d(4), line);
  EXPECT_ERROR(MaxPool2d(2)(line), "the input has shape [4, 6], not [n, c, h, w] or [c, h, w]");
  EXPECT_ERROR(MaxPool1d(2)(sample()), "the input has shape [2, 4, 6, 6], not [n, c, l] or [c, l]");
}

TEST(Shapes, AreTheirFunctions) {
  const Tensor& x = sample();
  expect_is(Flatten(), reshape(x, {2, 144}));
  expect_is(Unflatten(1, {2, 2}), reshape(x, {2, 2, 2, 6, 6}));
  expect_is(Unflatten(-1, {3, -1}), reshape(x, {2, 4, 6, 3, 2}));
  EXPECT_EQ(Unflatten(1, {3, -1})(zeros({0, 12})).shape(), (Shape{0, 3, 4}));
  EXPECT_ERROR(Unflatten(1, {5, 5})(zeros({0, 12})), "12 elements to [5, 5]");
  expect_is(ZeroPad2d(2), pad(x, {2, 2, 2, 2}));
  expect_is(ReflectionPad2d(1, 2, 0, 3), pad(x, {1, 2, 0, 3}, PadMode::Reflect));
  expect_is(ReplicationPad2d(2), pad(x, {2, 2, 2, 2}, PadMode::Replicate));
  expect_is(PixelShuffle(2), pixel_shuffle(x, 2));
  expect_is(PixelUnshuffle(3), pixel_unshuffle(x, 3));
  expect_is(Upsample({.scale_factor = 2}), interpolate(x, {12, 12}));
  const InterpolateOptions corners{.mode = Interpolation::Bilinear, .align_corners = true};
  expect_is(Upsample({.scale_factor = Size2{1, 3}, .mode = corners.mode, .align_corners = true}),
            interpolate(x, {6, 18}, corners));
  expect_is(Upsample({.size = Size2{9, 4}, .mode = corners.mode}),
            interpolate(x, {9, 4}, {.mode = corners.mode}));
  EXPECT_ERROR(Upsample({.scale_factor = Size2{0, 2}}),
               "Upsample: scale_factor must be > 0 and below 2^31, got 0 x 2");
  EXPECT_ERROR(Upsample({.size = Size2{2, -1}}),
               "Upsample: size must be > 0 and below 2^31, got 2 x -1");
  EXPECT_ERROR(Upsample({.scale_factor = Size2{int64_t{1} << 62}}),
               "Upsample: scale_factor must be > 0 and below 2^31, got 4611686018427387904 x ");
  EXPECT_ERROR(Upsample({}),
               "Upsample: size is not given and scale_factor is not given: one of them has to be");
  EXPECT_ERROR(Upsample({.size = 2, .scale_factor = 2}),
               "Upsample: size is given and scale_factor is given: one of them has to be");
}

TEST(Modules, StandInSequential) {
  Sequential net(Unflatten(1, {4, 9}), MaxPool1d(3), LeakyReLU(0.1), Flatten(), Softsign());
  EXPECT_TRUE(net.parameters().empty());
  const Seed seed(4);
  const Tensor x = randn({3, 36});
  expect_is(net, softsign(flatten(leaky_relu(max_pool1d(reshape(x, {3, 4, 9}), 3), 0.1), 1)), x);
}

TEST(Dropout2d, DropsWholeChannels) {
  Dropout2d drop(0.5);
  const Tensor x = ones({64, 8, 3, 3});
  const Seed seed(5);
  const Tensor y = drop(x), channels = mean(y, {2, 3});
  for (int64_t i = 0; i < y.numel(); ++i) ASSERT_EQ(y.at(i), channels.at(i / 9));
  EXPECT_NEAR(mean(y).item(), 1, 0.15);
  EXPECT_EQ(max(y).item(), 2);
  EXPECT_EQ(min(y).item(), 0);
  drop.eval();
  EXPECT_EQ(to_vector(drop(x)), to_vector(x));
  EXPECT_ERROR(Dropout2d(1.5), "Dropout2d: p must be from 0 to 1, got 1.5");
  drop.train();
  EXPECT_ERROR(drop(ones({3})), "the input has shape [3], not [n, c, ...]");
}

TEST(Losses, AreTheirFunctions) {
  const Seed seed(6);
  const Tensor x = randn({5, 3}), y = rand({5, 3}), target = randint(0, 3, {5});
  const Tensor weight = from({1, 2, 0.5}, {3}), p = sigmoid(x), logs = log_softmax(x);
  const auto expect_same = [](const Tensor& got, const Tensor& want) {
    EXPECT_EQ(to_vector(got), to_vector(want));
  };
  [[maybe_unused]] static constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                         None = Reduction::None;
  expect_same(CrossEntropyLoss({.label_smoothing = 0.1, .class_weights = weight})(x, target),
              cross_entropy(x, target, {.label_smoothing = 0.1, .class_weights = weight}));
  expect_same(NLLLoss({.class_weights = weight})(logs, target),
              nll_loss(logs, target, {.class_weights = weight}));
  expect_same(MSELoss(Sum)(x, y), mse_loss(x, y, Sum));
  expect_same(L1Loss()(x, y), l1_loss(x, y));
  expect_same(MSELoss({.reduction = Sum})(x, y), MSELoss(Sum)(x, y));
  expect_same(CrossEntropyLoss(Sum)(x, target), cross_entropy(x, target, Sum));
  expect_same(SmoothL1Loss({.reduction = None, .beta = 0.5})(x, y),
              smooth_l1_loss(x, y, {.reduction = None, .beta = 0.5}));
  expect_same(HuberLoss({.delta = 0.3})(x, y), huber_loss(x, y, {.delta = 0.3}));
  expect_same(BCELoss({.weight = weight})(p, y), binary_cross_entropy(p, y, {.weight = weight}));
  expect_same(BCEWithLogitsLoss({.pos_weight = weight})(x, y),
              binary_cross_entropy_with_logits(x, y, {.pos_weight = weight}));
  expect_same(KLDivLoss({.batch_mean = true})(logs, y), kl_div(logs, y, {.batch_mean = true}));
  expect_same(CosineSimilarity()(x, y), cosine_similarity(x, y));
  expect_same(TripletMarginLoss({.swap = true})(x, y, p),
              triplet_margin_loss(x, y, p, {.swap = true}));
  const Tensor alike = from({1, -1, 1, 1, -1}, {5});
  expect_same(CosineEmbeddingLoss({.reduction = Sum, .margin = 0.2})(x, y, alike),
              cosine_embedding_loss(x, y, alike, {.reduction = Sum, .margin = 0.2}));
  expect_same(MarginRankingLoss({.reduction = None, .margin = 0.3})(x, y, sign(x)),
              margin_ranking_loss(x, y, sign(x), {.reduction = None, .margin = 0.3}));
  expect_same(GaussianNLLLoss({.full = true})(x, y, p), gaussian_nll_loss(x, y, p, {.full = true}));
  expect_same(PoissonNLLLoss({.reduction = Sum})(x, y), poisson_nll_loss(x, y, {.reduction = Sum}));
  expect_same(HingeEmbeddingLoss({.margin = 0.5})(x, sign(x)),
              hinge_embedding_loss(x, sign(x), {.margin = 0.5}));
  expect_same(SoftMarginLoss(None)(x, sign(x)), soft_margin_loss(x, sign(x), None));
}

TEST(Losses, KeepTheirWeightsAsBuffers) {
  const BCEWithLogitsLoss loss({.weight = ones({3}), .pos_weight = from({1, 2, 3}, {3})});
  std::vector<std::string> names;
  for (const auto& [name, t] : loss.named_buffers()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "pos_weight"}));
  EXPECT_TRUE(CrossEntropyLoss().named_buffers().empty());

  CrossEntropyLoss original({.class_weights = ones({2})});
  CrossEntropyLoss copy = original.clone();
  const NoGrad off;
  fill_(copy.weight, 0);
  copy_(copy.weight, from({0, 1}, {2}));
  const Tensor x = from({1, 0, 0, 1}, {2, 2}), target = from({0, 1}, {2}, i64);
  EXPECT_EQ(copy(x, target).item(),
            cross_entropy(x, target, {.class_weights = copy.weight}).item());
  EXPECT_EQ(original(x, target).item(), cross_entropy(x, target).item());
  copy.to(f64);
  EXPECT_EQ(copy.weight.dtype(), f64);
}

TEST(Losses, KeepTheirWeightsInAHalfModel) {
  const Seed seed(7);
  const Tensor target = randint(0, 3, {50}), weight = from({0.3, 100.3, 2}, {3}),
               w = weight.to(f64);
  const auto to_low = [](auto loss, DType low) {
    loss.to(low);
    for (const auto& [name, t] : loss.named_buffers())
      EXPECT_EQ(to_vector(t), to_vector(from({0.3, 100.3, 2}, {3}))) << name;
    return loss;
  };
  for (const DType low : {f16, bf16}) {
    const Tensor x = randn({50, 3}).to(low), y = rand({50, 3}).to(low);
    const auto expect_near = [&](const Tensor& got, const Tensor& want) {
      EXPECT_EQ(got.dtype(), low);
      EXPECT_NEAR(got.item(), want.item(), (low == f16 ? 0x1p-10 : 0x1p-7) * std::abs(want.item()));
    };
    expect_near(to_low(CrossEntropyLoss({.class_weights = weight}), low)(x, target),
                cross_entropy(x.to(f64), target, {.class_weights = w}));
    expect_near(to_low(NLLLoss({.class_weights = weight}), low)(x, target),
                nll_loss(x.to(f64), target, {.class_weights = w}));
    expect_near(to_low(BCEWithLogitsLoss({.weight = weight}), low)(x, y),
                binary_cross_entropy_with_logits(x.to(f64), y.to(f64), {.weight = w}));
    const BceOptions both{.weight = weight, .pos_weight = weight};
    expect_near(
        to_low(BCEWithLogitsLoss(both), low)(x, y),
        binary_cross_entropy_with_logits(x.to(f64), y.to(f64), {.weight = w, .pos_weight = w}));
  }
}

}  // namespace nn_modules_test
}  // namespace mixtape::nn
