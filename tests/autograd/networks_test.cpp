// Products, convolutions, pools, norms and attention beyond op_rows: errors, corner cases,
// rounding.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "amp/autocast.h"
#include "autograd/ops.h"
#include "core/dispatch.h"
#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace networks_test {

constexpr int64_t most = std::numeric_limits<int64_t>::max();

Tensor image(const Shape& shape = {1, 2, 4, 5}) { return ones(shape); }
Tensor count(const Shape& shape, DType dtype = f32) {
  return reshape(arange(0, double(shape.size()), 1, dtype), shape);
}

// --- products ---

TEST(Products, RefuseWhatDoesNotFit) {
  const Tensor a = ones({2, 3}), b = ones({3, 4}), v = ones({3}), n = ones({2, 3}, i64);
  EXPECT_ERROR(matmul(a, ones({})), "matmul: operands of shapes [2, 3] and [] need at least");
  EXPECT_ERROR(matmul(a, b, {.out = f64}), "matmul: a result in f64 from inputs in f32");
  EXPECT_ERROR(matmul(a.to(f64), b.to(f64), {.out = f32}),
               "matmul: a result in f32 from inputs in f64");
  EXPECT_ERROR(linear(Tensor(), a), "linear: the tensor is undefined");
  EXPECT_ERROR(linear(ones({}), a), "linear: the input has no dimensions");
  EXPECT_ERROR(bmm(a, b),
               "bmm: operands have shapes [2, 3] and [3, 4], not [b, m, k] and [b, k, n]");
  EXPECT_ERROR(bmm(ones({2, 3, 4}), ones({5, 4, 3})),
               "bmm: 2 matrices for 5: both operands need as many");
  EXPECT_ERROR(bmm(ones({2, 3, 4}), ones({2, 5, 3})), "inner dimensions differ: 4 and 5");
  EXPECT_ERROR(addmm(v, a, v), "addmm: operands have shapes [2, 3] and [3], not [m, k] and [k, n]");
  EXPECT_ERROR(mv(a, a), "mv: operands have shapes [2, 3] and [2, 3], not [m, n] and [n]");
  EXPECT_ERROR(addmm(v, b, b), "addmm: inner dimensions differ: 4 and 3 (of [3, 4] and [3, 4])");
  EXPECT_ERROR(addmm(v, a, b), "[3] cannot expand to [2, 4]");
  EXPECT_ERROR(addmm(v, n, n.t()), "addmm: elements must be floats, got i64");
  EXPECT_ERROR(outer(a, v), "outer: operands have shapes [2, 3] and [3], not [m] and [n]");
  EXPECT_ERROR(dot(v, ones({4})), "dot: operands have shapes [3] and [4], not [n] and [n]");
  EXPECT_ERROR(dot(ones({2}, i64), ones({2}, i64)), "dot: elements must be floats, got i64");
}

TEST(Matmul, OfManyByOneIsOneProduct) {
  struct Shapes : Observer {
    std::vector<Shape> of_products;
    void after(const Call& c, const Tensor& y) override {
      if (c.op.name == "matmul") of_products.push_back(y.shape());
    }
  } shapes;
  const Tensor a = count({3, 4, 2}, f64).set_requires_grad(),
               b = count({2, 5}, f64).set_requires_grad();
  const Observe watch(shapes);
  const Tensor y = matmul(a, b);
  sum(y).backward();
  EXPECT_EQ(y.shape(), (Shape{3, 4, 5}));
  EXPECT_EQ(shapes.of_products, (std::vector<Shape>{{12, 5}, {12, 2}, {2, 5}}));
  EXPECT_EQ(matmul(zeros({0, 4, 2}), zeros({2, 5})).shape(), (Shape{0, 4, 5}));
  EXPECT_EQ(matmul(zeros({3, 4, 0}), zeros({0, 5})).shape(), (Shape{3, 4, 5}));
  EXPECT_EQ(matmul(zeros({3, 4, 2}), zeros({2, 0})).shape(), (Shape{3, 4, 0}));
  EXPECT_ERROR(matmul(a, count({3, 5}, f64)), "inner dimensions differ: 2 and 3");
  EXPECT_ERROR(matmul(ones({2, 3}), ones({4})), "differ: 3 and 4 (of [2, 3] and [4])");
}

TEST(Linear, OfNoFeaturesIsItsBias) {
  const Tensor x = zeros({2, 1, 0}), weight = zeros({2, 0}), bias = from({3, 4}, {2});
  EXPECT_EQ(linear(x, weight, bias).shape(), (Shape{2, 1, 2}));
  EXPECT_EQ(to_vector(linear(x, weight, bias)), (Values{3, 4, 3, 4}));
}

TEST(Addmm, AddsBeforeItRounds) {
  // 2049 is between two f16 numbers and would round to 2048; 2050 is one.
  const Tensor a = from({2048, 1}, {1, 2}, f16), b = ones({2, 1}, f16);
  EXPECT_EQ(matmul(a, b).item(), 2048);
  EXPECT_EQ(addmm(ones({1}), a, b).item(), 2050);
  EXPECT_EQ(addmm(ones({1, 1}), a, b).dtype(), f16);
}

TEST(Addmm, ScalesBeforeItRounds) {
  // 1024 * 64, 1e-4 * 1e-4 and 60000 * 2 exceed f16; the results do not.
  const auto of = [](double value) { return full({1, 1}, value, f16); };
  EXPECT_EQ(addmm(of(0), of(1024), of(0.5), {.alpha = 64}).item(), 32768);
  EXPECT_GT(addmm(of(0), of(1e-4), of(1000), {.beta = 0, .alpha = 1e-4}).item(), 0);
  EXPECT_EQ(addmm(of(60000), of(-60000), of(1), {.beta = 2}).item(), 60000);
}

TEST(Addmm, OfNothingIgnoresWhatItWouldAddTo) {
  const Tensor c = full({2, 2}, nan), a = ones({2, 3}), b = ones({3, 2});
  EXPECT_EQ(to_vector(addmm(c, a, b, {.beta = 0, .alpha = 2})), (Values{6, 6, 6, 6}));
}

TEST(Dot, SumsNarrowNumbersInF32) {
  EXPECT_EQ(dot(ones({4096}, f16), ones({4096}, f16)).item(), 4096);
  const amp::Autocast on({.low = f16});
  EXPECT_EQ(dot(ones({4}, f16), ones({4})).dtype(), f32) << "the widest of its inputs";
}

TEST(Bilinear, NamesShapesThatDoNotFit) {
  const Tensor x = ones({2, 3}), w = ones({4, 3, 3});
  EXPECT_EQ(bilinear(x, x, w, ones({4})).at(0), 10);
  EXPECT_EQ(bilinear(x, x, w).shape(), (Shape{2, 4}));
  EXPECT_ERROR(bilinear(x, x[0], w),
               "bilinear: the inputs must be [..., in1] and [..., in2] with the same dimensions, "
               "got [2, 3] and [3]");
  EXPECT_ERROR(bilinear(x, x, x), "bilinear: the weight has shape [2, 3], not [out, in1, in2]");
  EXPECT_ERROR(bilinear(x, x, w, ones({1})), "bilinear: the bias has shape [1], not [4]");
  EXPECT_ERROR(bilinear(x, ones({2, 2}), w), "sizes of 'j' differ: 3 and 2");
}

// --- einsum ---

TEST(Einsum, RefusesWhatDoesNotFit) {
  const Tensor a = ones({2, 3}), b = ones({4, 5});
  EXPECT_ERROR(einsum("ij,jk->ik", {a, b}), "einsum: sizes of 'j' differ: 3 and 4");
  EXPECT_ERROR(einsum("ii->i", {a}), "sizes of 'i' differ: 2 and 3");
  EXPECT_ERROR(einsum("ii", {ones({1, 3})}), "sizes of 'i' differ: 1 and 3");
  EXPECT_ERROR(einsum("...i,...", {a, ones({4})}),
               "sizes of dimension -1 of '...' differ: 2 and 4");
  EXPECT_ERROR(einsum("ij,jk", {a}), "1 operands need as many terms, got 2");
  EXPECT_ERROR(einsum("", {}), "0 operands need as many terms, got 1");
  EXPECT_ERROR(einsum("ijk", {a}), "'ijk' names 3 dimensions of an operand of shape [2, 3]");
  EXPECT_ERROR(einsum("i", {a}), "'i' names 1 dimensions of an operand of shape [2, 3]");
  EXPECT_ERROR(einsum("...ijk", {a}), "'...ijk' names 3 dimensions");
  EXPECT_ERROR(einsum("...i...", {a}), "'...i...' has '...' twice");
  EXPECT_ERROR(einsum("i1", {a}), "'1' in 'i1' is not a letter");
  EXPECT_ERROR(einsum("..", {a}), "'.' in '..' is not a letter");
  EXPECT_ERROR(einsum("..ij", {a}), "'.' in '..ij' is not a letter");
  EXPECT_ERROR(einsum("ij->k", {a}), "the result names 'k', which no operand has");
  EXPECT_ERROR(einsum("ij->jj", {a}), "the result names 'j' twice");
  EXPECT_ERROR(einsum("ij->......", {ones({2, 3, 4})}), "'ij' names 2 dimensions");
  EXPECT_ERROR(einsum("ij->i->j", {a}), "'-' in 'i->j' is not a letter");
  EXPECT_ERROR(einsum("ij,kl", {a, ones({2, 2}, f64)}), "different dtypes: f32 and f64");
  EXPECT_ERROR(tensordot(a, b, {0}, {0, 1}), "both must be named, got 1 and 2");
  EXPECT_ERROR(tensordot(a, a, {0, 0}, {0, 1}),
               "dimension 0 of [2, 3] or 1 of [2, 3] is given twice");
  EXPECT_ERROR(tensordot(a, a, {0, 1}, {0, 0}),
               "dimension 1 of [2, 3] or 0 of [2, 3] is given twice");
  EXPECT_ERROR(tensordot(a, b, {0}, {1}),
               "dimension 0 of shape [2, 3] has another size than dimension 1 of [4, 5]");
  EXPECT_ERROR(tensordot(a, b, 3), "tensordot: dims must be from 0 to 2, got 3");
}

TEST(Einsum, RoundsOnce) {  // the first product, and the sum over j, are beyond f16
  const Tensor x = full({2}, 300, f16).set_requires_grad(), small = full({2}, 0.0078125, f16);
  const Tensor y = einsum("i,i,i->i", {x, x, small});
  EXPECT_EQ(y.dtype(), f16);
  EXPECT_EQ(to_vector(y), to_vector(full({2}, 300 * 300 * 0.0078125, f16)));
  EXPECT_EQ(to_vector(grad({sum(y)}, {x})[0]), to_vector(full({2}, 600 * 0.0078125, f16)));
  EXPECT_EQ(to_vector(einsum("ij,i->i", {full({2, 4}, 3e4, f16), small})),
            to_vector(full({2}, 4 * 3e4 * 0.0078125, f16)));
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(einsum("ij,jk,kl", {ones({2, 2}, f16), ones({2, 2}), ones({2, 2})}).dtype(), bf16);
}

TEST(Einsum, WithoutAnArrowSortsWhatOccursOnce) {
  const Tensor a = count({2, 3}), b = count({3, 4});
  EXPECT_EQ(to_vector(einsum("ba", {a})), to_vector(a.t()));
  EXPECT_EQ(einsum("zj,jB", {a, b}).shape(), Shape({4, 2})) << "capitals first";
  EXPECT_EQ(einsum("b...", {ones({2, 3, 4})}).shape(), Shape({3, 4, 2}));
  EXPECT_EQ(einsum("...", {ones({})}).shape(), Shape());
}

TEST(Einsum, OfAnyRank) {
  const Shape shape{2, 1, 2, 1, 2, 1, 2, 3};
  const Tensor a = count(shape), b = count({2, 3}),
               each = einsum("abcdefgh,abcdefgh->abcdefgh", {a, a});
  EXPECT_EQ(to_vector(each), to_vector(a * a));
  EXPECT_EQ(to_vector(einsum("abcdefgh,abcdefgh->abcdefg", {a, a})), to_vector(sum(a * a, {-1})));
  EXPECT_EQ(to_vector(einsum("...gh,gh->...g", {a, b})), to_vector(sum(a * b, {-1})));
  EXPECT_EQ(to_vector(einsum("abcdefg,abcdefg->abcdefg", {select(a, 7, 1), select(a, 7, 2)})),
            to_vector(select(a, 7, 1) * select(a, 7, 2)));
}

TEST(Einsum, SumsAnEllipsisThatTheResultLeavesOut) {
  const Tensor a = count({2, 3});
  EXPECT_EQ(to_vector(einsum("i...->i", {a})), (Values{3, 12}));
  EXPECT_EQ(einsum("i->i...", {ones({2})}).shape(), Shape({2}));
}

struct Largest : Observer {
  int64_t elements = 0;
  void after(const Call&, const Tensor& result) override {
    elements = std::max(elements, result.numel());
  }
};

TEST(Einsum, MultipliesTheCheapestPairFirst) {
  const Tensor a = ones({20, 20}), v = ones({20});
  Largest seen;
  const Observe watch(seen);
  EXPECT_EQ(einsum("ij,jk,kl,l->i", {a, a, a, v}).at(0), 8000);
  EXPECT_LE(seen.elements, 400) << "matrices times vectors";
  EXPECT_EQ(einsum("i,ij,j->", {v, a, v}).item(), 400);
}

TEST(Einsum, IsLowUnderAutocast) {
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(einsum("ij,jk->ik", {ones({2, 3}), ones({3, 4})}).dtype(), bf16);
}

// --- recurrence ---

TEST(RnnRelu, SlopesAtItsKinkAreRecordedAsTheKernelHasThem) {
  const Tensor x = zeros({2, 1, 1}).set_requires_grad(), weight = ones({1, 1});
  for (const bool recorded : {false, true}) {
    const Tensor y = rnn_relu(x, weight, {}, {});
    EXPECT_EQ(to_vector(grad({sum(y)}, {x}, {.create_graph = recorded})[0]), (Values{0, 0}));
  }
}

// --- convolutions ---

TEST(Windows, ATransposedConvolutionOfNoRows) {
  const Tensor x = ones({1, 2, 0, 4}).set_requires_grad(),
               w = ones({2, 3, 3, 3}).set_requires_grad();
  const Tensor y = conv_transpose2d(x, w);
  EXPECT_EQ(y.shape(), Shape({1, 3, 2, 6}));
  sum(y).backward();
  EXPECT_EQ(sum(abs(w.grad())).item(), 0);
}

static_assert(!std::is_constructible_v<Size2, double>, "of 1.5 rows, 1 would be left");
TEST(Windows, OneNumberIsForRowsAndColumns) {
  const Tensor x = ones({1, 1, 6, 6}), w = ones({1, 1, 3, 3});
  EXPECT_EQ(conv2d(x, w, {}, {.padding = 1}).shape(), Shape({1, 1, 6, 6}));
  EXPECT_EQ(conv2d(x, w, {}, {.padding = {1}}).shape(), Shape({1, 1, 6, 6}));
  EXPECT_EQ(conv_transpose2d(x, w, {}, {.stride = 2}).shape(), Shape({1, 1, 13, 13}));
  EXPECT_EQ(max_pool2d(x, 2).shape(), Shape({1, 1, 3, 3}));
  EXPECT_EQ(avg_pool2d(x, 3, {.stride = 1, .padding = 1}).shape(), Shape({1, 1, 6, 6}));
  EXPECT_EQ(adaptive_avg_pool2d(x, 1).shape(), Shape({1, 1, 1, 1}));
  EXPECT_EQ(interpolate(x, 8).shape(), Shape({1, 1, 8, 8}));
}

TEST(Convolutions, RefuseWhatDoesNotFit) {
  const Tensor x = image(), line = ones({1, 4, 5});
  EXPECT_ERROR(conv1d(x, line), "conv1d: the input has shape [1, 2, 4, 5], not [n, c, l]");
  EXPECT_ERROR(conv1d(line, x), "conv1d: the weight has shape [1, 2, 4, 5], not [o, c/groups, k]");
  const Tensor far = expand(zeros({1, 1, 1, 1}), {1, 1, 1 << 16, 1 << 15});
  EXPECT_ERROR(conv2d(far, zeros({1, 1, 1, 1})),
               "conv2d: planes of [65536, 32768] elements, which are counted in 32 bits");
  EXPECT_ERROR(conv_transpose2d(x, zeros({2, 1, 1, 1}), {}, {.stride = {1 << 16, 1 << 16}}),
               "conv_transpose2d: planes of");
  EXPECT_ERROR(interpolate(x, {1 << 16, 1 << 15}), "interpolate: planes of [65536, 32768]");
  EXPECT_ERROR(conv2d(x, line),
               "conv2d: the weight has shape [1, 4, 5], not [o, c/groups, kh, kw]");
  EXPECT_ERROR(conv1d(line, ones({2, 3, 2})),
               "conv1d: the input has 4 channels, the weight takes 3 in 1 groups");
  EXPECT_ERROR(conv1d(line, ones({3, 2, 2}), {}, {.groups = 2}),
               "3 outputs do not divide into 2 groups");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 3}), {}, {.dilation = 3}),
               "a window of 3 (dilation 3) does not fit into 5 + 2 * 0");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), {}, {.stride = 0}), "stride 0, dilation 1, padding 0");
  for (const int64_t n : {most, int64_t{1} << 62}) {
    EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), {}, {.stride = n}), fmt::format("stride {}", n));
    EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), {}, {.padding = n}), fmt::format("padding {}", n));
    EXPECT_ERROR(conv1d(line, ones({2, 4, 3}), {}, {.dilation = n}), fmt::format("dilation {}", n));
    EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), {}, {.groups = n}), fmt::format("got {} of 4", n));
    EXPECT_ERROR(conv_transpose1d(line, ones({4, 2, 3}), {}, {.padding = n}),
                 fmt::format("padding {} of a window of 3 over 5 elements", n));
  }
  EXPECT_ERROR(conv1d(line, ones({2, 4, 0})), "a weight of shape [2, 4, 1, 0] has no window");
  EXPECT_ERROR(conv1d(line, ones({2, 4, 2}), ones({3})), "the bias has shape [3], not [2]");

  EXPECT_ERROR(conv_transpose2d(select(line, 0, 0), x),
               "the input has shape [4, 5], not [n, c, h, w] or [c, h, w]");
  EXPECT_ERROR(conv_transpose2d(x, line),
               "the weight has shape [1, 4, 5], not [c, o/groups, kh, kw]");
  const Tensor w = ones({2, 3, 3, 3});
  EXPECT_ERROR(conv_transpose2d(image({1, 3, 4, 4}), w),
               "conv_transpose2d: the input has 3 channels, the weight takes 2");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.groups = 4}), "2 channels do not divide into 4 groups");
  EXPECT_ERROR(conv_transpose2d(x, w, ones({3}), {.groups = 2}), "the bias has shape [3], not [6]");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.padding = {-1, 0}}), "padding -1");
  EXPECT_ERROR(
      conv_transpose2d(x, w, {}, {.stride = {1, 2}, .output_padding = {0, 2}}),
      "an output padding of 2 with stride 2 and dilation 1 (it must be below one of them)");
  EXPECT_ERROR(conv_transpose2d(x, w, {}, {.padding = {3, 1}}), "padding 3 leaves nothing of 6");
}

TEST(Conv2d, AddsAResidualBeforeItRounds) {
  const Tensor x = full({1, 1, 1}, 1024), w = full({1, 1, 1, 1}, 2), one = ones({1});
  const amp::Autocast on({.low = f16});
  for (const DType dtype : {f16, f32}) {  // (2049 is no f16.)
    const Tensor residual = full({1}, dtype == f16 ? 1 : 0.25, dtype);
    for (const Tensor& y : {conv2d(x, w, one, {.residual = reshape(residual, {1, 1, 1})}),
                            linear(flatten(x), reshape(w, {1, 1}), one, {.residual = residual})}) {
      EXPECT_EQ(y.dtype(), dtype) << "that of the residual";
      EXPECT_EQ(y.at(0), dtype == f16 ? 2050 : 2049.25);
    }
  }
}
TEST(Conv2d, TakesAResidualOfItsResultsShape) {
  const Tensor x = ones({2, 1, 4, 4}), w = ones({3, 1, 3, 3});
  EXPECT_ERROR(conv2d(x, w, {}, {.residual = ones({3})}),
               "conv2d: the residual has shape [3], not [2, 3, 2, 2]");
  EXPECT_ERROR(conv2d(x, w, {}, {.residual = ones({2, 3, 2, 2}, f64)}),
               "input 3 must be f32 beside f32 activations, got f64");
  EXPECT_ERROR(linear(ones({2, 4}), ones({3, 4}), {}, {.residual = ones({3})}),
               "linear: the residual has shape [3], not [2, 3]");
  EXPECT_ERROR(linear(ones({5, 2, 4}), ones({3, 4}), {}, {.residual = ones({2, 3})}),
               "linear: the residual has shape [2, 3], not [5, 2, 3]");
}

TEST(ConvTranspose2d, IsLowAndAddsItsBiasInF32) {
  const Tensor x = full({1, 1, 1, 1}, 2049), w = ones({1, 1, 2, 2}), bias = ones({1});
  const amp::Autocast on({.low = bf16});
  const Tensor y = conv_transpose2d(x, w, bias);
  EXPECT_EQ(y.dtype(), bf16);
  const Tensor y16 =
      conv_transpose2d(from({2048, 1}, {1, 2, 1, 1}, f16), ones({2, 1, 1, 1}, f16), ones({1}));
  EXPECT_EQ(y16.dtype(), bf16);
  const amp::Autocast half({.low = f16});
  EXPECT_EQ(
      conv_transpose2d(from({2048, 1}, {1, 2, 1, 1}, f16), ones({2, 1, 1, 1}, f16), bias).item(),
      2050)
      << "2049 alone would round to 2048";
}

TEST(ConvTranspose1d, IsARowOfConvTranspose2d) {
  const Tensor x = reshape(arange(0, 10, 1, f32), {1, 2, 5}), w = ones({2, 3, 2});
  EXPECT_EQ(conv_transpose1d(x, w, {}, {.stride = 2}).shape(), (Shape{1, 3, 10}));
  EXPECT_EQ(conv_transpose1d(select(x, 0, 0), w).shape(), (Shape{3, 6}));
  EXPECT_ERROR(conv_transpose1d(image(), w),
               "conv_transpose1d: the input has shape [1, 2, 4, 5], not [n, c, l] or [c, l]");
  EXPECT_ERROR(conv_transpose1d(x, image()),
               "conv_transpose1d: the weight has shape [1, 2, 4, 5], not [c, o/groups, k]");
  EXPECT_ERROR(conv_transpose1d(x, w, {}, {.output_padding = 1}), "an output padding of 1");
  const amp::Autocast on({.low = bf16});
  EXPECT_EQ(conv_transpose1d(x, w).dtype(), bf16);
}

// --- pools ---

TEST(Pools, RefuseWhatDoesNotFit) {
  const Tensor x = image(), line = ones({1, 4, 5});
  const Tensor flat = select(line, 0, 0);
  EXPECT_ERROR(max_pool2d(flat, {2, 2}),
               "max_pool2d: the input has shape [4, 5], not [n, c, h, w]");
  EXPECT_ERROR(avg_pool2d(flat, {2, 2}),
               "avg_pool2d: the input has shape [4, 5], not [n, c, h, w]");
  EXPECT_ERROR(max_pool1d(x, 2), "max_pool1d: the input has shape [1, 2, 4, 5], not [n, c, l]");
  EXPECT_ERROR(avg_pool1d(line, 2, {.stride = -1}),
               "avg_pool1d: avg_pool2d: window and stride must be > 0 and together below 2^63, got "
               "2 and -1");
  EXPECT_ERROR(avg_pool2d(x, {0, 2}),
               "window and stride must be > 0 and together below 2^63, got 0 and 0");
  EXPECT_ERROR(
      max_pool1d(line, 2, {.stride = most, .ceil_mode = true}),
      "window and stride must be > 0 and together below 2^63, got 2 and 9223372036854775807");
  EXPECT_ERROR(max_pool1d(line, most, {.padding = most / 2}),
               "together below 2^63, got 9223372036854775807 and 9223372036854775807");
  EXPECT_ERROR(max_pool1d(expand(ones({1, 1, 1}), {1, 1, most}), 2), "a window of 2 does not fit");
  EXPECT_ERROR(max_pool1d(line, 2, {.padding = most}),
               "padding must be from 0 to half of the window, got 9223372036854775807");
  EXPECT_ERROR(avg_pool2d(x, {2, 3}, {.padding = {0, 2}}),
               "padding must be from 0 to half of the window, got 2 of 3");
  EXPECT_ERROR(avg_pool1d(line, 6), "a window of 6 does not fit into 5 + 2 * 0");
  EXPECT_ERROR(max_pool1d(line, 7, {.stride = 2, .ceil_mode = true}), "a window of 7 does not fit");
  EXPECT_ERROR(max_pool2d(ones({1, 2, 0, 4}), {2, 2}, {.padding = {1, 1}}),
               "a window of 2 does not fit into 0 + 2 * 1");
  EXPECT_ERROR(adaptive_avg_pool2d(flat, {2, 2}), "adaptive_avg_pool2d: the input has shape");
  EXPECT_ERROR(adaptive_max_pool2d(x, {2, 0}),
               "adaptive_max_pool2d: windows and elements must be > 0, got 0 over 5");
  EXPECT_ERROR(adaptive_avg_pool1d(ones({1, 2, 0}), 3),
               "windows and elements must be > 0, got 3 over 0");
  EXPECT_ERROR(max_pool2d(ones({1, 2, 4, 5}, i64), {2, 2}), "elements must be floats, got i64");
  EXPECT_ERROR(avg_pool2d(ones({1, 2, 4, 5}, i64), {2, 2}), "elements must be floats, got i64");
}

// An empty brace is no options, not a stride of 0.
TEST(Windows, BracesAreOptions) {
  const Tensor x = count({1, 2, 5}), w = ones({3, 2, 2});
  EXPECT_TRUE(equal(conv1d(x, w, {}, {}), conv1d(x, w)));
  EXPECT_TRUE(equal(max_pool1d(x, 2, {}), max_pool1d(x, 2)));
  EXPECT_TRUE(equal(avg_pool1d(x, 2, {}), avg_pool1d(x, 2)));
  EXPECT_TRUE(equal(max_pool2d(x, 2, {}), max_pool2d(x, 2)));
  EXPECT_TRUE(equal(max(x, {}), max(x)));
  EXPECT_TRUE(equal(min(x, {}), min(x)));
  EXPECT_TRUE(equal(max(x, -x), maximum(x, -x)));
  EXPECT_TRUE(equal(min(x, x[0]), x));
}

TEST(Pools, TakeElementsThatLieApart) {
  const Tensor line = count({1, 1, 6});
  const auto [y, at] = max_pool2d_with_indices(unsqueeze(line, 2), {1, 2}, {.dilation = {1, 3}});
  EXPECT_EQ(to_vector(y), (Values{3, 5}));
  EXPECT_EQ(to_vector(at), (Values{3, 5}));
  EXPECT_EQ(to_vector(max_unpool2d(y, at, {1, 2}, {.dilation = {1, 3}})),
            (Values{0, 0, 0, 3, 0, 5}));
  // Elements outside of the image count nothing, not as -inf, and NaN wins.
  const Tensor lowest = full({1, 4}, -inf).set_requires_grad();
  const Tensor maxima = max_pool1d(lowest, 2, 1, 1, 2);
  EXPECT_EQ(to_vector(maxima), Values(4, -inf));
  EXPECT_EQ(to_vector(grad({sum(maxima)}, {lowest})[0]), (Values{1, 2, 1, 0}));
  EXPECT_EQ(max_pool1d(from({1, nan, 2}, {1, 3}), 2, 1, 0, 2).item(), 2);
  EXPECT_TRUE(std::isnan(max_pool1d(from({1, 2, nan}, {1, 3}), 2, 1, 0, 2).item()));
  EXPECT_ERROR(max_pool1d(line, 2, 1, 0, 6), "a window of 7 does not fit into 6 + 2 * 0");
  EXPECT_ERROR(max_pool1d(line, 2, 1, 0, 0), "dilation must be > 0 and below 2^31, got 0");
  EXPECT_ERROR(max_pool1d(count({1, 2}), 2, 1, 2, 3),
               "a window of 2 elements, 3 apart, has none of 2");
  EXPECT_ERROR(avg_pool1d(line, 2, {.dilation = 2}), "avg_pool2d: dilation is for maxima");
  EXPECT_ERROR(max_pool2d(count({4, 4}), 2, {.dilation = 2}),
               "max_pool2d: the input has shape [4, 4], not [n, c, h, w]");
}

TEST(Pools, DivideByANumber) {
  const Tensor x = count({1, 1, 5});
  expect_near(avg_pool1d(x, 2, {.ceil_mode = true, .divisor_override = 1}), {1, 5, 4});
  const Tensor large = full({1, 1, 2, 2}, 60000, f16);
  EXPECT_EQ(avg_pool2d(large, 2, {.divisor_override = 4}).item(), 60000);
  EXPECT_EQ(avg_pool2d(large, 2, {.divisor_override = 2}).item(), inf);
  EXPECT_ERROR(avg_pool1d(x, 2, {.divisor_override = 0}), "divisor_override must be > 0, got 0");
  EXPECT_ERROR(max_pool1d(x, 2, {.divisor_override = 2}), "divisor_override is for means");
  EXPECT_ERROR(max_pool2d_with_indices(count({1, 2, 2}), 2, {.divisor_override = 2}),
               "divisor_override is for means");
}

TEST(Pools, HangOverTheEndInCeilMode) {
  const Tensor x = count({1, 1, 5});
  EXPECT_EQ(to_vector(max_pool1d(x, 2)), (Values{1, 3}));
  EXPECT_EQ(to_vector(max_pool1d(x, 2, {.ceil_mode = true})), (Values{1, 3, 4}));
  expect_near(avg_pool1d(x, 2, {.ceil_mode = true}), {0.5, 2.5, 4});
  // The last window may not begin in the padding.
  EXPECT_EQ(max_pool1d(x, 2, {.padding = 1, .ceil_mode = true}).size(2), 3);
  // Padding counts, the overhang beyond it does not.
  expect_near(avg_pool1d(x, 4, {.padding = 1, .ceil_mode = true}), {0.75, 7.0 / 3});
  expect_near(avg_pool1d(x, 4, {.stride = 4, .padding = 2, .ceil_mode = true}), {0.25, 2.25});
  expect_near(avg_pool1d(x, 4, {.stride = 4, .padding = 2, .count_include_pad = false}), {0.5, 3});
}

// As in PyTorch, also if not even the first window fits.
TEST(Pools, HangOverASmallImageInCeilMode) {
  const Tensor x = from({1, 2, 3, 4}, {1, 1, 2, 2}).set_requires_grad();
  const PoolOptions by_two{.stride = 2, .ceil_mode = true};
  EXPECT_EQ(to_vector(max_pool2d(x, 3, by_two)), (std::vector<double>{4}));
  EXPECT_EQ(to_vector(avg_pool2d(x, 3, by_two)), (std::vector<double>{2.5}));
  EXPECT_EQ(to_vector(grad({avg_pool2d(x, 3, by_two)}, {x})[0]), std::vector<double>(4, 0.25));
  const Tensor padded = avg_pool2d(x, {3, 2}, {.stride = 2, .padding = {1, 0}, .ceil_mode = true});
  EXPECT_EQ(padded.shape(), (Shape{1, 1, 2, 1}));
  EXPECT_FLOAT_EQ(float(padded.at(0)), 10.0f / 6);
  EXPECT_EQ(padded.at(1), 1.75);
}

TEST(Pools, NanWins) {
  const Tensor x = count({1, 1, 3, 3});
  x.set(4, nan);
  const Tensor y = max_pool2d(x, {2, 2}, {.stride = {1, 1}});
  for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(y.at(i)));
  EXPECT_TRUE(std::isnan(adaptive_max_pool2d(x, {1, 1}).item()));
}

TEST(Pools, OfNarrowNumbersSumInF32) {
  const Tensor x = full({1, 1, 64, 64}, 40000, f16);
  EXPECT_EQ(avg_pool2d(x, {64, 64}).item(), 40000);
  EXPECT_EQ(adaptive_avg_pool2d(x, {1, 1}).item(), 40000);
  // Overlapping windows: 9 gradients of 1000.25 are rounded once.
  const Tensor leaf = zeros({1, 1, 5, 5}, f16).set_requires_grad();
  leaf.set(12, 1);
  const Tensor y = max_pool2d(leaf, {3, 3}, {.stride = {1, 1}});
  y.backward({.gradient = full({1, 1, 3, 3}, 1000.5, f16)});
  EXPECT_EQ(leaf.grad().at(12), 9008) << "9004.5 between 9000 and 9008";
}

// --- images ---

TEST(Interpolate, RefusesWhatDoesNotFit) {
  const Tensor x = image();
  EXPECT_ERROR(interpolate(ones({2, 3}), {2, 2}),
               "interpolate: the input has shape [2, 3], not [n, c, h, w]");
  EXPECT_ERROR(interpolate(x, {2, 0}), "sizes must be > 0, got 5 elements to resize to 0");
  EXPECT_ERROR(interpolate(ones({1, 2, 0, 3}), {2, 2}),
               "sizes must be > 0, got 0 elements to resize to 2");
  EXPECT_EQ(interpolate(ones({1, 1, 4, 5}), {.scale_factor = 1.5}).shape(), (Shape{1, 1, 6, 7}));
  EXPECT_ERROR(interpolate(ones({1, 1, 4, 5}), {.scale_factor = 0.1}),
               "interpolate: scale_factor times 4 must be >= 1 and below 2^31, got 0.4");
  EXPECT_ERROR(max_unpool2d(ones({2, 2}), zeros({2, 2}, i64), 2),
               "max_unpool2d: the input has shape [2, 2], not [n, c, h, w]");
  EXPECT_ERROR(max_unpool2d(ones({1, 2, 2}), full({1, 2, 2}, 16, i64), 2),
               "index 16 is out of range");
  EXPECT_ERROR(max_unpool2d(ones({1, 2, 2}), zeros({1, 2, 3}, i64), 2),
               "max_unpool2d: the tensor of indices");
  EXPECT_EQ(max_unpool2d(ones({1, 2, 2}), zeros({1, 2, 2}, i64), 2, {}, Size2(5, 4)).shape(),
            (Shape{1, 5, 4}));
  EXPECT_ERROR(max_unpool2d(ones({1, 2, 2}), zeros({1, 2, 2}, i64), 2, {}, Size2(6, 4)),
               "max_unpool2d: images of 6 elements have 3 windows, the input has 2 maxima");
  EXPECT_ERROR(max_unpool2d(ones({1, 2, 2}), zeros({1, 2, 2}, i64), 2, {.stride = -1}),
               "max_unpool2d: window and stride must be > 0 and together below 2^63, got 2 and -1");
  EXPECT_ERROR(interpolate(ones({4}), {.scale_factor = 2}), "interpolate: ");
  EXPECT_ERROR(interpolate(ones({2, 3, 4}), {2, 3}), "[2, 3, 4], not [n, c, h, w]");
  EXPECT_ERROR(interpolate(x, {.mode = Interpolation::Bilinear}),
               "interpolate: neither a size nor a scale_factor is given");
  EXPECT_ERROR(interpolate(x, {2, 2}, {.scale_factor = 2}),
               "interpolate: both a size and a scale_factor are given");
  EXPECT_ERROR(interpolate(x, {2, 2}, {.mode = Interpolation::Trilinear}),
               "interpolate: mode is Trilinear, which interpolate3d takes");
  EXPECT_ERROR(interpolate(x, {2, 2}, {.mode = Interpolation::Area, .antialias = true}),
               "interpolate: antialiasing is for Bilinear and Bicubic");
  const Tensor volume = ones({1, 1, 2, 3, 4});
  EXPECT_ERROR(interpolate3d(volume, 2, {.mode = Interpolation::Bilinear}),
               "interpolate3d: the mode must be Nearest, Trilinear or Area, got number 1");
  EXPECT_ERROR(interpolate3d(volume, 2, {.mode = Interpolation::Trilinear, .antialias = true}),
               "interpolate3d: antialiasing is for images");
  EXPECT_ERROR(interpolate3d(x, 2), "interpolate3d: the input has shape [1, 2, 4, 5], not");
  EXPECT_ERROR(interpolate(x, {2, 2}, {.align_corners = true}),
               "align_corners is for Bilinear and Bicubic");
  EXPECT_ERROR(pixel_shuffle(x, 2),
               "pixel_shuffle: 2 channels do not divide into squares of 2 x 2");
  EXPECT_ERROR(pixel_shuffle(x, 0), "squares of 0 x 0");
  EXPECT_ERROR(pixel_shuffle(x, int64_t(1) << 32), "2 channels do not divide");
  EXPECT_ERROR(pixel_shuffle(ones({4, 2}), 2), "pixel_shuffle: the input has shape [4, 2]");
  EXPECT_ERROR(pixel_unshuffle(x, 2), "4 x 5 pixels do not divide into squares of 2 x 2");
  constexpr int64_t huge = int64_t(1) << 62;
  EXPECT_ERROR(interpolate(x, {huge, 1}, {.mode = Interpolation::Bilinear, .antialias = true}),
               "planes of [4611686018427387904, 1] elements");
  EXPECT_ERROR(pixel_shuffle(x, huge), "2 channels do not divide");
  EXPECT_ERROR(pixel_shuffle(expand(ones({1, 1, 1, 1}), {1, huge, 1, 1}), int64_t(1) << 32),
               "channels do not divide into squares of 4294967296 x 4294967296");
  EXPECT_ERROR(pixel_unshuffle(ones({1, 2, 0, 0}), huge), "too many elements");
  EXPECT_ERROR(channel_shuffle(x, 3), "channel_shuffle: 2 channels do not divide into 3 groups");
  EXPECT_ERROR(channel_shuffle(ones({2, 2}), 2),
               "channel_shuffle: the input has shape [2, 2], not [n, c, ...]");
}

TEST(Interpolate, ToTheSameSizeIsTheImage) {
  const Tensor x = randn({2, 3, 7, 9});
  for (const Interpolation mode : {Interpolation::Bilinear, Interpolation::Bicubic})
    for (const bool corners : {false, true})
      EXPECT_EQ(to_vector(interpolate(x, {7, 9}, {.mode = mode, .align_corners = corners})),
                to_vector(x));
  EXPECT_EQ(to_vector(interpolate(x, {7, 9})), to_vector(x));
}

TEST(PixelShuffle, IsUndoneByItsInverse) {
  const Tensor x = count({2, 12, 3, 2});
  const Tensor y = pixel_shuffle(x, 2);
  EXPECT_EQ(y.shape(), Shape({2, 3, 6, 4}));
  EXPECT_EQ(to_vector(select(select(select(y, 0, 0), 0, 0), 0, 0)), (Values{0, 6, 1, 7}));
  EXPECT_EQ(to_vector(pixel_unshuffle(y, 2)), to_vector(x));
}

TEST(Networks, RefuseElementsThatAreNoFloats) {
  for (const DType dtype : {i64, i32, u8, boolean}) {
    const Tensor x = ones({2, 3, 4, 5}, dtype), w = ones({2, 3, 2, 2}, dtype),
                 m = ones({4, 4}, dtype), c = ones({2}, i64);
    const Tensor gates = ones({2, 4, 4}, dtype);
    const std::string refusal =
        fmt::format("elements must be floats, got {} (convert them to a float dtype)", dtype);
    EXPECT_ERROR(layer_norm(x, {5}), "layer_norm: " + refusal);
    EXPECT_ERROR(rms_norm(x, {5}), refusal);
    EXPECT_ERROR(group_norm(x, 3), refusal);
    EXPECT_ERROR(instance_norm(x), refusal);
    EXPECT_ERROR(batch_norm(x, {}, {}, {}, {}, {.training = true}), refusal);
    EXPECT_ERROR(conv2d(x, w), refusal);
    EXPECT_ERROR(conv_transpose2d(x, ones({3, 1, 2, 2}, dtype)), refusal);
    EXPECT_ERROR(linear(m, m), "linear: " + refusal);
    EXPECT_ERROR(rnn_tanh(gates, m, {}, {}), refusal);
    EXPECT_ERROR(cross_entropy(ones({2, 3}, dtype), c), refusal);
    EXPECT_ERROR(nll_loss(ones({2, 3}, dtype), c), refusal);
    EXPECT_ERROR(cosine_similarity(m, m), refusal);
    EXPECT_ERROR(max_pool2d(x, {2, 2}), refusal);
    EXPECT_ERROR(avg_pool2d(x, {2, 2}), refusal);
    EXPECT_ERROR(adaptive_avg_pool2d(x, {2, 2}), refusal);
    EXPECT_ERROR(interpolate(x, {2, 2}), refusal);
    EXPECT_ERROR(logsumexp(x), refusal);
  }
}

// --- norms ---

TEST(Norms, RefuseWhatDoesNotFit) {
  const Tensor x = image({2, 6, 3, 3});
  EXPECT_ERROR(rms_norm(x, {4}),
               "rms_norm: the last dimensions must be [4], got an input of shape [2, 6, 3, 3]");
  EXPECT_ERROR(rms_norm(x, {3}, ones({2})), "rms_norm: the weight has shape [2], not [3]");
  EXPECT_ERROR(group_norm(ones({3}), 1), "group_norm: the input has shape [3], not [n, c, ...]");
  EXPECT_ERROR(group_norm(x, 4), "group_norm: 6 channels do not divide into 4 groups");
  EXPECT_ERROR(group_norm(x, 3, ones({3})),
               "group_norm: the input of shape [2, 6, 3, 3] has 6 channels, the weight is [3]");
  EXPECT_ERROR(group_norm(x, 3, {}, ones({5})), "6 channels, the bias is [5]");
  EXPECT_ERROR(batch_norm(ones({3}), {}, {}),
               "batch_norm: the input has shape [3], not [n, c, ...]");
  EXPECT_ERROR(batch_norm(x, {}, {}), "batch_norm: evaluation needs running statistics");
  EXPECT_ERROR(batch_norm(x, ones({6}), {}, {}, {}, {.training = true}),
               "batch_norm: running mean and variance must be given together");
  EXPECT_ERROR(batch_norm(x, ones({5}), ones({6})), "6 channels, the running mean is [5]");
  EXPECT_ERROR(batch_norm(ones({1, 6, 1}), {}, {}, {}, {}, {.training = true}),
               "batch_norm: training needs more than one value per channel: shape [1, 6, 1]");
  EXPECT_ERROR(instance_norm(ones({2, 3})), "needs more than one value per channel: shape [2, 3]");
  EXPECT_ERROR(instance_norm(ones({2, 3, 1})), "needs more than one value per channel");
}

TEST(Norms, OfGroupsLieBetweenThoseOfLayersAndInstances) {
  const Tensor x = randn({2, 4, 3, 5});
  const Tensor layers = layer_norm(x, {4, 3, 5}), one = group_norm(x, 1);
  const Tensor instances = instance_norm(x), each = group_norm(x, 4);
  for (int64_t i = 0; i < x.numel(); ++i) {
    EXPECT_NEAR(one.at(i), layers.at(i), 1e-6);
    EXPECT_EQ(each.at(i), instances.at(i));
  }
}

// An overflow stays at its element.
TEST(BatchNorm, FixedStatisticsPassGradientsOneByOne) {
  const Tensor x = count({1, 1, 4}).set_requires_grad(), running = full({1}, 4);
  const Tensor y = batch_norm(x, running, running, full({1}, 3), {}, {.eps = 0});
  const auto dx = grad({y}, {x}, {.gradients = {from({inf, 2, -inf, 4}, {1, 1, 4})}});
  EXPECT_EQ(to_vector(dx[0]), (Values{inf, 3, -inf, 6}));
}

TEST(RmsNorm, KeepsNarrowActivationsBesideAWideWeight) {
  const amp::Autocast on({.low = bf16});
  const Tensor x = full({2, 8}, 3, bf16), w = full({8}, 1.001);
  EXPECT_EQ(rms_norm(x, {8}, w).dtype(), bf16);
  // Squares of 300 overflow f16, their root mean square does not.
  expect_near(rms_norm(full({1, 8}, 300, f16), {8}, ones({8})), Values(8, 1), 1e-3);
}

// --- attention ---

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o = {}) {
  return scaled_dot_product_attention(q, k, v, o);
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const Tensor q = ones({2, 3, 4}), k = ones({2, 5, 4}), v = ones({2, 5, 6});
  EXPECT_ERROR(attend(ones({4}), k, v),
               "scaled_dot_product_attention: queries [4], keys [2, 5, 4] and values [2, 5, 6] "
               "need at least two dimensions");
  EXPECT_ERROR(attend(q, v, v), "queries have 4 features, keys 6");
  EXPECT_ERROR(attend(q, k, ones({2, 4, 6})), "5 keys need as many values, got 4");
  EXPECT_ERROR(attend(q, ones({3, 5, 4}), v), "shapes [2] and [3] do not broadcast");
  EXPECT_ERROR(attend(q, k, v, {.mask = ones({3, 5}), .causal = true}), "a mask excludes causal");
  EXPECT_ERROR(attend(q, k, v, {.mask = ones({3, 5}, i64)}),
               "the mask must be bool or a float, got i64");
  EXPECT_ERROR(attend(q, k, v, {.mask = ones({5, 3})}), "[5, 3] cannot expand to [2, 3, 5]");
  EXPECT_ERROR(attend(q, k, v, {.mask = ones({3, 5}, f64)}), "beside f32 activations");
  EXPECT_ERROR(attend(q, k, v, {.dropout = 1.5}), "the probability must be from 0 to 1, got 1.5");
  const Tensor n = ones({2, 3}, i64);
  EXPECT_ERROR(attend(n, n, n), "elements must be floats, got i64");
}

// As 1 x 1 convolutions give them: q, k and v in one tensor, their features apart in memory. (With
// so many heads and queries the CPU, too, goes by blocks of queries.)
TEST(Attention, HasGradientsOfFeaturesThatLieApart) {
  const Seed seed(5);
  const bool host = DefaultDevice::current().is_host();
  const int64_t heads = host ? 32 : 2, t = host ? 512 : 40;
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = cast(randn({1, 3, heads, 16, t}), dtype).detach().set_requires_grad(),
                 dy = cast(randn({1, heads, t, 16}), dtype);
    const auto gradient = [&](bool apart) {
      std::vector<Tensor> qkv;
      for (const int i : {0, 1, 2}) {
        const Tensor part = transpose(select(x, 1, i), -1, -2);
        qkv.push_back(apart ? part : part.contiguous());
      }
      const Tensor y = attend(qkv[0], qkv[1], qkv[2], {.causal = true});
      return grad({y}, {x}, {.gradients = {dy}})[0];
    };
    const Tensor want = gradient(false);
    EXPECT_LE(norm(gradient(true) - want).item(), (dtype == f32 ? 1e-5 : 1e-2) * norm(want).item());
  }
}

// By blocks of queries or on tensor cores, as above.
TEST(Attention, HasEachGradientAlone) {
  const bool host = DefaultDevice::current().is_host();
  const Shape shape{1, host ? 32 : 2, host ? 512 : 40, 32};
  const auto gradients = [&](int alone) {
    const Seed seed(5);
    std::vector<Tensor> qkv, leaves;
    for (const int i : {0, 1, 2}) {
      qkv.push_back(randn(shape).to(f16));
      if (alone < 0 || alone == i) leaves.push_back(qkv.back().set_requires_grad());
    }
    return grad({sum(square(attend(qkv[0], qkv[1], qkv[2], {.causal = true})))}, leaves);
  };
  const std::vector<Tensor> all = gradients(-1);
  for (const int i : {0, 1, 2})
    EXPECT_LE(max(abs(gradients(i)[0] - all[size_t(i)])).item(), 1e-3) << i;
}

TEST(Attention, GroupsOfHeadsShareKeys) {
  const Seed seed(5);
  const Tensor q = randn({2, 4, 3, 8}), k = randn({2, 2, 5, 8}), v = randn({2, 2, 5, 8});
  const auto all = [](const Tensor& t) { return repeat_interleave(t, 2, 1); };
  for (const Tensor& mask : {gt(randn({3, 5}), -0.5), gt(randn({2, 1, 3, 5}), -0.5),
                             gt(randn({4, 3, 5}), -0.5), gt(randn({2, 4, 3, 5}), -0.5)})
    EXPECT_TRUE(allclose(attend(q, k, v, {.mask = mask, .enable_gqa = true}),
                         attend(q, all(k), all(v), {.mask = mask})));
  const Tensor joined = flatten(transpose(attend(q, k, v, {.enable_gqa = true}), 1, 2), 2, 3);
  EXPECT_TRUE(joined.is_contiguous());
  EXPECT_ERROR(attend(q, narrow(k, 1, 0, 1), v, {.enable_gqa = true}),
               "scaled_dot_product_attention: heads of queries [2, 4, 3, 8], keys [2, 1, 5, 8] and "
               "values [2, 2, 5, 8] do not form groups");
  EXPECT_ERROR(attend(q, k, v, {.mask = gt(randn({2, 3, 5}), 0), .enable_gqa = true}),
               "the mask of 4 grouped heads has shape [2, 3, 5], not [..., 1 or 4, queries, keys]");
  for (const int64_t t : {1, 3}) {  // leading dimensions broadcast
    const Tensor one = narrow(select(q, 0, 0), 1, 0, t);
    for (const Tensor& queries : {one, unsqueeze(one, 0)})
      EXPECT_TRUE(allclose(attend(queries, k, v, {.enable_gqa = true}),
                           attend(queries, all(k), all(v), {})));
  }
}

TEST(RotaryEmbedding, RefusesWhatDoesNotFit) {
  const Tensor x = ones({2, 3, 8}), angles = ones({3, 4});
  EXPECT_ERROR(rotary_embedding(ones({3, 7}), angles, angles),
               "rotary_embedding: the input has shape [3, 7], not [..., t, an even size]");
  EXPECT_ERROR(rotary_embedding(x, ones({2, 4}), angles),
               "rotary_embedding: the table of cosines has shape [2, 4], not [3, 4]");
  EXPECT_ERROR(rotary_embedding(x, angles, ones({3, 8})),
               "the table of sines has shape [3, 8], not [3, 4]");
}

// Heads that lie side by side stay so: they are joined next.
TEST(RotaryEmbedding, KeepsTheOrderOfHeads) {
  const Tensor x = transpose(reshape(count({1, 3, 8}), {1, 3, 2, 4}), 1, 2);
  const Tensor y = rotary_embedding(x, ones({3, 2}), zeros({3, 2}));
  EXPECT_EQ(y.strides(), x.strides());
  EXPECT_TRUE(equal(y, x));
}

TEST(Attention, SecondOrderSeesTheLowestScores) {
  const Tensor q = ones({1, 1, 2}).set_requires_grad(),
               kv = from({1, 2, 3, 4}, {1, 2, 2}).set_requires_grad();
  const Tensor mask = from({-3.4028234e38, -INFINITY}, {1, 2});
  const Tensor y = sum(scaled_dot_product_attention(q, kv, kv, {.mask = mask}));
  for (const bool create_graph : {false, true})
    EXPECT_EQ(
        to_vector(
            grad({y}, {kv}, {.retain_graph = true, .create_graph = create_graph})[0].detach()),
        (std::vector<double>{1, 1, 0, 0}));
}

// A query without keys, by each kind of mask.
TEST(Attention, OfNothingIsZeroAndHasNoGradient) {
  const Tensor allowed = from({0, 0, 1, 1}, {2, 2}, boolean),
               bias = from({-inf, -inf, 0, 1}, {2, 2});
  for (const Tensor& mask : {allowed, bias})
    for (const bool again : {false, true}) {
      const Tensor q = randn({2, 3}).set_requires_grad(), k = randn({2, 3}).set_requires_grad(),
                   v = randn({2, 3}).set_requires_grad();
      const Tensor y = attend(q, k, v, {.mask = mask});
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(y.at(i), 0);
      Tensor dq = grad({sum(y * y)}, {q}, {.retain_graph = true, .create_graph = again})[0];
      if (again) dq = grad({sum(dq * dq)}, {q}, {.retain_graph = true})[0];
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(dq.at(i), 0);
      for (int64_t i = 3; i < 6; ++i) EXPECT_TRUE(std::isfinite(dq.at(i)) && dq.at(i) != 0);
      for (const Tensor& g : grad({sum(y * y)}, {k, v}))
        for (int64_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isfinite(g.at(i)));
    }
}

TEST(Attention, CausalQueriesSeeTheKeysUpToTheirOwnPosition) {
  for (const auto& [queries, keys] : {std::pair<int64_t, int64_t>{3, 5}, {5, 3}}) {
    const Tensor y = attend(zeros({queries, 2}), zeros({keys, 2}), eye(keys), {.causal = true});
    for (int64_t i = 0; i < queries; ++i)
      for (int64_t j = 0; j < keys; ++j)
        EXPECT_NEAR(y.at(i * keys + j), j <= i ? 1.0 / double(std::min(i + 1, keys)) : 0, 1e-6);
  }
}

TEST(Attention, ScoresOfNarrowNumbersAreF32) {
  // 256 * 256 * 64 / 8 overflows f16; bf16 does not resolve a difference of 1 in 2^19.
  for (const DType dtype : {f16, bf16}) {
    const Tensor q = full({1, 64}, 256, dtype), v = from({0, 1}, {2, 1}, dtype);
    const Tensor k = full({2, 64}, 256, dtype);
    for (int64_t i = 64; i < 68; ++i) k.set(i, 258);
    const Tensor y = attend(q, k, v, {.scale = 1.0 / 1024});
    EXPECT_NEAR(y.item(), 1 / (1 + std::exp(-2)), 4e-3);
  }
}

// The rounding error of a score is as large as a whole exponent: equal keys have equal shares only
// if backward rounds as forward did.
TEST(Attention, BackwardKnowsHugeScoresAsForwardDid) {
  for (const DType dtype : {f32, f16, bf16}) {
    const Tensor x = full({3, 64}, 720, dtype);
    const Tensor v = zeros({3, 64}, dtype).set_requires_grad();
    sum(attend(x, x, v, {.scale = 0.7})).backward();
    for (int64_t i = 0; i < 64; ++i) EXPECT_NEAR(v.grad().at(i), 1, 4e-3);
  }
}

TEST(Attention, IsLowBesideAWideMask) {
  const Tensor x = randn({2, 3, 4}), mask = randn({3, 3}).set_requires_grad();
  for (const amp::Preset preset : {amp::Preset::Torch, amp::Preset::Safe}) {
    const amp::Autocast on({.low = bf16, .preset = preset});
    const Tensor y = attend(x, x, x, {.mask = mask});
    EXPECT_EQ(y.dtype(), preset == amp::Preset::Safe ? f32 : bf16);
    sum(y * y).backward();
    EXPECT_EQ(mask.grad().dtype(), f32);
  }
}

TEST(Attention, DropsProbabilities) {
  const Tensor q = zeros({200, 4}), v = ones({200, 4});
  EXPECT_EQ(sum(attend(q, q, v, {.dropout = 1})).item(), 0);
  const Seed seed(3);
  const Tensor y = attend(q, q, v, {.dropout = 0.25});
  EXPECT_NE(y.at(0), 1);
  EXPECT_NEAR(mean(y).item(), 1, 0.02);
}

// From 512 queries on, causal attention on the CPU computes the keys that are seen, block by block.
TEST(Attention, CausalIsAMaskOfATriangle) {
  const DefaultDevice here(Device::cpu());
  const Tensor triangle = tril(ones({512, 512})).to(boolean);
  for (const DType dtype : {f32, bf16}) {
    Tensor x[3];
    for (Tensor& t : x) t = randn({32, 512, 3}, dtype).set_requires_grad();
    const auto run = [&](const AttentionOptions& o) {
      const Tensor y = attend(x[0], x[1], x[2], o);
      std::vector<Tensor> all = grad({sum(y * y)}, {x[0], x[1], x[2]});
      all.push_back(y.detach());
      return all;
    };
    const std::vector<Tensor> blocks = run({.causal = true}), whole = run({.mask = triangle});
    for (size_t i = 0; i < 4; ++i)
      expect_near(blocks[i], to_vector(whole[i]), dtype == f32 ? 1e-4 : 0.25);
  }
}

// --- inputs without a batch ---

// Lines, images and volumes alike, as in PyTorch.
TEST(WithoutABatch, IsABatchOfOne) {
  using X = const Tensor&;
  struct Case {
    Shape shape;
    Tensor (*f)(X);
  };
  const Case cases[] = {
      {{2, 5}, [](X x) { return conv1d(x, count({3, 2, 2}), count({3}), {.stride = 2}); }},
      {{2, 4, 5}, [](X x) { return conv2d(x, count({3, 2, 2, 2}), count({3}), {.padding = 1}); }},
      {{2, 3, 4, 5}, [](X x) { return conv3d(x, count({3, 2, 2, 2, 2}), count({3})); }},
      {{2, 5}, [](X x) { return conv_transpose1d(x, count({2, 3, 2}), count({3})); }},
      {{2, 4, 5}, [](X x) { return conv_transpose2d(x, count({2, 3, 2, 2}), count({3})); }},
      {{2, 3, 4, 5}, [](X x) { return conv_transpose3d(x, count({2, 3, 2, 2, 2}), count({3})); }},
      {{2, 5}, [](X x) { return max_pool1d(x, 2); }},
      {{2, 4, 5}, [](X x) { return max_pool2d(x, 2); }},
      {{2, 3, 4, 5}, [](X x) { return max_pool3d(x, 2); }},
      {{2, 5}, [](X x) { return avg_pool1d(x, 2); }},
      {{2, 4, 5}, [](X x) { return avg_pool2d(x, 2); }},
      {{2, 3, 4, 5}, [](X x) { return avg_pool3d(x, {1, 2, 3}); }},
      {{2, 5}, [](X x) { return adaptive_max_pool1d(x, 2); }},
      {{2, 4, 5}, [](X x) { return adaptive_max_pool2d(x, 2); }},
      {{2, 5}, [](X x) { return adaptive_avg_pool1d(x, 2); }},
      {{2, 4, 5}, [](X x) { return adaptive_avg_pool2d(x, 2); }},
      {{2, 3, 4, 5}, [](X x) { return adaptive_avg_pool3d(x, {2, 1, 3}); }},
      {{2, 4, 5}, [](X x) { return unfold(x, 2, {.stride = 2}); }},
      {{8, 6}, [](X x) { return fold(x, {3, 4}, 2); }},
      {{4, 2, 3}, [](X x) { return pixel_shuffle(x, 2); }},
      {{2, 4, 6}, [](X x) { return pixel_unshuffle(x, 2); }},
  };
  for (const Case& c : cases) {
    const Tensor x = count(c.shape).set_requires_grad(), y = c.f(x);
    const Tensor batch = count(c.shape).set_requires_grad(), want = c.f(unsqueeze(batch, 0));
    ASSERT_EQ(want.size(0), 1);
    EXPECT_TRUE(equal(y, squeeze(want, 0))) << y.shape() << ", not " << want.shape();
    EXPECT_TRUE(equal(grad({sum(y * y)}, {x})[0], grad({sum(want * want)}, {batch})[0]));
  }
}

}  // namespace networks_test
}  // namespace mixtape
