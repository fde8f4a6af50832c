// The modules of nn/more.h against PyTorch's: names, numbers and gradients; and their messages.

#include "nn/more.h"

#include "amp/amp.h"
#include "tests/support/errors.h"
#include "tests/support/modules_reference.h"

namespace mixtape {
namespace more_test {

using nn::Tensors;
using test::error;
using test::model;
using X = const Tensors&;

// A function of tensors as a module without parameters.
template <class F>
test::Model function(F f) {
  return model(nn::Identity(), [f](const nn::Identity&, X x) { return Tensors{f(x)}; });
}
Tensor labels() { return from({2, 0, -1, -1, 1, 2, 1, 2, 0}, {3, 3}, i64); }
test::Model ctc(CtcOptions o) {
  return function([o](X x) {
    const int64_t shift = o.blank == 3 ? 3 : 0;
    const Tensor targets =
        remainder(from({1, 2, 2, 3, 1, 0, 1, 1, 1}, {3, 3}, i64) + double(shift), 4);
    return ctc_loss(log_softmax(x.at(0)), targets, from({6, 4, 3}, {3}, i64),
                    from({3, 2, 3}, {3}, i64), o);
  });
}

const test::Models& models() {
  using namespace nn;
  static const test::Models all = {
      {"Hardtanh", [] { return model(Hardtanh(-0.505, 0.305)); }},
      {"CELU", [] { return model(CELU()); }},
      {"CELU alpha", [] { return model(CELU(0.25)); }},
      {"Softshrink", [] { return model(Softshrink(0.305)); }},
      {"Hardshrink", [] { return model(Hardshrink(0.305)); }},
      {"Tanhshrink", [] { return model(Tanhshrink()); }},
      {"InstanceNorm1d", [] { return model(InstanceNorm1d(2, {.affine = true})); }},
      {"InstanceNorm3d", [] { return model(InstanceNorm3d(2)); }},
      {"BatchNorm3d", [] { return model(BatchNorm3d(2, {.eps = 1e-2, .momentum = 0.3})); }},
      {"LocalResponseNorm", [] { return model(LocalResponseNorm(2, 0.3, 0.6, 1.5)); }},
      {"LocalResponseNorm images", [] { return model(LocalResponseNorm(3)); }},
      {"ZeroPad1d", [] { return model(ZeroPad1d(1, 2)); }},
      {"ReflectionPad1d", [] { return model(ReflectionPad1d(2)); }},
      {"ReplicationPad1d", [] { return model(ReplicationPad1d(0, 2)); }},
      {"CircularPad1d", [] { return model(CircularPad1d(2, 1)); }},
      {"ConstantPad", [] { return model(ConstantPad({1, 2}, 3.5)); }},
      {"CircularPad2d", [] { return model(CircularPad2d(1, 2, 0, 1)); }},
      {"Unfold",
       [] {
         return model(Unfold({2, 3}, {.dilation = {1, 2}, .padding = {1, 2}, .stride = {2, 1}}));
       }},
      {"Fold",
       [] {
         return model(
             Fold({4, 5}, {2, 3}, {.dilation = {2, 1}, .padding = {1, 0}, .stride = {2, 1}}));
       }},
      {"Conv3d",
       [] {
         return model(Conv3d(
             4, 2, {2, 3, 2},
             {.stride = {2, 1, 2}, .padding = {1, 0, 1}, .dilation = {2, 1, 1}, .groups = 2}));
       }},
      {"Conv3d plain", [] { return model(Conv3d(1, 2, 2, {.bias = false})); }},
      {"ConvTranspose3d",
       [] {
         return model(ConvTranspose3d(4, 2, {3, 2, 2},
                                      {.stride = {2, 1, 2},
                                       .padding = {1, 0, 1},
                                       .output_padding = {1, 0, 0},
                                       .dilation = {2, 1, 1},
                                       .groups = 2}));
       }},
      {"ConvTranspose3d plain", [] { return model(ConvTranspose3d(1, 2, 2, {.bias = false})); }},
      {"MaxPool3d",
       [] {
         return model(
             MaxPool3d({2, 3, 2}, {.stride = {1, 2, 2}, .padding = {1, 1, 0}, .ceil_mode = true}));
       }},
      {"AvgPool3d",
       [] { return model(AvgPool3d({2, 3, 2}, {.stride = {2, 2, 1}, .padding = {1, 1, 0}})); }},
      {"AvgPool3d without pad",
       [] {
         return model(AvgPool3d(2, {.padding = 1, .ceil_mode = true, .count_include_pad = false}));
       }},
      {"AdaptiveAvgPool3d", [] { return model(AdaptiveAvgPool3d({2, 1, 3})); }},
      {"Transformer",
       [] {
         const TransformerOptions o{.encoder_layers = 1,
                                    .decoder_layers = 2,
                                    .layer = {.dim_feedforward = 3, .dropout = 0}};
         return model(Transformer(4, 2, o), [](const Transformer& m, X x) {
           return Tensors{m(x.at(0), x.at(1), TransformerMasks{.tgt = {.causal = true}})};
         });
       }},
      {"Transformer first",
       [] {
         const TransformerOptions o{
             .encoder_layers = 2,
             .decoder_layers = 1,
             .layer = {
                 .dim_feedforward = 3, .dropout = 0, .batch_first = true, .norm_first = true}};
         return model(Transformer(4, 2, o),
                      [](const Transformer& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"MultiMarginLoss",
       [] {
         return function([](X x) { return MultiMarginLoss()(x.at(0), from({2, 0, 1}, {3}, i64)); });
       }},
      {"MultiMarginLoss squares",
       [] {
         return function([](X x) {
           return multi_margin_loss(x.at(0), from({2, 0, 1}, {3}, i64),
                                    {.reduction = Reduction::None,
                                     .margin = 0.7,
                                     .p = 2,
                                     .class_weights = from({0.5, 2, 1.25}, {3}, f64)});
         });
       }},
      {"MultiLabelMarginLoss",
       [] { return function([](X x) { return MultiLabelMarginLoss()(x.at(0), labels()); }); }},
      {"MultiLabelMarginLoss none",
       [] {
         return function(
             [](X x) { return multilabel_margin_loss(x.at(0), labels(), Reduction::None); });
       }},
      {"MultiLabelSoftMarginLoss",
       [] {
         return function(
             [](X x) { return MultiLabelSoftMarginLoss()(x.at(0), cast(gt(labels(), 0), f64)); });
       }},
      {"MultiLabelSoftMarginLoss weighted",
       [] {
         return function([](X x) {
           return multilabel_soft_margin_loss(
               x.at(0), gt(labels(), 0),
               {.reduction = Reduction::None, .class_weights = from({0.5, 2, 1.25}, {3}, f64)});
         });
       }},
      {"TripletMarginWithDistance",
       [] {
         return function([](X x) {
           return triplet_margin_with_distance_loss(
               x.at(0), x.at(1), x.at(2),
               [](const Tensor& u, const Tensor& v) { return sum(abs(u - v), {-1}); },
               {.reduction = Reduction::Sum, .margin = 1.5, .swap = true});
         });
       }},
      {"AdaptiveLogSoftmaxWithLoss",
       [] {
         return model(
             AdaptiveLogSoftmaxWithLoss(8, 10, {3, 6}, {.div_value = 2, .head_bias = true}),
             [](const AdaptiveLogSoftmaxWithLoss& m, X x) {
               const auto y = m(x.at(0), from({0, 9, 3, 4, 1, 7}, {6}, i64));
               return Tensors{y.output, y.loss};
             });
       }},
      {"AdaptiveLogSoftmaxWithLoss head",
       [] {
         return model(AdaptiveLogSoftmaxWithLoss(4, 6, {5}),
                      [](const AdaptiveLogSoftmaxWithLoss& m, X x) {
                        const auto y = m(x.at(0), zeros({2}, i64));
                        return Tensors{y.output, y.loss, m.log_prob(x.at(0))};
                      });
       }},
      {"CTCLoss", [] { return ctc({.zero_infinity = true}); }},
      {"CTCLoss none", [] { return ctc({.reduction = Reduction::None, .zero_infinity = true}); }},
      {"CTCLoss blank",
       [] { return ctc({.reduction = Reduction::Sum, .blank = 3, .zero_infinity = true}); }},
      {"AdaptiveMaxPool3d", [] { return model(AdaptiveMaxPool3d({2, 1, 3})); }},
      {"Softmin", [] { return model(Softmin(1)); }},
      {"Softmax2d", [] { return model(Softmax2d()); }},
      {"Softmax2d alone", [] { return model(Softmax2d()); }},
      {"Threshold", [] { return model(Threshold(0.105, 7)); }},
      {"RReLU", [] { return model(RReLU(0.25, 0.25)); }},
      {"GELU tanh", [] { return model(GELU("tanh")); }},
      {"Softplus", [] { return model(Softplus(2, 1.5)); }},
      {"Bilinear",
       [] {
         return model(Bilinear(2, 3, 4),
                      [](const Bilinear& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"Bilinear without bias",
       [] {
         return model(Bilinear(2, 3, 4, false),
                      [](const Bilinear& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"PairwiseDistance",
       [] {
         return model(PairwiseDistance(3, 1e-3, true),
                      [](const PairwiseDistance& m, X x) { return Tensors{m(x.at(0), x.at(1))}; });
       }},
      {"ChannelShuffle", [] { return model(ChannelShuffle(2)); }},
      {"Unfold by position", [] { return model(Unfold({2, 3}, {1, 2}, {1, 2}, {2, 1})); }},
      {"Fold by position", [] { return model(Fold({4, 5}, {2, 3}, {2, 1}, {1, 0}, {2, 1})); }},
      {"RReLU evaluated",
       [] {
         const auto made = model(RReLU(0.125, 0.5));
         made.module->eval();
         return made;
       }},
  };
  return all;
}

struct MoreReference : testing::TestWithParam<std::string> {};
TEST_P(MoreReference, IsPyTorchs) {
  test::compare(models().at(GetParam())(), test::reference("more").at(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Modules, MoreReference, testing::ValuesIn(test::names(models())),
                         test::test_name);
TEST(MoreReference, HasEveryCase) { test::expect_complete(models(), "more"); }

TEST(AdaptiveLogSoftmax, PredictsTheLikeliestOfAllClasses) {
  const Seed seed(1);
  const nn::AdaptiveLogSoftmaxWithLoss net(16, 40, {5, 20});
  const Tensor x = randn({100, 16}) * 4.0, all = net.log_prob(x), likeliest = net.predict(x);
  EXPECT_TRUE(allclose(sum(exp(all), {1}), ones({100})));
  EXPECT_TRUE(equal(likeliest, argmax(all, 1)));
  EXPECT_TRUE(any(ge(likeliest, 20)).item<bool>());  // and some are common
  EXPECT_TRUE(any(lt(likeliest, 5)).item<bool>());
  const Tensor target = randint(0, 40, {100});
  EXPECT_TRUE(allclose(net(x, target).output, flatten(gather(all, 1, unsqueeze(target, 1)))));
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(net(x, target).loss.dtype(), f32);
  EXPECT_TRUE(allclose(net(x, target).output, flatten(gather(all, 1, unsqueeze(target, 1))), 0.1));
}
TEST(AdaptiveLogSoftmax, SaysWhatItNeeds) {
  using Net = nn::AdaptiveLogSoftmaxWithLoss;
  EXPECT_ERROR(Net(8, 10, {3, 3}),
               "cutoffs must increase from 1 to below 10 classes, got 3 after 3");
  EXPECT_ERROR(Net(8, 10, {10}),
               "cutoffs must increase from 1 to below 10 classes, got 10 after 10");
  EXPECT_ERROR(Net(8, 10, {0}), "cutoffs must increase from 1 to below 10 classes, got 0 after 0");
  EXPECT_ERROR(Net(8, 10, {}), "there must be one cutoff at least, got none");
  EXPECT_ERROR(Net(8, 10, {3}, {.div_value = 0}), "div_value must be >= 1, got 0");
  EXPECT_ERROR(Net(8, 10, {2, 5}), "cluster 1 of 8 features would have none (div_value 4)");
  const Net net(8, 10, {3});
  EXPECT_ERROR(net(randn({2, 8}), from({1}, {1}, i64)),
               "needs inputs [n, features] and targets [n], got [2, 8] and [1]");
  EXPECT_ERROR(net(randn({2, 8}), from({1, 10}, {2}, i64)),
               "targets must be from 0 to 9, got 1 to 10");
  EXPECT_ERROR(net(randn({2, 8}), from({1, -100}, {2}, i64)),
               "targets must be from 0 to 9, got -100 to 1");
}

TEST(Tanhshrink, KeepsDigitsNearZero) {
  const double x = 0.03125, y = x - std::tanh(x), slope = std::tanh(x) * std::tanh(x);
  for (const DType dtype : {f32, f16, bf16}) {
    const Tensor in = full({}, x, dtype).set_requires_grad(), out = nn::Tanhshrink()(in);
    EXPECT_EQ(out.item(), full({}, y, dtype).item()) << dtype;
    EXPECT_EQ(grad({out}, {in})[0].item(), full({}, slope, dtype).item()) << dtype;
  }
  EXPECT_EQ(nn::Tanhshrink()(ones({1}, i64)).dtype(), f32);
}

TEST(RReLU, DrawsASlopeForEachElement) {
  const Seed seed(1);
  const Tensor x = full({10000}, -2), slopes = nn::RReLU(0.25, 0.75)(x) / -2.0;
  EXPECT_TRUE(all(logical_and(ge(slopes, 0.25), lt(slopes, 0.75))).item<bool>());
  EXPECT_NEAR(mean(slopes).item(), 0.5, 0.01);
  EXPECT_NEAR(stddev(slopes).item(), 0.5 / std::sqrt(12), 0.01);
  Tensor w = from({-3, 0, 2}, {3}).set_requires_grad();
  const Tensor y = rrelu(w, 0.25, 0.75);
  sum(y).backward();
  EXPECT_FLOAT_EQ(float(w.grad().at(0)), float(y.at(0) / -3));  // the slope that was drawn
  EXPECT_EQ(w.grad().at(2), 1);
  EXPECT_EQ(rrelu(ones({2}, bf16)).dtype(), bf16);
}

TEST(ChannelDropout, DropsWholeChannelsWithAndWithoutABatch) {
  const Seed seed(1);
  const nn::Dropout1d lines(0.5);
  const nn::Dropout3d volumes(0.5);
  const auto is_whole = [](const Tensor& y, int64_t channels) {
    const Tensor each = reshape(y, {channels, -1});
    EXPECT_TRUE(equal(min(each, {1}), max(each, {1})));
    const double kept = mean(gt(each, 0).to(f32)).item();
    EXPECT_NEAR(kept, 0.5, 0.1);
    EXPECT_EQ(max(y).item(), 2);
  };
  is_whole(lines(ones({20, 50, 3})), 1000);
  is_whole(lines(ones({1000, 3})), 1000);
  is_whole(volumes(ones({20, 50, 2, 1, 2})), 1000);
  is_whole(volumes(ones({1000, 2, 1, 2})), 1000);
  nn::Dropout1d evaluated(0.5);
  evaluated.eval();
  EXPECT_TRUE(equal(evaluated(ones({4, 3})), ones({4, 3})));
  EXPECT_ERROR(nn::Dropout3d(1.5), "Dropout3d: p must be from 0 to 1, got 1.5");
  EXPECT_ERROR(lines(ones({3})), "Dropout1d: the input has shape [3], not [n, c, ...]");
}

TEST(AlphaDropout, KeepsMeanAndVariance) {
  const Seed seed(1);
  const Tensor x = randn({200000}).set_requires_grad();
  for (const double p : {0.1, 0.5}) {
    const Tensor y = nn::AlphaDropout(p)(x);
    EXPECT_NEAR(mean(y).item(), 0, 0.01) << p;
    EXPECT_NEAR(stddev(y).item(), 1, 0.01) << p;
    const Tensor dx = grad({sum(y)}, {x})[0];
    EXPECT_NEAR(mean(eq(dx, 0).to(f32)).item(), p, 0.01);
  }
  EXPECT_TRUE(equal(nn::AlphaDropout(0)(x), x));
  EXPECT_TRUE(equal(nn::AlphaDropout(1)(x), zeros({200000})));
  EXPECT_EQ(nn::AlphaDropout()(x.detach().to(f16)).dtype(), f16);
  nn::AlphaDropout evaluated;
  evaluated.eval();
  EXPECT_TRUE(equal(evaluated(x), x));
}

TEST(Transformer, TakesNumbersInPlaceOfNames) {
  const nn::Transformer net(4, 2, 1, 2, 8, 0.5);
  EXPECT_EQ(net.encoder.layers.size(), 1u);
  EXPECT_EQ(net.decoder.layers.size(), 2u);
  EXPECT_EQ(net.decoder.layers[1].linear1.weight.size(0), 8);
}

TEST(Bilinear, StartsAsPyTorchs) {
  const Seed seed(1);
  const nn::Bilinear net(16, 40, 50);
  EXPECT_NEAR(max(abs(net.weight)).item(), 0.25, 1e-3);
  EXPECT_NEAR(max(abs(net.bias)).item(), 0.25, 0.02);
  EXPECT_EQ(net(randn({2, 3, 16}), randn({2, 3, 40})).shape(), (Shape{2, 3, 50}));
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(net(randn({2, 16}), randn({2, 40})).dtype(), bf16);
  EXPECT_ERROR(nn::Bilinear(0, 2, 3), "Bilinear: sizes must be positive: in1 0, in2 2, out 3");
  EXPECT_ERROR(net(randn({16}), randn({2, 40})),
               "the inputs must be [..., in1] and [..., in2] with the same dimensions");
}

// f16 and bf16 are near f32, in regions and as they are.
TEST(Volumes, RunInNarrowDtypes) {
  const Seed seed(1);
  const Tensor x = randn({2, 4, 5, 6, 6}), w = randn({6, 4, 3, 3, 3}) * 0.1, b = randn({6});
  const Tensor wt = randn({4, 6, 3, 2, 2}) * 0.1;
  const auto near = [](const Tensor& got, const Tensor& want, DType low) {
    EXPECT_EQ(got.dtype(), low);
    EXPECT_LT(norm(got.to(f32) - want).item(), (low == f16 ? 1e-3 : 8e-3) * norm(want).item());
  };
  const Tensor y = conv3d(x, w, b, {.padding = 1}), z = conv_transpose3d(x, wt, b, {.stride = 2});
  for (const DType low : {f16, bf16}) {
    near(conv3d(x.to(low), w.to(low), b.to(low), {.padding = 1}), y, low);
    near(conv_transpose3d(x.to(low), wt.to(low), b.to(low), {.stride = 2}), z, low);
    const amp::Autocast on({.low = low});
    near(conv3d(x, w, b, {.padding = 1}), y, low);
    near(conv_transpose3d(x, wt, b, {.stride = 2}), z, low);
  }
}

// One plane may add what 16 bits cannot hold if another takes it away.
TEST(Volumes, SumPlanesInF32) {
  const Tensor x = full({1, 1, 2, 1, 1}, 40000, f16), w = from({2, -2}, {1, 1, 2, 1, 1}, f16);
  EXPECT_EQ(conv3d(x, w).item(), 0);
  const Tensor y = conv_transpose3d(x, w);
  EXPECT_EQ(select(flatten(y), 0, 1).item(), 0);
  EXPECT_EQ(y.dtype(), f16);
  const amp::Autocast on({.low = f16});
  EXPECT_EQ(conv3d(x.to(f32), w.to(f32)).item(), 0);
  EXPECT_EQ(select(flatten(conv_transpose3d(x.to(f32), w.to(f32))), 0, 1).item(), 0);
}

TEST(Fold, SumsInItsOwnDtype) {
  const Tensor x = full({1, 4, 1}, 70000, f32).set_requires_grad();
  const amp::Autocast on({.low = f16});
  const Tensor y = fold(x, 2, 2);
  EXPECT_TRUE(equal(y, full({1, 1, 2, 2}, 70000)));
  sum(y * 70000.0).backward();
  EXPECT_TRUE(equal(x.grad(), full({1, 4, 1}, 70000)));
}

TEST(Celu, IsTheIdentityAboveZero) {
  for (const DType dtype : {f32, f16}) {
    const Tensor x = from({60000, 0.3, 0, -1}, {4}, dtype).set_requires_grad();
    const Tensor y = celu(x, 1e-3);
    EXPECT_TRUE(equal(narrow(y, 0, 0, 3), narrow(x, 0, 0, 3).detach())) << dtype;
    EXPECT_NEAR(select(y, 0, 3).item(), -1e-3, 1e-6);
    sum(y).backward();
    EXPECT_TRUE(equal(x.grad(), from({1, 1, 1, 0}, {4}, dtype))) << dtype;
  }
}

TEST(Bounds, HaveTheGradientsOfPyTorch) {
  const Tensor x = from({-2, -1, 0, 1, 2}, {5}).set_requires_grad();
  const Tensor y = nn::Hardtanh()(x);
  EXPECT_TRUE(equal(y, from({-1, -1, 0, 1, 1}, {5})));
  sum(y).backward();
  EXPECT_TRUE(equal(x.grad(), from({0, 0, 1, 0, 0}, {5})));
  const Tensor scores = from({1, 0, 0.5}, {1, 3}).set_requires_grad();  // the second at the margin
  multi_margin_loss(scores, zeros({1}, i64), {.reduction = Reduction::Sum}).backward();
  EXPECT_TRUE(allclose(scores.grad(), from({-1 / 3., 0, 1 / 3.}, {1, 3})));
}

TEST(LocalResponseNorm, KeepsAnEmptyBatch) {
  EXPECT_EQ(local_response_norm(zeros({0, 3, 2, 2}), 2).shape(), (Shape{0, 3, 2, 2}));
}

TEST(CtcLoss, TakesInputsWithoutSteps) {
  const Tensor p = log_softmax(zeros({2, 2, 3})).set_requires_grad(),
               targets = from({1, 1}, {2, 1}, i64), none = zeros({2}, i64),
               lengths = from({0, 1}, {2}, i64);
  const Tensor each = ctc_loss(p, targets, none, lengths, {.reduction = Reduction::None});
  EXPECT_TRUE(equal(each, from({0, INFINITY}, {2})));
  ctc_loss(p, targets, none, lengths, {.zero_infinity = true}).backward();
  EXPECT_TRUE(equal(p.grad(), zeros({2, 2, 3})));
}

TEST(CtcLoss, TakesOneInputWithoutABatch) {
  const Seed seed(1);
  const Tensor p = log_softmax(randn({4, 3})), targets = from({1, 2}, {2}, i64),
               steps = full({}, 4, i64), length = full({}, 2, i64);
  const Tensor of_batch =
      ctc_loss(unsqueeze(p, 1), unsqueeze(targets, 0), reshape(steps, {1}), reshape(length, {1}));
  for (const auto reduction : {Reduction::Mean, Reduction::Sum, Reduction::None}) {
    const Tensor loss = ctc_loss(p, targets, steps, length, {.reduction = reduction});
    EXPECT_EQ(loss.shape(), Shape{});
    EXPECT_EQ(loss.item(), of_batch.item() * (reduction == Reduction::Mean ? 1 : 2));
  }
}

TEST(MultiMarginLoss, TakesOneInputWithoutABatch) {
  const Tensor x = from({0.5, 1, -0.5}, {3}), target = full({}, 1, i64);
  for (const auto reduction : {Reduction::Mean, Reduction::None}) {
    const Tensor loss = multi_margin_loss(x, target, {.reduction = reduction});
    EXPECT_EQ(loss.shape(), Shape{});
    EXPECT_EQ(loss.item(), multi_margin_loss(unsqueeze(x, 0), reshape(target, {1})).item());
  }
}

TEST(MultiLabelLosses, TakeOneInputWithoutABatch) {
  const Tensor x = from({0.1, 0.2, 0.4, 0.8}, {4}), classes = from({3, 0, -1, 1}, {4}, i64);
  for (const auto reduction : {Reduction::Mean, Reduction::None}) {
    const Tensor loss = multilabel_margin_loss(x, classes, reduction);
    EXPECT_EQ(loss.shape(), Shape{});
    EXPECT_FLOAT_EQ(loss.item(), 0.85);  // the example of PyTorch's documents
    EXPECT_EQ(multilabel_soft_margin_loss(x, gt(x, 0.3), reduction).shape(), Shape{});
  }
  EXPECT_EQ(multilabel_margin_loss(x, full({4}, -1, i64)).item(), 0);  // no class
  EXPECT_EQ(multilabel_margin_loss(x.to(bf16), classes).dtype(), bf16);
}

TEST(InstanceNorm, TakesAnImageWithoutABatch) {
  const auto expect = [](const auto& layer, const Shape& shape) {
    const Seed seed(1);
    const Tensor x = randn(shape);
    EXPECT_TRUE(equal(layer(x), squeeze(layer(unsqueeze(x, 0)), 0))) << shape;
  };
  expect(nn::InstanceNorm1d(2), {2, 5});
  expect(nn::InstanceNorm2d(2), {2, 3, 5});
  expect(nn::InstanceNorm3d(2), {2, 3, 2, 5});
}

TEST(CtcLoss, IsInfiniteForATargetThatIsTooLong) {
  const Tensor p = log_softmax(zeros({2, 1, 3})), targets = from({1, 1}, {1, 2}, i64),
               two = from({2}, {1}, i64);
  EXPECT_TRUE(std::isinf(ctc_loss(p, targets, two, two).item()));
  EXPECT_EQ(ctc_loss(p, targets, two, two, {.zero_infinity = true}).item(), 0);
}

TEST(More, SaysWhatDoesNotFit) {
  const Tensor volume = ones({1, 2, 3, 3, 3}), image = ones({1, 2, 3, 3});
  EXPECT_EQ(error([&] { conv3d(select(image, 0, 0), volume); }),
            "conv3d: the input has shape [2, 3, 3], not [n, c, d, h, w] or [c, d, h, w]");
  EXPECT_EQ(error([&] { conv3d(volume, image); }),
            "conv3d: the weight has shape [1, 2, 3, 3], not [o, c/groups, kd, kh, kw]");
  EXPECT_EQ(error([&] { conv3d(volume, ones({1, 2, 4, 1, 1})); }),
            "conv3d: a window of 4 (dilation 1) does not fit into 3 + 2 * 0");
  const Tensor kernel = ones({1, 2, 1, 1, 1});
  const auto depth = [&](const Conv3dOptions& o) {
    return error([&] { conv3d(volume, kernel, {}, o); });
  };
  EXPECT_EQ(depth({.padding = {-1, 0, 0}}),
            "conv3d: stride and dilation must be > 0, padding >= 0, all below 2^31, got stride 1, "
            "dilation 1, padding -1 of a window of 1 over 3 elements");
  EXPECT_EQ(depth({.dilation = {0, 1, 1}}),
            "conv3d: stride and dilation must be > 0, padding >= 0, all below 2^31, got stride 1, "
            "dilation 0, padding 0 of a window of 1 over 3 elements");
  EXPECT_EQ(error([&] { conv3d(volume, ones({1, 2, 0, 1, 1})); }),
            "conv3d: a weight of shape [1, 2, 0, 1, 1] has no window");
  EXPECT_EQ(error([&] { conv_transpose3d(volume, ones({2, 1, 0, 1, 1})); }),
            "conv_transpose3d: a weight of shape [2, 1, 0, 1, 1] has no window");
  EXPECT_EQ(error([&] { max_pool3d(volume, 1, {.stride = {-1, 1, 1}}); }),
            "max_pool3d: the stride of planes must be >= 0, got -1");
  EXPECT_EQ(error([&] {
              conv_transpose3d(volume, ones({2, 1, 1, 1, 1}), {}, {.output_padding = {1, 0, 0}});
            }),
            "conv_transpose3d: an output padding of 1 with stride 1 and dilation 1 (it must be "
            "below one of them)");
  EXPECT_EQ(
      error([&] { conv_transpose3d(volume, ones({2, 1, 1, 1, 1}), {}, {.padding = {2, 0, 0}}); }),
      "conv_transpose3d: padding 2 leaves nothing of 3");
  EXPECT_EQ(error([&] { unfold(volume, 2); }),
            "unfold: the input has shape [1, 2, 3, 3, 3], not [n, c, h, w] or [c, h, w]");
  EXPECT_EQ(
      error([&] { unfold(image, 0); }),
      "unfold: window, stride and dilation must be > 0, padding >= 0, all below 2^31, got 0, 1, 1 "
      "and 0");
  constexpr int64_t huge = int64_t{1} << 62;
  EXPECT_EQ(
      error([&] { unfold(image, 2, {.dilation = huge}); }),
      "unfold: window, stride and dilation must be > 0, padding >= 0, all below 2^31, got 2, 1, "
      "4611686018427387904 and 0");
  EXPECT_EQ(
      error([&] { fold(ones({1, 4, 4}), huge, 2); }),
      "fold: sizes must be >= 0 and below 2^31, got 4611686018427387904 x 4611686018427387904");
  EXPECT_EQ(error([&] { unfold(image, 4); }),
            "unfold: a window over 4 elements does not fit into 3");
  EXPECT_EQ(error([&] { fold(image, 4, 0); }),
            "fold: window, stride and dilation must be > 0, padding >= 0, all below 2^31, got 0, "
            "1, 1 and 0");
  EXPECT_EQ(error([&] { fold(ones({1, 4, 4}), 1, 2); }),
            "fold: a window of 2 x 2 does not fit into images of 1 x 1");
  EXPECT_EQ(error([&] { fold(ones({1, 4, 5}), 3, 2); }),
            "fold: columns of shape [1, 4, 5], not [n, c 4, 4] or without n");
  EXPECT_EQ(error([&] { local_response_norm(ones({2, 3}), 1); }),
            "local_response_norm: the input has shape [2, 3], not [n, c, ...]");
  EXPECT_EQ(error([&] { local_response_norm(image, 0); }),
            "local_response_norm: size must be > 0, got 0");
  EXPECT_EQ(
      error([&] { local_response_norm(cast(image, i64), 1); }),
      "local_response_norm: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_EQ(error([&] { logit(cast(image, i64)); }),
            "logit: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_EQ(error([&] { celu(image, 0); }), "celu: alpha must be > 0, got 0");
  const Tensor whole = cast(image, i64);
  for (const auto& [op, run] :
       {std::pair{"celu", +[](const Tensor& x) { return celu(x, 2); }},
        {"softshrink", +[](const Tensor& x) { return softshrink(x, 0.5); }},
        {"pairwise_distance", +[](const Tensor& x) { return pairwise_distance(x, x); }},
        {"triplet_margin_loss", +[](const Tensor& x) { return triplet_margin_loss(x, x, x); }},
        {"gaussian_nll_loss", +[](const Tensor& x) { return gaussian_nll_loss(x, x, x); }},
        {"margin_ranking_loss", +[](const Tensor& x) { return margin_ranking_loss(x, x, x); }}})
    EXPECT_EQ(
        error([&, run = run] { run(whole); }),
        std::string(op) + ": elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_EQ(error([&] { softshrink(image, -1); }), "softshrink: the size must be >= 0, got -1");
  EXPECT_EQ(error([&] { rrelu(image, 0.5, 0.25); }),
            "rrelu: lower must be <= upper, got 0.5 and 0.25");
  EXPECT_EQ(error([&] { nn::Softmax2d()(volume); }),
            "Softmax2d: needs images [n, c, h, w] or [c, h, w], got [1, 2, 3, 3, 3]");
  EXPECT_EQ(error([] { nn::Conv3d(3, 2, 1, {.groups = 2}); }),
            "Conv3d: 3 and 2 channels do not divide into 2 groups");
  EXPECT_EQ(error([] { nn::ConvTranspose3d(2, 2, {1, 0, 2}); }),
            "ConvTranspose3d: kernel must be >= 1, got 1 x 0 x 2");
  const Tensor x = ones({2, 3}), target = zeros({2}, i64);
  EXPECT_EQ(error([&] { multi_margin_loss(x, zeros({3}, i64)); }),
            "multi_margin_loss: an input of shape [2, 3] and a target of [3], not [n, classes] and "
            "[n]");
  EXPECT_EQ(error([&] { multi_margin_loss(x, target, {.p = 3}); }),
            "multi_margin_loss: p must be 1 or 2, got 3");
  EXPECT_EQ(error([&] { multi_margin_loss(x, target + 3); }),
            "multi_margin_loss: target 3 is out of range for 3 classes");
  EXPECT_EQ(error([&] { multi_margin_loss(cast(x, i64), target); }),
            "multi_margin_loss: elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_EQ(error([&] { multi_margin_loss(x, ones({2})); }),
            "multi_margin_loss: targets must be integers, got f32");
  EXPECT_EQ(
      error([&] { multilabel_margin_loss(x, target); }),
      "multilabel_margin_loss: an input of shape [2, 3] and a target of [2], not [n, classes] "
      "for both");
  EXPECT_EQ(error([&] { multilabel_margin_loss(x, full({2, 3}, 3, i64)); }),
            "multilabel_margin_loss: target 3 is out of range for 3 classes");
  EXPECT_EQ(error([&] { multilabel_margin_loss(x, x); }),
            "multilabel_margin_loss: targets must be integers, got f32");
  EXPECT_EQ(error([&] { multilabel_soft_margin_loss(x, target); }),
            "multilabel_soft_margin_loss: an input of shape [2, 3] and a target of [2], not [..., "
            "classes] for both");
  EXPECT_EQ(error([&] { multilabel_soft_margin_loss(x, x, {.class_weights = ones({2})}); }),
            "multilabel_soft_margin_loss: class_weights has shape [2], not [3]");
  EXPECT_EQ(error([&] { triplet_margin_with_distance_loss(x, x, x, nullptr); }),
            "triplet_margin_with_distance_loss: the distance must be a function");
  const Tensor p = zeros({4, 2, 3}), classes = zeros({2, 2}, i64), lengths = full({2}, 2, i64);
  EXPECT_EQ(error([&] { ctc_loss(flatten(x), classes, lengths, lengths); }),
            "ctc_loss: log-probabilities of shape [6], not [t, n, classes] or [t, classes]");
  EXPECT_EQ(error([&] { ctc_loss(p, target, lengths, lengths); }),
            "ctc_loss: targets of shape [2] for target lengths of 4 together, not [n, s]");
  EXPECT_EQ(error([&] { ctc_loss(p, classes, zeros({3}, i64), lengths); }),
            "ctc_loss: the tensor of input lengths has shape [3], not [2]");
  EXPECT_EQ(error([&] { ctc_loss(p, classes, lengths, lengths, {.blank = 3}); }),
            "ctc_loss: blank must be from 0 to 2, got 3");
  const auto refused = [&](const Tensor& scores, const Tensor& targets, int64_t input,
                           int64_t length) {
    return error([&] {
      ctc_loss(scores, targets, full({2}, double(input), i64), full({2}, double(length), i64));
    });
  };
  EXPECT_EQ(refused(p, classes, 5, 2), "ctc_loss: input lengths must be from 0 to 4, got 5");
  EXPECT_EQ(refused(p, classes, -1, 2), "ctc_loss: input lengths must be from 0 to 4, got -1");
  EXPECT_EQ(refused(p, classes, 4, 3), "ctc_loss: target lengths must be from 0 to 2, got 3");
  const Tensor far = from({1, 2, 1, 3}, {2, 2}, i64);
  EXPECT_EQ(refused(p, far, 4, 2), "ctc_loss: target 3 is out of range for 3 classes");
  EXPECT_EQ(refused(p, far, 4, 1), "no error");  // beyond the length of its target
  EXPECT_EQ(refused(cast(p, i64), classes, 4, 2),
            "ctc_loss: elements must be floats, got i64 (convert them to a float dtype)");
}

}  // namespace more_test
}  // namespace mixtape
