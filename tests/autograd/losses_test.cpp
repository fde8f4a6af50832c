// Losses beyond op_rows: errors, extreme inputs, and dtypes that they read and write. Numbers are
// PyTorch's unless another source is given.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/dispatch.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace losses_test {

[[maybe_unused]] constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                None = Reduction::None;

Tensor leaf(std::initializer_list<double> values, const Shape& shape, DType dtype = f32) {
  const Tensor t = from(values, shape, dtype);
  t.set_requires_grad();
  return t;
}
// The gradient of sum(f(x)).
template <class F>
Tensor slope(const Tensor& x, const F& f) {
  return grad({sum(f(x))}, {x})[0];
}

// The loss and the gradients of input, weight and bias.
std::vector<Tensor> loss_and_gradients(const Tensor& loss, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> all = grad({loss}, inputs);
  all.insert(all.begin(), loss.detach());
  return all;
}

TEST(LinearCrossEntropy, IsCrossEntropyOfAProduct) {
  const Tensor x = randn({3, 7, 5}, f64), w = randn({11, 5}, f64), b = randn({11}, f64),
               t = cast(uniform({3, 7}, 0, 11, f64), i64),
               class_weights = uniform({11}, 0.5, 2, f64);
  for (const Tensor& p : {x, w, b}) p.set_requires_grad();
  for (const Reduction r : {Mean, Sum, None})
    for (const int64_t rows : {1, 4, 21, 100, 0}) {
      const auto each = r == None ? uniform({3, 7}, 0, 1, f64) : ones({}, f64);
      const Tensor chunked = linear_cross_entropy(x, w, t,
                                                  {.bias = b,
                                                   .reduction = r,
                                                   .label_smoothing = 0.1,
                                                   .ignore_index = 3,
                                                   .class_weights = class_weights,
                                                   .rows = rows});
      const Tensor logits = reshape(linear(x, w, b), {21, 11});
      Tensor whole = cross_entropy(logits, reshape(t, {21}),
                                   {.reduction = r,
                                    .label_smoothing = 0.1,
                                    .ignore_index = 3,
                                    .class_weights = class_weights});
      if (r == None) whole = reshape(whole, {3, 7});
      const auto got = loss_and_gradients(sum(chunked * each), {x, w, b}),
                 want = loss_and_gradients(sum(whole * each), {x, w, b});
      EXPECT_EQ(chunked.shape(), whole.shape());
      for (size_t i = 0; i < want.size(); ++i)
        expect_near(flatten(got[i]), to_vector(want[i]), 1e-12);
    }
}
TEST(LinearCrossEntropy, KeepsNoLogits) {
  constexpr int64_t rows = 4096, classes = 1000, features = 16;
  const Tensor x = randn({rows, features}), w = randn({classes, features}),
               t = cast(uniform({rows}, 0, classes), i64);
  for (const Tensor& p : {x, w}) p.set_requires_grad();
  const auto peak = [&](const auto& loss) {
    const int64_t before = memory_stats().in_use;
    reset_peak();
    loss().backward();
    return memory_stats().peak_total - before;
  };
  const int64_t logits = rows * classes * 4;
  EXPECT_GE(peak([&] { return cross_entropy(linear(x, w, {}), t); }), 2 * logits);
  EXPECT_LT(peak([&] { return linear_cross_entropy(x, w, t, {.rows = 128}); }), logits / 10);
}
TEST(LinearCrossEntropy, DoesNotRoundLogits) {
  // Logits of 300.25 and 300.125 are one number in f16 and bf16.
  const Tensor x = from({1}, {1, 1}), t = from({0}, {1}, i64);
  for (const DType low : {f16, bf16}) {
    const Tensor w = from({0.25, 0.125}, {2, 1}), bias = from({300, 300}, {2});
    const amp::Autocast on({.low = low});
    const Tensor loss = linear_cross_entropy(x, w, t, {.bias = bias});
    EXPECT_EQ(loss.dtype(), f32);
    EXPECT_NEAR(loss.item(), std::log(1 + std::exp(-0.125)), 1e-5);
  }
  EXPECT_EQ(linear_cross_entropy(cast(x, f16), ones({2, 1}, f16), t).dtype(), f16);
}
TEST(LinearCrossEntropy, SaysWhatDoesNotFit) {
  const Tensor x = zeros({2, 3}), w = zeros({4, 3}), t = zeros({2}, i64);
  EXPECT_ERROR(linear_cross_entropy(zeros({}), w, t), "the input has no dimensions");
  EXPECT_ERROR(linear_cross_entropy(x, zeros({4}), t),
               "linear_cross_entropy: the weight has shape [4], not [classes, features]");
  EXPECT_ERROR(linear_cross_entropy(x, zeros({4, 2}), t),
               "the input has 3 features, the weight [4, 2] takes 2");
  EXPECT_ERROR(linear_cross_entropy(x, w, zeros({2, 1}, i64)),
               "an input of shape [2, 3] needs targets of shape [2], a class each, got [2, 1]");
  EXPECT_ERROR(linear_cross_entropy(x, w, zeros({2})), "targets must be integers, got f32");
  EXPECT_ERROR(linear_cross_entropy(x, w, from({0, 4}, {2}, i64)),
               "target 4 is out of range for 4 classes");
  EXPECT_ERROR(linear_cross_entropy(x, w, t, {.bias = zeros({3})}), "the bias");
  EXPECT_ERROR(linear_cross_entropy(x, w, t, {.label_smoothing = -1}),
               "label_smoothing must be from 0 to 1, got -1");
  EXPECT_ERROR(linear_cross_entropy(x, w, t, {.class_weights = zeros({3})}),
               "class weights must have shape [4], got [3]");
  EXPECT_ERROR(linear_cross_entropy(x, w, t, {.rows = -1}), "rows must be >= 0, got -1");
}

TEST(Losses, TakeTheReductionByNameOrAlone) {
  const Tensor x = from({-1, 0.5, 2, 0.25}, {2, 2}, f64), y = from({0.5, 0.5, 1, 0}, {2, 2}, f64),
               p = from({0.2, 0.5, 0.9, 0.25}, {2, 2}, f64), index = from({0, 1}, {2}, i64),
               signs = from({1, -1}, {2}, f64), var = ones({2, 2}, f64);
  for (const Reduction r : {Mean, Sum, None}) {
    const auto expect_same = [](const Tensor& alone, const Tensor& by_name) {
      EXPECT_EQ(alone.shape(), by_name.shape());
      EXPECT_EQ(to_vector(alone), to_vector(by_name));
    };
    expect_same(mse_loss(x, y, r), mse_loss(x, y, {.reduction = r}));
    expect_same(l1_loss(x, y, r), l1_loss(x, y, {.reduction = r}));
    expect_same(smooth_l1_loss(x, y, r), smooth_l1_loss(x, y, {.reduction = r, .beta = 1}));
    expect_same(huber_loss(x, y, r), huber_loss(x, y, {.reduction = r, .delta = 1}));
    expect_same(cross_entropy(x, index, r), cross_entropy(x, index, {.reduction = r}));
    expect_same(nll_loss(x, index, r), nll_loss(x, index, {.reduction = r}));
    expect_same(linear_cross_entropy(x, y, index, r),
                linear_cross_entropy(x, y, index, {.reduction = r}));
    expect_same(binary_cross_entropy(p, y, r), binary_cross_entropy(p, y, {.reduction = r}));
    expect_same(binary_cross_entropy_with_logits(x, y, r),
                binary_cross_entropy_with_logits(x, y, {.reduction = r}));
    expect_same(kl_div(x, p, r), kl_div(x, p, {.reduction = r}));
    expect_same(triplet_margin_loss(x, y, p, r), triplet_margin_loss(x, y, p, {.reduction = r}));
    expect_same(cosine_embedding_loss(x, y, signs, r),
                cosine_embedding_loss(x, y, signs, {.reduction = r}));
    expect_same(margin_ranking_loss(x, y, sign(x), r),
                margin_ranking_loss(x, y, sign(x), {.reduction = r}));
    expect_same(gaussian_nll_loss(x, y, var, r), gaussian_nll_loss(x, y, var, {.reduction = r}));
    expect_same(poisson_nll_loss(x, y, r), poisson_nll_loss(x, y, {.reduction = r}));
    expect_same(hinge_embedding_loss(x, sign(x), r),
                hinge_embedding_loss(x, sign(x), {.reduction = r, .margin = 1}));
    expect_same(soft_margin_loss(x, sign(x), r), soft_margin_loss(x, sign(x), {.reduction = r}));
    EXPECT_EQ(mse_loss(x, y, r).rank(), r == None ? 2 : 0);
  }
  EXPECT_EQ(mse_loss(x, y, {}).item(), mse_loss(x, y).item());
}

// One example is a batch of one.
TEST(Losses, TakeOneExample) {
  const Tensor x = leaf({1, -2, 0.5}, {3}), weights = from({1, 2, 3}, {3}),
               chances = from({0.2, 0.5, 0.3}, {3});
  const Tensor rows = unsqueeze(x, 0);
  for (const Reduction r : {Reduction::None, Reduction::Mean, Reduction::Sum}) {
    const CrossEntropyOptions o{.reduction = r, .label_smoothing = 0.1, .class_weights = weights};
    const auto expect_same = [&](const Tensor& one, const Tensor& batch) {
      EXPECT_EQ(one.shape(), Shape{});
      EXPECT_EQ(one.item(), batch.item());
      EXPECT_EQ(to_vector(grad({one}, {x})[0]), to_vector(grad({sum(batch)}, {x})[0]));
    };
    const Tensor two = full({}, 2, i64), twos = full({1}, 2, i64);
    expect_same(cross_entropy(x, two, o), cross_entropy(rows, twos, o));
    expect_same(cross_entropy(x, chances, o), cross_entropy(rows, unsqueeze(chances, 0), o));
    expect_same(nll_loss(log_softmax(x, 0), two, {r, -100, weights}),
                nll_loss(log_softmax(rows, 1), twos, {r, -100, weights}));
  }
  EXPECT_TRUE(std::isnan(cross_entropy(x, full({}, -100, i64)).item()));
}

// --- errors ---

TEST(LossErrors, OfClasses) {
  const Tensor x = zeros({2, 3}), t = from({0, 1}, {2}, i64), p = full({2, 3}, 0.5);
  EXPECT_ERROR(cross_entropy(zeros({}), t),
               "cross_entropy: the logits have shape [], not [n, classes, ...] or [classes]");
  EXPECT_ERROR(cross_entropy(zeros({3}), t),
               "logits of shape [3] need targets of shape [], a class each, got [2]");
  EXPECT_ERROR(cross_entropy(zeros({3}), zeros({1}, i64)), "got [1] (squeeze(target, 0))");
  EXPECT_ERROR(cross_entropy(x, zeros({3}, i64)),
               "logits of shape [2, 3] need targets of shape [2], a class each, got [3]");
  EXPECT_ERROR(cross_entropy(x, zeros({2, 1}, i64)),
               "need targets of shape [2], a class each, got [2, 1] (squeeze(target, 1))");
  EXPECT_ERROR(cross_entropy(zeros({2, 3, 4}), zeros({2, 3}, i64)),
               "logits of shape [2, 3, 4] need targets of shape [2, 4], a class each, got [2, 3]");
  EXPECT_ERROR(cross_entropy(x, zeros({2})), "targets must be integers, got f32");
  EXPECT_ERROR(cross_entropy(x, from({0, 3}, {2}, i64)), "target 3 is out of range for 3 classes");
  EXPECT_ERROR(cross_entropy(x, from({-1, 2}, {2}, i64)),
               "target -1 is out of range for 3 classes");
  EXPECT_ERROR(cross_entropy(x, t, {.label_smoothing = 1.5}),
               "label_smoothing must be from 0 to 1, got 1.5");
  EXPECT_ERROR(cross_entropy(x, zeros({2, 3}, i64)),
               "targets of the shape of the logits are probabilities, not i64");
  EXPECT_ERROR(cross_entropy(x, p, {.ignore_index = 1}),
               "ignore_index 1 needs class targets, got probabilities");
  EXPECT_ERROR(cross_entropy(x, t, {.class_weights = ones({2})}),
               "class weights must have shape [3], got [2]");
  EXPECT_ERROR(cross_entropy(x, t, {.class_weights = leaf({1, 1, 1}, {3})}),
               "class weights must not require a gradient");
  EXPECT_ERROR(nll_loss(zeros({}), t),
               "nll_loss: the log-probabilities have shape [], not [n, classes, ...] or [classes]");
  EXPECT_ERROR(
      nll_loss(x, zeros({1}, i64)),
      "log-probabilities of shape [2, 3] need targets of shape [2], a class each, got [1]");
  EXPECT_ERROR(nll_loss(x, from({0, 3}, {2}, i64)), "target 3 is out of range for 3 classes");
}

TEST(LossErrors, OfElements) {
  const Tensor x = zeros({2}), y = zeros({2, 1}), whole = zeros({2}, i64);
  const std::string shapes = "input and target must have one shape, got [2] and [2, 1]";
  EXPECT_ERROR(mse_loss(x, y), "mse_loss: " + shapes);
  EXPECT_ERROR(l1_loss(x, y), shapes);
  EXPECT_ERROR(smooth_l1_loss(x, y), shapes);
  EXPECT_ERROR(huber_loss(x, y), shapes);
  EXPECT_ERROR(binary_cross_entropy(x, y), shapes);
  EXPECT_ERROR(binary_cross_entropy_with_logits(x, y), shapes);
  EXPECT_ERROR(binary_cross_entropy_with_logits(x, y, {.pos_weight = ones({})}), shapes);
  EXPECT_ERROR(kl_div(x, y), shapes);
  EXPECT_ERROR(l1_loss(whole, whole),
               "elements must be floats, got i64 (convert them to a float dtype)");
  EXPECT_ERROR(smooth_l1_loss(x, x, {.beta = -0.5}), "beta must be >= 0, got -0.5");
  EXPECT_ERROR(smooth_l1_loss(x, x, {.beta = NAN}), "beta must be >= 0, got nan");
  EXPECT_ERROR(smooth_l1_loss(x, x, {.beta = 1e39}),
               "beta must be <= 3.4028234663852886e+38, got 1e+39");
  EXPECT_ERROR(huber_loss(x, x, {.delta = 0}), "delta must be > 0, got 0");
  EXPECT_ERROR(huber_loss(x, x, {.delta = NAN}), "delta must be > 0, got nan");
  EXPECT_ERROR(kl_div(x, x, {.reduction = Sum, .batch_mean = true}),
               "kl_div: batch_mean needs Reduction::Mean");
  EXPECT_ERROR(binary_cross_entropy(x, x, {.pos_weight = ones({2})}),
               "pos_weight is an option of binary_cross_entropy_with_logits alone");
  EXPECT_ERROR(binary_cross_entropy(x, x, {.weight = ones({3})}), "[3]");
  const auto of = [&](double p) {  // on a device the error may come late
    binary_cross_entropy(from({p, 0.5}, {2}), x).item();
    binary_cross_entropy(x, x).item();
  };
  EXPECT_ERROR(of(1.5), "probabilities must be from 0 to 1, got 0.5 to 1.5");
  EXPECT_ERROR(of(-0.25), "probabilities must be from 0 to 1, got -0.25 to 0.5");
  EXPECT_EQ(test::error([&] { of(NAN); }), "no error") << "the loss tells";
  EXPECT_ERROR(binary_cross_entropy_with_logits(x, x, {.weight = ones({2, 2})}), "[2, 2]");
  EXPECT_ERROR(cosine_similarity(zeros({2, 3}), zeros({2, 4})), "cosine_similarity: ");
  EXPECT_ERROR(cosine_similarity(zeros({2, 3}), zeros({2, 3}), 2), "cosine_similarity: ");
}

TEST(LossErrors, OfNarrowProbabilities) {
  for (const DType low : {f16, bf16}) {
    const Tensor x = full({2}, 0.5, low);
    const auto message = fmt::format(
        "binary_cross_entropy: {} probabilities are too coarse for their logarithms: "
        "leave out the sigmoid and use binary_cross_entropy_with_logits",
        name(low));
    EXPECT_ERROR(binary_cross_entropy(x, x), message);
    const amp::Autocast on({.low = low});
    EXPECT_ERROR(binary_cross_entropy(sigmoid(x), x), message);
    EXPECT_EQ(binary_cross_entropy(cast(x, f32), x).dtype(), f32);
  }
}

// --- classes ---

TEST(CrossEntropyLoss, WhatIsIgnoredHasNoSecondDerivative) {
  const Tensor x = leaf({1, 2, inf, -inf}, {2, 2});
  const auto second = [&](const Values& targets) {
    const Tensor t = from(targets, {2}, i64);
    const Tensor dx =
        grad({cross_entropy(x, t, {.ignore_index = 7})}, {x}, {.create_graph = true})[0];
    return grad({sum(dx * from({1, 2, 3, 4}, {2, 2}))}, {x})[0];
  };
  const double p = 1 / (1 + std::exp(1.0));  // of class 0 in the first row
  expect_near(second({0, 7}), {-p * (1 - p), p * (1 - p), 0, 0});
  expect_near(second({7, 7}), {0, 0, 0, 0});
}

TEST(CrossEntropyLoss, AMeanOfNothingIsNan) {
  const Tensor x = leaf({1, 2, 3, 4}, {2, 2}), t = from({7, 7}, {2}, i64);
  const Tensor loss = cross_entropy(x, t, {.ignore_index = 7});
  EXPECT_TRUE(std::isnan(loss.item()));
  loss.backward();
  EXPECT_EQ(to_vector(x.grad()), Values(4, 0.0));
  EXPECT_TRUE(std::isnan(nll_loss(x, t, {.ignore_index = 7}).item()));
  for (const bool recorded : {false, true})
    for (const Tensor& mean :
         {cross_entropy(x, t, {.ignore_index = 7}), nll_loss(x, t, {.ignore_index = 7})})
      EXPECT_EQ(to_vector(grad({mean}, {x}, {.create_graph = recorded})[0]), Values(4, 0.0));
  EXPECT_TRUE(std::isnan(cross_entropy(zeros({0, 2}), zeros({0}, i64)).item()));
  EXPECT_TRUE(std::isnan(cross_entropy(zeros({0, 2}), zeros({0, 2})).item()));
  const Tensor zero = from({0, 1}, {2}), first = from({0, 0}, {2}, i64);
  EXPECT_TRUE(std::isnan(cross_entropy(x, first, {.class_weights = zero}).item()));
}

TEST(CrossEntropyLoss, AMeanOverMoreThanF16CanCount) {  // 65504
  const Tensor x = zeros({70000, 2}, f16), target = zeros({70000}, i64);
  EXPECT_NEAR(cross_entropy(x, target).item(), std::log(2), 1e-3);
  EXPECT_NEAR(nll_loss(x - 1, target, {.class_weights = ones({2})}).item(), 1, 1e-3);
}

TEST(CrossEntropyLoss, OfPixelsIsThatOfTheirRows) {
  const Tensor x = randn({2, 5, 3, 4}, f64), t = randint(0, 5, {2, 3, 4}), w = rand({5}, f64);
  const Tensor rows = reshape(permute(x, {0, 2, 3, 1}), {24, 5}), flat = reshape(t, {24});
  const CrossEntropyOptions o{.label_smoothing = 0.1, .ignore_index = 2, .class_weights = w};
  EXPECT_NEAR(cross_entropy(x, t, o).item(), cross_entropy(rows, flat, o).item(), 1e-12);
  const NllOptions n{.ignore_index = 2, .class_weights = w};
  EXPECT_NEAR(nll_loss(log_softmax(x, 1), t, n).item(),
              cross_entropy(x, t, {.ignore_index = 2, .class_weights = w}).item(), 1e-12);
  const Tensor one_pixel = cross_entropy(x, t, {.reduction = None});
  EXPECT_EQ(one_pixel.shape(), t.shape());
}

TEST(CrossEntropyLoss, OneHotProbabilitiesAreTheClassesThemselves) {
  const Tensor x = randn({6, 5}, f64), t = randint(0, 5, {6});
  const Tensor p = one_hot(t, 5, f64);
  for (const Reduction r : {Mean, Sum, None})
    for (const double smoothing : {0.0, 0.25}) {
      const CrossEntropyOptions o{.reduction = r, .label_smoothing = smoothing};
      expect_near(cross_entropy(x, p, o), to_vector(cross_entropy(x, t, o)), 1e-12);
    }
}

TEST(CrossEntropyLoss, AClassThatIsRuledOutCostsNothing) {  // if the target gives it no weight
  const Tensor x = leaf({0, -inf, 0}, {1, 3}), p = leaf({0.25, 0, 0.75}, {1, 3});
  const Tensor loss = cross_entropy(x, p);
  EXPECT_NEAR(loss.item(), std::log(2), 1e-6);
  loss.backward();
  expect_near(x.grad(), {0.25, 0, -0.25});
}

TEST(NllLoss, ReadsAnyStridesAndIgnores) {
  const Tensor x = from({-1, -2, -3, -4, -5, -6}, {3, 2}), t = from({2, -100}, {2}, i64);
  expect_near(nll_loss(transpose(x), t, {.reduction = None}), {5, 0});
  EXPECT_NEAR(nll_loss(transpose(x), t).item(), 5, 1e-6);
}

// --- elements ---

TEST(ElementwiseLosses, KeepNan) {
  const Tensor d = leaf({NAN, 0}, {2}), zero = zeros({2});
  for (const auto& loss : {+[](const Tensor& x, const Tensor& t) { return smooth_l1_loss(x, t); },
                           +[](const Tensor& x, const Tensor& t) { return huber_loss(x, t); },
                           +[](const Tensor& x, const Tensor& t) { return mse_loss(x, t); }}) {
    EXPECT_TRUE(std::isnan(loss(d, zero).item()));
    const Tensor g = slope(d, [&](const Tensor& x) { return loss(x, zero); });
    EXPECT_TRUE(std::isnan(g.at(0)));
    EXPECT_EQ(g.at(1), 0);
  }
}

TEST(ElementwiseLosses, SmoothL1OfBetaZeroIsL1) {
  const Tensor x = leaf({-2, 0, 3}, {3}), zero = zeros({3});
  EXPECT_EQ(to_vector(smooth_l1_loss(x, zero, {.reduction = None, .beta = 0})), (Values{2, 0, 3}));
  EXPECT_EQ(to_vector(slope(x,
                            [&](const Tensor& a) {
                              return smooth_l1_loss(a, zero, {.reduction = Sum, .beta = 0});
                            })),
            (Values{-1, 0, 1}));
}

TEST(BinaryCrossEntropyLoss, StopsAtProbabilitiesOfZeroAndOne) {
  const Tensor p = leaf({0, 1e-20, 1e-9, 0.3, 1 - 1e-9, 1, 0, 1}, {8}, f64),
               t = leaf({0, 1, 0.5, 0.2, 0.5, 1, 1, 0}, {8}, f64);
  const Tensor each = binary_cross_entropy(p, t, {.reduction = None});
  expect_near(each, {0, 46.0517018599, 10.3616329190, 0.5261345160, 10.3616329331, 0, 100, 100},
              1e-9);
  sum(each).backward();
  expect_near(p.grad(), {0, -1e12, -4.9999999950e8, 0.47619047619, 5.0000001364e8, 0, -1e12, 1e12},
              1e-7);
  // Its derivative, where PyTorch has infinities: log(1 - p) - log(p), each at least -100.
  expect_near(t.grad(),
              {100, 46.0517018599, 20.7232658359, 0.8472978604, -20.7232658642, -100, 100, -100},
              1e-9);
}

TEST(BinaryCrossEntropyLoss, OfLogitsDoesNotOverflow) {
  const Tensor x = leaf({1000, -1000, 1000, -1000, 20, -20}, {6}),
               t = from({1, 0, 0, 1, 1, 0}, {6});
  const Values want = {0, 0, 1000, 1000, 2.0611537e-9, 2.0611537e-9};
  for (const Tensor& weight : {Tensor(), ones({})}) {
    const Tensor each =
        binary_cross_entropy_with_logits(x, t, {.reduction = None, .pos_weight = weight});
    for (int i = 0; i < 6; ++i) EXPECT_NEAR(each.at(i), want[size_t(i)], 1e-5 * want[size_t(i)]);
    expect_near(grad({sum(each)}, {x})[0], {0, 0, 1, -1, 0, 0});
  }
}

TEST(BinaryCrossEntropyLoss, OfLogitsHasSlopesWhereTheSigmoidRoundsToOne) {
  for (const double v : {-20.0, 0.0, 12.0, 20.0}) {
    const Tensor x = full({1}, v).set_requires_grad();
    const Tensor loss = binary_cross_entropy_with_logits(x, ones({1}));
    const Tensor slope = grad({loss}, {x}, {.create_graph = true})[0];
    const double miss = 1 / (1 + std::exp(v));
    EXPECT_NEAR(slope.item() / -miss, 1, 1e-5) << v;
    EXPECT_NEAR(grad({slope}, {x})[0].item() / (miss * (1 - miss)), 1, 1e-5) << v;
  }
}

TEST(BinaryCrossEntropyLoss, OfAnInfiniteLogitIsInfiniteWhereItIsWrong) {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = leaf({inf, -inf, inf}, {3}), t = from({0, 1, 0.5}, {3});
  const Tensor each = binary_cross_entropy_with_logits(x, t, {.reduction = None});
  EXPECT_EQ(to_vector(each), Values(3, inf));
  expect_near(grad({sum(each)}, {x})[0], {1, -1, 0.5});
}

TEST(BinaryCrossEntropyLoss, AWeightOfPositivesThatIsTinyLosesNoDigits) {
  const Tensor x = from({-5}, {1}), t = ones({1});
  const BceOptions o{.reduction = None, .pos_weight = full({1}, 1e-6)};
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, t, o).item() / 5.0067153e-6, 1, 1e-6);
}

TEST(KlDivLoss, SumsBeyondF16) {
  const Tensor x = full({100, 1000}, -10, f16), y = ones({100, 1000}, f16);
  EXPECT_EQ(kl_div(x, y, {.batch_mean = true}).item(), 10000);
}

TEST(KlDivLoss, WhatTheTargetRulesOutCostsNothing) {
  const Tensor x = from({0, -inf, -1}, {3}), t = leaf({0, 0, 1}, {3});
  EXPECT_EQ(to_vector(kl_div(x, t, {.reduction = None})), (Values{0, 0, 1}));
  EXPECT_EQ(to_vector(kl_div(x, log(t), {.reduction = None, .log_target = true})),
            (Values{0, 0, 1}));
}

TEST(KlDivLoss, TheBatchMeanDividesByTheFirstSize) {
  const Tensor x = randn({4, 3}), t = rand({4, 3});
  EXPECT_NEAR(kl_div(x, t, {.batch_mean = true}).item(),
              kl_div(x, t, {.reduction = Sum}).item() / 4, 1e-6);
  EXPECT_NEAR(kl_div(from({-1}, {}), ones({}), {.batch_mean = true}).item(), 1, 1e-6);
  EXPECT_EQ(kl_div(zeros({1, 0, 2}), zeros({1, 0, 2}), {.batch_mean = true}).item(), 0);
}

// --- cosine similarity ---

TEST(CosineSimilarity, OfZeroVectorsIsZeroWithAFiniteGradient) {
  const Tensor x = leaf({0, 0, 3, 4}, {2, 2}, f64), y = leaf({3, 4, 0, 0}, {2, 2}, f64);
  const Tensor c = cosine_similarity(x, y);
  EXPECT_EQ(to_vector(c), (Values{0, 0}));
  const auto g = grad({sum(c)}, {x, y}, {.create_graph = true});
  expect_near(g[0], {0.6e8, 0.8e8, 0, 0});
  expect_near(g[1], {0, 0, 0.6e8, 0.8e8});
  for (const Tensor& second : grad({sum(square(g[0] * 1e-8))}, {x, y}))
    for (const double v : to_vector(second)) EXPECT_TRUE(std::isfinite(v)) << v;
}

TEST(CosineSimilarity, OfNarrowVectorsSumsInF32) {
  const Tensor x = full({1, 1000}, 300, f16);  // the sum of squares is 9e7
  EXPECT_EQ(cosine_similarity(x, x).item(), 1);
}

// --- mixed precision ---

struct Seen : Observer {
  std::map<std::string, int> count;
  void after(const Call& call, const Tensor&) override { ++count[std::string(call.op.name)]; }
};

TEST(LossesUnderAutocast, ReadNarrowAndWriteF32) {
  const amp::Autocast on({.low = f16});
  const Tensor x = rand({4, 3}, f16), t = rand({4, 3}, f16), p = softmax(t);
  const Tensor w = ones({3}), index = zeros({4}, i64);
  x.set_requires_grad();
  Seen seen;
  const Observe watch(seen);
  for (const Tensor& loss :
       {cross_entropy(x, index, {.reduction = None, .class_weights = w}),
        cross_entropy(x, p, {.reduction = None, .class_weights = w}),
        nll_loss(x, index, {.reduction = None, .class_weights = w}), mse_loss(x, t), l1_loss(x, t),
        smooth_l1_loss(x, t), huber_loss(x, t), binary_cross_entropy_with_logits(x, t),
        kl_div(x, t), kl_div(x, t, {.log_target = true})}) {
    EXPECT_EQ(loss.dtype(), f32);
    EXPECT_EQ(grad({sum(loss)}, {x})[0].dtype(), f16);
  }
  EXPECT_EQ(seen.count["cast"], 0) << "the kernels read what is there";
  EXPECT_EQ(cosine_similarity(x, t).dtype(), f32);
  EXPECT_EQ(seen.count["cast"], 1) << "of its result, from f64";
}

TEST(LossesUnderAutocast, StayF32InAModelOfF16) {
  const amp::Autocast on({.low = f16, .preset = amp::Preset::O2});
  const Tensor x = rand({4, 3}, f16), t = rand({4, 3}, f16);
  EXPECT_EQ(cross_entropy(x, softmax(t)).dtype(), f32);
  EXPECT_EQ(binary_cross_entropy_with_logits(x, t).dtype(), f32);
  EXPECT_EQ(binary_cross_entropy_with_logits(x, t, {.pos_weight = ones({})}).dtype(), f32);
  EXPECT_EQ(kl_div(x, t, {.log_target = true}).dtype(), f32);
  EXPECT_EQ(huber_loss(x, t).dtype(), f32);
}

}  // namespace losses_test
}  // namespace mixtape
