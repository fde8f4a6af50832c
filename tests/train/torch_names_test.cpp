// PyTorch's names for things that have another name here, as people first type them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/ops.h"
#include "core/random.h"
#include "io/safetensors.h"
#include "nn/nn.h"
#include "optim/clip.h"
#include "optim/optimizers.h"
#include "optim/plateau.h"
#include "optim/schedules.h"
#include "tests/support/errors.h"
#include "tests/support/temp_folder.h"
#include "train/data/dataset.h"
#include "train/data/transforms.h"

namespace mixtape {
namespace torch_names_test {

using namespace test;

TEST(TorchNames, OfConvolutions) {
  EXPECT_EQ(nn::Conv2d(1, 2, 3, 2, 1)(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 4, 4}));
  EXPECT_EQ(nn::Conv2d(1, 2, {3, 1}, 1, {1, 0})(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 8, 8}));
  EXPECT_EQ(nn::Conv2d(1, 2, 3, 2)(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 3, 3}));
  EXPECT_EQ(nn::Conv1d(1, 2, 3, 2, 1)(zeros({1, 1, 8})).shape(), (Shape{1, 2, 4}));
  EXPECT_EQ(nn::ConvTranspose1d(1, 2, 4, 2, 1)(zeros({1, 1, 8})).shape(), (Shape{1, 2, 16}));
  EXPECT_EQ(nn::ConvTranspose2d(1, 2, 4, 2, 1)(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 16, 16}));
  EXPECT_EQ(nn::Conv2d(1, 2, 3, {.padding = 1})(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 8, 8}));
  EXPECT_EQ(nn::Conv2d(1, 2, 3, {2, 1})(zeros({1, 1, 8, 8})).shape(), (Shape{1, 2, 3, 6}));
}

TEST(TorchNames, OptionsByPosition) {
  const Seed seed(1);
  const Tensor line = randn({1, 2, 5}), image = randn({1, 2, 5, 4}),
               volume = randn({1, 2, 5, 4, 3});
  const Tensor w1 = randn({2, 2, 3}), w2 = randn({2, 2, 3, 2}), w3 = randn({2, 2, 3, 2, 1});
  EXPECT_TRUE(equal(conv3d(volume, w3, {}, 2, {1, 0, 0}),
                    conv3d(volume, w3, {}, {.stride = 2, .padding = {1, 0, 0}})));
  EXPECT_TRUE(equal(conv3d(volume, w3.narrow(1, 0, 1), {}, 1, 0, {1, 2, 1}, 2),
                    conv3d(volume, w3.narrow(1, 0, 1), {}, {.dilation = {1, 2, 1}, .groups = 2})));
  EXPECT_TRUE(
      equal(conv_transpose1d(line, w1, {}, 2, 1, 1, 2, 3),
            conv_transpose1d(
                line, w1, {},
                {.stride = 2, .padding = 1, .output_padding = 1, .dilation = 3, .groups = 2})));
  EXPECT_TRUE(equal(conv_transpose2d(image, w2, {}, 2, 1),
                    conv_transpose2d(image, w2, {}, {.stride = 2, .padding = 1})));
  EXPECT_TRUE(
      equal(conv_transpose2d(image, w2, {}, {2, 1}, 0, {1, 0}, 2, {1, 3}),
            conv_transpose2d(
                image, w2, {},
                {.stride = {2, 1}, .output_padding = {1, 0}, .dilation = {1, 3}, .groups = 2})));
  EXPECT_TRUE(equal(conv_transpose3d(volume, w3, {}, 2, 1, {1, 0, 0}, 2, {1, 2, 1}),
                    conv_transpose3d(volume, w3, {},
                                     {.stride = 2,
                                      .padding = 1,
                                      .output_padding = {1, 0, 0},
                                      .dilation = {1, 2, 1},
                                      .groups = 2})));
  EXPECT_TRUE(equal(max_pool3d(volume, 2, 1, 1, {2, 1, 1}),
                    max_pool3d(volume, 2, {.stride = 1, .padding = 1, .dilation = {2, 1, 1}})));
  EXPECT_TRUE(equal(avg_pool3d(volume, 2, {1, 2, 1}, 1),
                    avg_pool3d(volume, 2, {.stride = {1, 2, 1}, .padding = 1})));
  const Tensor mean = zeros({2}), var = ones({2}), mean2 = zeros({2}), var2 = ones({2});
  EXPECT_TRUE(equal(
      batch_norm(image, mean, var, {}, {}, true, 0.5, 1e-3),
      batch_norm(image, mean2, var2, {}, {}, {.training = true, .momentum = 0.5, .eps = 1e-3})));
  EXPECT_TRUE(equal(mean, mean2) && equal(var, var2));
}

TEST(TorchNames, OptionsByName) {
  const Tensor x = tensor({{3, 4}, {0, 2}}), sorted = tensor({1, 2, 3});
  EXPECT_TRUE(equal(normalize(x, {.dim = -1}), normalize(x, 2, -1)));
  EXPECT_TRUE(equal(normalize(x, {.p = 1, .eps = 5}), normalize(x, 1, 1, 5)));
  EXPECT_TRUE(equal(searchsorted(sorted, x, {.right = true}), searchsorted(sorted, x, true)));
  const auto sample = [&](const auto&... options) {
    const Seed seed(1);
    return gumbel_softmax(x, options...);
  };
  EXPECT_TRUE(equal(sample(GumbelSoftmaxOptions{.tau = 0.5, .hard = true, .dim = 0}),
                    sample(0.5, true, 0)));
  EXPECT_TRUE(equal(arange(2, 5, f32), arange(2, 5, 1, f32)));
  EXPECT_EQ(arange(2, 5, f64).dtype(), f64);
}

TEST(TorchNames, OfTensors) {
  const Tensor x = from({1, 2, 3, 4}, {2, 2});
  EXPECT_TRUE(equal(x.view({4}), reshape(x, {4})));
  EXPECT_TRUE(equal(x.exp(), exp(x)));
  EXPECT_TRUE(equal(x.sum(1), sum(x, {1})));
  EXPECT_TRUE(equal(x.mean(0, true), mean(x, {0}, true)));
  EXPECT_TRUE(equal(x.select(0, 1), select(x, 0, 1)));
  EXPECT_TRUE(equal(x.transpose(0, 1), x.t()));
  EXPECT_EQ(x[0].t().shape(), x[0].shape());
  EXPECT_TRUE(equal(x.unsqueeze(0).expand({3, 2, 2}).select(0, 2), x));
  EXPECT_TRUE(equal(x.softmax(1), softmax(x, 1)));
  EXPECT_TRUE(equal(x.argmax(1), argmax(x, 1)));
  EXPECT_TRUE(equal(x.matmul(x), mm(x, x)));
  EXPECT_TRUE(equal(max(x, x.t()), maximum(x, x.t())));
  EXPECT_TRUE(equal(min(x, x.t()), minimum(x, x.t())));
  EXPECT_TRUE(equal(concat({x, x}), cat({x, x})));
  EXPECT_TRUE(equal(vstack({x, from({5, 6}, {2})}), from({1, 2, 3, 4, 5, 6}, {3, 2})));
  EXPECT_TRUE(equal(where(gt(x, 2), 1.0, 0.0), from({0, 0, 1, 1}, {2, 2})));
  EXPECT_TRUE(equal(x.view(-1), reshape(x, {4})));
  EXPECT_TRUE(equal(x.reshape(1, -1), reshape(x, {1, 4})));
  EXPECT_EQ(ones({1}).view({}).shape(), Shape());
  EXPECT_TRUE(equal(x.permute(1, 0), x.t()));
  EXPECT_TRUE(equal(x.permute({1, 0}), x.t()));
  EXPECT_TRUE(equal(x.chunk(2, 1)[1], x(Slice(), Slice(1, 2))));
  EXPECT_TRUE(equal(x.pow(2), square(x)));
  EXPECT_TRUE(equal(x.pow(x), pow(x, x)));
  EXPECT_TRUE(equal(x.clamp({}, 2), clamp(x, {}, 2)));
  EXPECT_TRUE(equal(x.cumsum(0), cumsum(x, 0)));
  EXPECT_TRUE(equal(tensor({1, 2, 3}, f64), from({1, 2, 3}, {3}, f64)));
  EXPECT_TRUE(equal(tensor({{1, 2}, {3, 4}}), x));
  EXPECT_TRUE(equal(tensor({{{1}, {2}}, {{3}, {4}}}, i64), from({1, 2, 3, 4}, {2, 2, 1}, i64)));
  EXPECT_TRUE(equal(tensor({{1}, {2}}), from({1, 2}, {2, 1})));
  EXPECT_EQ(tensor({}).shape(), (Shape{0}));
  EXPECT_EQ(tensor({{}, {}}).shape(), (Shape{2, 0}));
  EXPECT_EQ(tensor(2.5).shape(), Shape());
  EXPECT_EQ(error([] { tensor({{1, 2}, {3}}); }), "rows must have one shape, got [2] and [1]");
  EXPECT_TRUE(equal(hstack({x, x}), cat({x, x}, 1)));
  EXPECT_TRUE(equal(hstack({tensor({1}), tensor({2, 3})}), tensor({1, 2, 3})));
  const Tensor y = x.clone();
  EXPECT_TRUE(y.fill_(3).is_same(y));
  EXPECT_TRUE(equal(y, full({2, 2}, 3)));
  EXPECT_TRUE(equal(y.copy_(x), x));
  EXPECT_TRUE(equal(y.zero_(), zeros({2, 2})));
  EXPECT_TRUE(y.add_(x).is_same(y));
  EXPECT_TRUE(equal(clamp_(y.clone(), 3), clamp(y, 3)));
  EXPECT_TRUE(equal(y.mul_(x).sub_(1), square(x) - 1));
  EXPECT_TRUE(equal(y.add_(1).div_(x).sub_(x), zeros({2, 2})));
  EXPECT_TRUE(equal(y(0).add_(4).div_(2).mul_(3), from({6, 6}, {2})));
  EXPECT_EQ(x.dim(), 2);
  EXPECT_EQ(x.sizes(), x.shape());
  EXPECT_EQ(x.data_ptr(), x.raw());
  EXPECT_TRUE(x.clone().requires_grad_().requires_grad());
  EXPECT_EQ(error([&] { mm(x, from({1, 2}, {2})); }),
            "mm: operands have shapes [2, 2] and [2], not [m, k] and [k, n]");
  EXPECT_TRUE(equal(vstack({full({}, 1), tensor({2})}), tensor({{1}, {2}})));
  EXPECT_TRUE(equal(hstack({full({}, 1), tensor({2, 3}), full({}, 4)}), tensor({1, 2, 3, 4})));
}

TEST(TorchNames, MethodsOfViewsAndIndices) {
  const Tensor x = from({3, 1, 2, 6, 5, 4}, {2, 3}), rows = tensor({1, 0}, i64);
  EXPECT_TRUE(equal(x.expand(2, -1), x));
  EXPECT_TRUE(equal(x.split(2, 1)[1], split(x, 2, 1)[1]));
  EXPECT_TRUE(equal(x.split({1, 2}, 1)[1], split(x, {1, 2}, 1)[1]));
  EXPECT_TRUE(equal(x.unbind(1)[2], select(x, 1, 2)));
  EXPECT_TRUE(equal(x.narrow(1, 1, 2), narrow(x, 1, 1, 2)));
  EXPECT_TRUE(equal(x.unflatten(1, {3, 1}), reshape(x, {2, 3, 1})));
  EXPECT_TRUE(equal(x.repeat(2, 1), repeat(x, {2, 1})));
  EXPECT_TRUE(equal(x.repeat({1, 2}), repeat(x, {1, 2})));
  EXPECT_TRUE(equal(x.flip(1), flip(x, 1)));
  EXPECT_TRUE(equal(x.tril(), tril(x)));
  EXPECT_TRUE(equal(x.triu(1), triu(x, 1)));
  EXPECT_TRUE(equal(x.index_select(0, rows), index_select(x, 0, rows)));
  EXPECT_TRUE(equal(x.gather(1, rows.unsqueeze(1)), gather(x, 1, rows.unsqueeze(1))));
  EXPECT_TRUE(equal(x.masked_select(x > 2), masked_select(x, x > 2)));
  EXPECT_TRUE(equal(x.masked_fill(x > 2, 0), masked_fill(x, x > 2, 0)));
  EXPECT_TRUE(equal((x - 3).nonzero(), nonzero(x - 3)));
  EXPECT_TRUE(equal(x.sort().values, sort(x).values));
  EXPECT_TRUE(equal(x.sort(0, true).indices, sort(x, 0, true).indices));
  EXPECT_TRUE(equal(x.topk(2).indices, topk(x, 2).indices));
  EXPECT_TRUE(equal(x.topk(1, 0, false).values, topk(x, 1, 0, false).values));
  EXPECT_TRUE(equal(x.argsort(), argsort(x)));
  EXPECT_TRUE(equal(x.argsort(0, true), argsort(x, 0, true)));
  EXPECT_TRUE(equal(x.argmax(1, true), argmax(x, 1, true)));
  EXPECT_TRUE(equal(x.argmin(1), argmin(x, 1)));
  EXPECT_TRUE(equal(x.argmin(), argmin(x)));
}

TEST(TorchNames, MethodsThatGatherAndScatter) {
  const Tensor x = from({3, 1, 2, 6, 5, 4}, {2, 3}), rows = tensor({1, 0}, i64);
  const Tensor index = tensor({{1, 0, 1}}, i64), source = tensor({{7, 8, 9}});
  EXPECT_TRUE(equal(x.scatter(0, index, source), scatter(x, 0, index, source)));
  EXPECT_TRUE(equal(x.scatter(0, index, 5), scatter(x, 0, index, 5)));
  EXPECT_TRUE(equal(x.scatter_add(0, index, source), scatter_add(x, 0, index, source)));
  EXPECT_TRUE(equal(x.scatter_reduce(0, index, source, "prod"),
                    scatter_reduce(x, 0, index, source, "prod")));
  EXPECT_TRUE(equal(x.scatter_reduce(0, index, source, "amin", false),
                    scatter_reduce(x, 0, index, source, "amin", {.include_self = false})));
  EXPECT_TRUE(equal(x.view(1, 2, 1, 3).squeeze({0, 2, 3}), x));
  EXPECT_TRUE(equal(x.view(1, 2, 1, 3).squeeze(), x));
  EXPECT_TRUE(equal(x.index_add(0, rows, x), x + x(rows)));
  EXPECT_TRUE(equal(x.slice(1, 1), x(Slice(), Slice(1, None))));
  EXPECT_TRUE(equal(x.slice(1, 0, -1, 2), x(Slice(), Slice(0, -1, 2))));
  EXPECT_TRUE(equal(x(0).expand_as(x), expand(x(0), {2, 3})));
  EXPECT_TRUE(equal(x.flatten().view_as(x), x));
  EXPECT_TRUE(equal(x.repeat_interleave(2, 1), repeat_interleave(x, 2, 1)));
  EXPECT_TRUE(x.defined() && !Tensor().defined());
  EXPECT_TRUE(equal(x.roll(1, 1), roll(x, 1, 1)));
  EXPECT_TRUE(equal(x(0).dot(x(1)), dot(x(0), x(1))));
  EXPECT_TRUE(equal(x.mv(x(1)), mv(x, x(1))));
  EXPECT_TRUE(equal(x(0).outer(x(1)), outer(x(0), x(1))));
  EXPECT_TRUE(equal(x.lerp(zeros({2, 3}), 0.25), x * 0.75));
  EXPECT_TRUE(equal(x.movedim(0, 1), x.t()));
  EXPECT_TRUE(equal(x.unfold(1, 2, 1), unfold(x, 1, 2, 1)));
  EXPECT_TRUE(equal(x.clamp_min(2), clamp(x, 2)));
  EXPECT_TRUE(equal(x.clamp_max(2), clamp(x, {}, 2)));
}

TEST(TorchNames, MethodsInPlace) {
  const Tensor x = from({3, 1, 2, 6, 5, 4}, {2, 3}), rows = tensor({1, 1}, i64);
  const Tensor index = tensor({{1, 0, 1}}, i64), source = tensor({{7, 8, 9}});
  const Tensor y = x.clone(), whole = y.t();  // a view sees the writes
  EXPECT_TRUE(y.masked_fill_(x > 4, -1).is_same(y));
  EXPECT_TRUE(equal(whole.t(), x.masked_fill(x > 4, -1)));
  EXPECT_TRUE(equal(y.copy_(x).scatter_(0, index, source), x.scatter(0, index, source)));
  EXPECT_TRUE(equal(y.copy_(x).scatter_(0, index, 5), x.scatter(0, index, 5)));
  EXPECT_TRUE(equal(y.copy_(x).scatter_add_(0, index, source), x.scatter_add(0, index, source)));
  EXPECT_TRUE(equal(y.copy_(x).index_add_(0, rows, x), x.index_add(0, rows, x)));
  EXPECT_TRUE(equal(y.copy_(x).lerp_(zeros({2, 3}), 0.25), x.lerp(zeros({2, 3}), 0.25)));
  EXPECT_TRUE(equal(whole.t(), y));
  EXPECT_EQ(zeros({2}, f16).index_add_(0, rows, ones({2}, f16)).dtype(), f16);
  EXPECT_EQ(error([&] { y.clone().masked_fill_(ones({4, 2, 3}) > 0, 0); }),
            "masked_fill_: masked_fill: expand: [4, 2, 3] cannot expand to [2, 3]");
}

// Messages of a graph, summed at their targets: out = A w, so the gradient of w is A^T dy.
TEST(TorchNames, MethodsInPlaceAreRecorded) {
  const Tensor w = from({1, 2, 3, 4}, {2, 2}).set_requires_grad();
  const Tensor targets = tensor({1, 1, 0}, i64), from_rows = tensor({0, 1, 1}, i64);
  const Tensor out = zeros({2, 2});
  out.index_add_(0, targets, w(from_rows));
  EXPECT_TRUE(equal(out.detach(), from({3, 4, 4, 6}, {2, 2})));
  sum(out * from({1, 2, 3, 4}, {2, 2})).backward();
  EXPECT_TRUE(equal(w.grad(), from({3, 4, 4, 6}, {2, 2})));

  const Tensor scores = w * 2;
  scores.masked_fill_(w > 2, -1);
  EXPECT_TRUE(equal(grad({sum(scores)}, {w})[0], from({2, 2, 0, 0}, {2, 2})));
  const Tensor mean = zeros({2, 2});
  mean.lerp_(w, 0.25);
  EXPECT_TRUE(equal(grad({sum(mean)}, {w})[0], full({2, 2}, 0.25)));
  const Tensor each = zeros({2, 2});
  each.scatter_add_(0, tensor({{0, 1}}, i64), w);
  each.scatter_(1, tensor({{0}}, i64), w(Slice(), Slice(1, None)));
  EXPECT_TRUE(equal(grad({sum(each)}, {w})[0], from({0, 2, 0, 0}, {2, 2})));
  EXPECT_EQ(error([&] { w.index_add_(0, targets, ones({3, 2})); }),
            "index_add_: a leaf that requires a gradient cannot change in place: use the form "
            "without underscore, or NoGrad");
}

TEST(TorchNames, SizesAsArguments) {
  EXPECT_TRUE(equal(zeros(2, 3), zeros({2, 3})));
  EXPECT_TRUE(equal(ones(3), ones({3})));
  EXPECT_EQ(empty(size_t(4), 1).shape(), (Shape{4, 1}));
  const auto first = [](auto make) {
    const Seed seed(1);
    return make();
  };
  EXPECT_TRUE(equal(first([] { return rand(2, 3); }), first([] { return rand({2, 3}); })));
  EXPECT_TRUE(equal(first([] { return randn(4); }), first([] { return randn({4}); })));
  const Tensor x = zeros(2, 3, 4).transpose(0, 1);
  EXPECT_EQ(x.stride(0), 4);
  EXPECT_EQ(x.stride(-2), 12);
  EXPECT_TRUE(x.is_floating_point());
  EXPECT_FALSE(x.to(i64).is_floating_point());
}

TEST(TorchNames, OfLists) {
  const Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3});
  const auto [q, k, v] = unpack<3>(x.chunk(3, -1));
  EXPECT_TRUE(equal(cat({v, k, q}, 1), flip(x, 1)));
  EXPECT_EQ(error([&] { unpack<2>(x.unbind(1)); }), "a list of 3 tensors does not unpack into 2");
  EXPECT_TRUE(equal(einsum("ij,kj->ik", x, x), matmul(x, x.t())));
  EXPECT_TRUE(equal(einsum("ij->ji", x), x.t()));
  EXPECT_TRUE(equal(einsum("ij,ij->i", x, x > 2), sum(x * (x > 2), 1)));
  EXPECT_TRUE(equal(x % 4, remainder(x, 4)));
  EXPECT_TRUE(equal(x.to(i64) % x.to(i64).slice(0, 1), remainder(x, x(1)).to(i64)));
}

TEST(TorchNames, MethodsByElement) {
  const Tensor x = from({-1.5, 0.5, 2, INFINITY, NAN, 3}, {2, 3}), y = full({3}, 2);
  const auto same = [](const Tensor& a, const Tensor& b) {
    return a.dtype() == b.dtype() && equal(nan_to_num(a, 7), nan_to_num(b, 7));
  };
  EXPECT_TRUE(same(x.log1p(), log1p(x)));
  EXPECT_TRUE(same(x.erf(), erf(x)));
  EXPECT_TRUE(same(x.log2(), log2(x)));
  EXPECT_TRUE(same(x.log10(), log10(x)));
  EXPECT_TRUE(same(x.exp2(), exp2(x)));
  EXPECT_TRUE(same(x.expm1(), expm1(x)));
  EXPECT_TRUE(same(x.tan(), tan(x)));
  EXPECT_TRUE(same(x.remainder(y), x % y));
  EXPECT_TRUE(same(x.remainder(2), x % 2));
  EXPECT_TRUE(same(x.floor_divide(y), floor_divide(x, y)));
  EXPECT_TRUE(same(x.floor_divide(2), floor_divide(x, 2)));
  EXPECT_TRUE(same(x.maximum(y), maximum(x, y)));
  EXPECT_TRUE(same(x.minimum(y), minimum(x, y)));
  const BoolTensor low = x < 1, high = x > 0;
  EXPECT_TRUE(equal(low.logical_and(high), low & high));
  EXPECT_TRUE(equal(low.logical_or(high), low | high));
  EXPECT_TRUE(equal(low.logical_not(), ~low));
  EXPECT_TRUE(same(x.reciprocal(), reciprocal(x)));
  EXPECT_TRUE(same(x.sign(), sign(x)));
  EXPECT_TRUE(same(x.floor(), floor(x)));
  EXPECT_TRUE(same(x.ceil(), ceil(x)));
  EXPECT_TRUE(same(x.round(), round(x)));
  EXPECT_TRUE(same(x.trunc(), trunc(x)));
  EXPECT_TRUE(equal(x.isnan(), isnan(x)));
  EXPECT_TRUE(equal(x.isinf(), isinf(x)));
  EXPECT_TRUE(equal(x.isfinite(), isfinite(x)));
  EXPECT_TRUE(same(x.add(y), x + y));
  EXPECT_TRUE(same(x.add(2), x + 2));
  EXPECT_TRUE(same(x.sub(y), x - y));
  EXPECT_TRUE(same(x.sub(2), x - 2));
  EXPECT_TRUE(same(x.mul(y), x * y));
  EXPECT_TRUE(same(x.mul(2), x * 2));
  EXPECT_TRUE(same(x.div(y), x / y));
  EXPECT_TRUE(same(x.div(2), x / 2));
  EXPECT_TRUE(equal(x.eq(y), eq(x, y)));
  EXPECT_TRUE(equal(x.eq(2), eq(x, 2)));
  EXPECT_TRUE(equal(x.ne(y), ne(x, y)));
  EXPECT_TRUE(equal(x.ne(2), ne(x, 2)));
  EXPECT_TRUE(equal(x.lt(y), x < y));
  EXPECT_TRUE(equal(x.lt(2), x < 2));
  EXPECT_TRUE(equal(x.le(y), x <= y));
  EXPECT_TRUE(equal(x.le(2), x <= 2));
  EXPECT_TRUE(equal(x.gt(y), x > y));
  EXPECT_TRUE(equal(x.gt(2), x > 2));
  EXPECT_TRUE(equal(x.ge(y), x >= y));
  EXPECT_TRUE(equal(x.ge(2), x >= 2));
  EXPECT_TRUE(same(x.log_softmax(1), log_softmax(x, 1)));
  EXPECT_TRUE(same(x.half().softmax(1, f32), softmax(cast(x, f16), 1, f32)));
  EXPECT_TRUE(same(x.bfloat16(), cast(x, bf16)));
  EXPECT_TRUE(x.cpu().device() == Device::cpu());
  EXPECT_TRUE(same(x.prod(1), prod(x, 1)));
  EXPECT_TRUE(same(x.logsumexp(1, true), logsumexp(x, {1}, true)));
  EXPECT_TRUE(same(x.cumprod(1), cumprod(x, 1)));
  EXPECT_TRUE(same(x.clone().clamp_(0, 1), clamp(x, 0, 1)));
  const Tensor batch = ones({2, 3, 3});
  EXPECT_TRUE(equal(batch.bmm(batch), bmm(batch, batch)));
}

TEST(TorchNames, OfReductions) {
  const Tensor x = from({1, 2, 3, 5, 0, 7}, {2, 3});
  EXPECT_TRUE(equal(sum(x, 1), sum(x, {1})));
  EXPECT_TRUE(equal(mean(x, -1, true), mean(x, {1}, true)));
  EXPECT_TRUE(equal(max(x, 0), max(x, {0})));
  EXPECT_TRUE(equal(sum(x, {}, true), reshape(sum(x), {1, 1})));
  EXPECT_TRUE(equal(x.sum({0, 1}), sum(x)));
  EXPECT_TRUE(equal(x.max(1), max(x, {1})));
  EXPECT_TRUE(equal(x.min(), min(x)));
  EXPECT_TRUE(equal(x.amax(1, true), max(x, {1}, true)));
  EXPECT_TRUE(equal(x.amin({0, 1}), min(x)));
  EXPECT_TRUE(equal(x.var(1), var(x, {1})));
  EXPECT_TRUE(equal(x.std(1, true, 0), stddev(x, {1}, true, 0)));
  EXPECT_TRUE(equal(x.norm(), norm(x)));
  EXPECT_TRUE(equal(x.norm(1, 0), norm(x, 1, {0})));
  EXPECT_TRUE(equal(x.norm({1}), norm(x, {1})));
  EXPECT_TRUE(equal(x.any(0), any(x, {0})));
  EXPECT_TRUE(equal(x.all(), all(x)));
  static_assert(!std::is_constructible_v<bool, decltype(x.any())>);
}

TEST(TorchNames, DropoutTakesTheMode) {
  const Tensor x = ones({100});
  EXPECT_TRUE(dropout(x, 0.5, false).is_same(x));
  EXPECT_GT(max(dropout(x, 0.5, true)).item(), 1);
}

TEST(TorchNames, OfDistributions) {
  const DefaultDevice here(Device::cpu());  // where linear algebra is
  const Seed seed(1);
  const Tensor x = randn({4, 3}), choice = tensor({0, 2, 1, 1}, i64);
  EXPECT_TRUE(allclose(-cross_entropy(x, choice, Reduction::None),
                       x.log_softmax(-1).gather(1, choice.unsqueeze(1)).squeeze(1)));
  const Tensor m = randn({4}), s = rand({4}) + 0.5, y = randn({4});
  EXPECT_TRUE(
      allclose(-gaussian_nll_loss(m, y, s * s, {.reduction = Reduction::None, .full = true}),
               -square((y - m) / s) / 2 - log(s) - std::log(2 * M_PI) / 2, 1e-5, 1e-5));
  const Tensor a = matmul(x.t(), x) + eye(3), l = cholesky(a), b = randn({3, 2});
  EXPECT_TRUE(allclose(solve_triangular(l.t(), solve_triangular(l, b), {.upper = true}),
                       solve(a, b), 1e-4, 1e-5));
}

TEST(TorchNames, OfMasks) {
  const Tensor x = tensor({1, 2, 3, 4});
  const BoolTensor low = x < 3, even = remainder(x, 2) < 1;
  EXPECT_TRUE(equal(low & even, logical_and(low, even)));
  EXPECT_TRUE(equal(low | even, logical_or(low, even)));
  EXPECT_TRUE(equal(low ^ even, logical_xor(low, even)));
  EXPECT_TRUE(equal(~low, logical_not(low)));
  static_assert(!std::is_constructible_v<bool, decltype(low & even)>);
  const Tensor a = tensor({12, 5}, i64), b = tensor({10, 3}, i64);
  EXPECT_TRUE(equal(a & b, bitwise_and(a, b)));
  EXPECT_TRUE(equal(a | b, bitwise_or(a, b)));
  EXPECT_TRUE(equal(a ^ b, bitwise_xor(a, b)));
  EXPECT_TRUE(equal(~a, bitwise_not(a)));
  EXPECT_TRUE(equal(a & 6, tensor({4, 4}, i64)));
  EXPECT_TRUE(equal((a | 1) ^ 2, tensor({15, 7}, i64)));
  EXPECT_TRUE(equal(low & 3, tensor({1, 1, 0, 0}, i64)));
  EXPECT_TRUE(equal(low | 2, tensor({3, 3, 2, 2}, i64)));
  EXPECT_TRUE(equal(low & true, low));
  EXPECT_TRUE(equal(low ^ true, ~low));
  EXPECT_TRUE(all(low | true).item<bool>());
}

// Deleted on purpose: compilers show the declaration, which says what is written here.
template <class T>
concept Comparable = requires(const T& a) { a == a; };
template <class T>
concept SortableByBool =
    requires(const T& a) { a.sort(true); } || requires(const T& a) { a.argsort(true); };
static_assert(!SortableByBool<Tensor>);  // the dimension comes first
template <class T>
concept ComparableToNumbers = requires(const T& a) { a == 1.0; };
static_assert(!Comparable<Tensor> && !ComparableToNumbers<Tensor>);
// x.grad() = y, x.select(0, 1) = y and (x > 0) = y would change a temporary handle alone.
template <class T>
constexpr bool is_assigned_in_place =
    !std::is_assignable_v<T, T> && !std::is_assignable_v<T, const T&> &&
    !std::is_assignable_v<T, Tensor> && std::is_nothrow_move_assignable_v<T>;
static_assert(is_assigned_in_place<Tensor> && is_assigned_in_place<BoolTensor>);
template <class T>
concept Moves = requires(const Tensor& x, T to) { x.to(to); };
static_assert(Moves<const char*> && Moves<std::string> && Moves<Device> && Moves<DType>);
static_assert(!Moves<std::nullptr_t>);  // no text
template <class T>
concept MakesATensor = requires(const T& t) { tensor(t); };
static_assert(MakesATensor<double> && !MakesATensor<std::vector<float>>);  // from_data(t)
template <class T>
concept DimensionsOfSum = requires(const Tensor& x, T dims) { sum(x, dims); };
static_assert(DimensionsOfSum<int> && !DimensionsOfSum<bool>);
// libtorch's calls that have another form here.
template <class T>
concept Indexes = requires(const T& x) { x.index({0, Slice()}); } ||
                  requires(const T& x) { x.index_put_({0}, 1.0); };
template <class T>
concept TakesHooks = requires(const T& x) { x.register_hook([](const T&) {}); } ||
                     requires(const T& x) { x.retain_grad(); };
template <class T>
concept LibtorchsGrad = requires(const T& x) { autograd::grad({x}, {x}); } ||
                        requires(const T& x) { autograd::grad({x}, {x}, {x}, true); };
template <class T>
concept FindsPlaces = requires(const T& mask) { where(mask); };
template <class C>
concept SavesForBackward = requires(C& ctx, const Tensor& x) { ctx.save_for_backward({x}); } ||
                           requires(C& ctx, const Tensor& x) { ctx.save_for_backward(x, x); } ||
                           requires(const C& ctx) { ctx.get_saved_variables(); };
static_assert(!Indexes<Tensor> && !TakesHooks<Tensor> && !LibtorchsGrad<Tensor> &&
              !FindsPlaces<Tensor> && !SavesForBackward<Ctx>);
static_assert(std::is_same_v<NoGradGuard, NoGrad>);

TEST(TorchNames, OfDevices) {
  EXPECT_EQ(Device("cpu"), Device::cpu());
  EXPECT_EQ(Device("cuda:1"), Device::cuda(1));
  EXPECT_EQ(Device(std::string("cuda")), Device::cuda());
  EXPECT_ERROR(Device("gpu"), "unknown device 'gpu'");
  const std::string text = "cpu";
  EXPECT_EQ(zeros({2}, f32, "meta:cuda").device(), Device::meta(DeviceType::cuda));
  EXPECT_EQ(ones(2).to("meta").device(), Device::meta());
  EXPECT_EQ(ones(2).to(text).device(), Device::cpu());
  nn::Linear net(2, 3);
  net.to("meta");
  EXPECT_EQ(net.weight.device(), Device::meta());
  EXPECT_ERROR(ones(2).to("half"), "unknown device 'half'");
}

TEST(TorchNames, OfModules) {
  nn::Sequential net(nn::Linear(2, 3));
  net.append(nn::ReLU());
  EXPECT_EQ(net.size(), 2u);
  const auto modules = net.modules();
  ASSERT_EQ(modules.size(), 3u);
  EXPECT_EQ(modules[0], &net);
  EXPECT_EQ(modules[1], net[0].module());
  EXPECT_TRUE(net.training());
  net.eval();
  EXPECT_FALSE(net.training());
  EXPECT_FALSE(modules[1]->training());
}

TEST(TorchNames, OfOptimizers) {
  const Tensor p = ones({2}).set_requires_grad();
  EXPECT_EQ(optim::Adam({p}, 0.5).lr(), 0.5);
  EXPECT_EQ(optim::SGD({p}, 1).lr(), 1);
  EXPECT_EQ(optim::AdamW({p}, 2e-3f).lr(), double(2e-3f));
  EXPECT_EQ(optim::Adam({p}, {.lr = 0.25}).lr(), 0.25);
  EXPECT_EQ(optim::Adam({p}).lr(), 1e-3);
  EXPECT_ERROR(optim::Adam({p}, -1), "lr must be >= 0, got -1");

  optim::SGD opt({p}, 1.0);
  const auto after = [&](auto& schedule, int steps) {
    for (int i = 0; i < steps; ++i) schedule.step();
    return opt.lr();
  };
  optim::StepLR by_step(opt, {.step_size = 2, .gamma = 0.5});
  EXPECT_EQ(after(by_step, 2), 0.5);
  EXPECT_EQ(by_step.get_last_lr(), std::vector<double>{0.5});
  opt.set_lr(1);
  optim::StepLR by_number(opt, 1);
  EXPECT_NEAR(after(by_number, 1), 0.1, 1e-12);
  opt.set_lr(1);
  optim::ExponentialLR falling(opt, 0.5);
  EXPECT_EQ(after(falling, 1), 0.5);
  opt.set_lr(1);
  optim::CosineAnnealingLR cosine(opt, {.total_steps = 4});
  EXPECT_NEAR(after(cosine, 2), 0.5, 1e-12);
  opt.set_lr(1);
  optim::MultiStepLR at(opt, {.milestones = {1}});
  EXPECT_NEAR(after(at, 1), 0.1, 1e-12);
  opt.set_lr(1);
  optim::LinearLR linear(opt, {});
  EXPECT_NEAR(after(linear, 5), 1, 1e-12);
  opt.set_lr(1);
  optim::OneCycleLR cycle(opt, {.max_lr = 1, .total_steps = 10, .cycle_momentum = false});
  EXPECT_NEAR(opt.lr(), 1 / 25.0, 1e-12);
  opt.set_lr(1);
  optim::ReduceLROnPlateau plateau(opt, {.patience = 0});
  plateau.step(1);
  plateau.step(1);
  EXPECT_NEAR(opt.lr(), 0.1, 1e-12);

  p.set_grad(from({3, 4}, {2}));
  EXPECT_NEAR(optim::clip_grad_norm_({p}, 1).item(), 5, 1e-6);
  EXPECT_NEAR(p.grad().at(0), 0.6, 1e-5);
  optim::clip_grad_value_({p}, 0.5);
  EXPECT_EQ(p.grad().at(0), 0.5);
}

TEST(TorchNames, OfMixedPrecision) {
  {
    const amp::Autocast on(f16);
    EXPECT_EQ(on.dtype(), f16);
    EXPECT_EQ(matmul(ones({2, 2}), ones({2, 2})).dtype(), f16);
  }
  EXPECT_EQ(amp::Autocast("bf16").low(), bf16);
  EXPECT_EQ(amp::Autocast(std::string("float16")).low(), f16);
  EXPECT_EQ(amp::Autocast({.dtype = f16}).low(), f16);
  EXPECT_EQ(amp::Autocast({.dtype = "fp16", .cache = false}).low(), f16);
  EXPECT_EQ(amp::Autocast({.low = f16, .dtype = f16}).low(), f16);
  EXPECT_ERROR(amp::Autocast({.low = f16, .dtype = bf16}),
               "autocast: low is f16 and dtype bf16: give only one");
  EXPECT_ERROR(amp::Autocast(f64), "autocast: low must be f16, bf16, f32 or f8_e4m3, got f64");

  const Tensor p = ones({2}).set_requires_grad();
  optim::SGD opt({p}, 1.0);
  amp::GradScaler scaler({.init_scale = 8});
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 8);
  scaler.scale(sum(p)).backward();
  scaler.unscale_(opt);
  EXPECT_EQ(p.grad().at(0), 1);
}

TEST(TorchNames, OfSavingAndInference) {
  const TempFolder folder;
  nn::Linear net(2, 3);
  optim::SGD opt(net.parameters(), 0.5);
  io::save(folder / "net.safetensors", net, {{"note", "here"}});
  io::save(folder / "opt.safetensors", opt);
  const io::SafeTensors file = io::load(folder / "net.safetensors");
  EXPECT_EQ(file.metadata.at("note"), "here");
  nn::Linear other(2, 3);
  other.load_state_dict(file.tensors);
  EXPECT_EQ(to_vector(other.weight), to_vector(net.weight));
  EXPECT_EQ(io::load(folder / "opt.safetensors").tensors.at("group.0.lr").item(), 0.5);
  const InferenceMode off;
  EXPECT_FALSE(net(ones({1, 2})).requires_grad());
}

TEST(TorchNames, OfDataSets) {
  const DefaultDevice on_cpu(Device::cpu());
  const train::TensorDataset a(arange(0, 6, 1), arange(0, 6, 1), "a"),
      b(arange(6, 10, 1), arange(6, 10, 1), "b");
  const train::ConcatDataset both({a, b});
  EXPECT_EQ(both.size(), 10);
  EXPECT_EQ(both.name(), "a + b");
  EXPECT_EQ(both.name_of(7), "example 1 of b");
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(both.get(i).x.item(), double(i));
  const std::vector<int64_t> some{9, 0, 6, 5};
  EXPECT_EQ(to_vector(both.gather(some).x), (std::vector<double>{9, 0, 6, 5}));
  EXPECT_ERROR(both.get(10), "a + b: example 10 is out of range for 10");
  EXPECT_ERROR(both.get(-1), "a + b: example -1 is out of range for 10");
  EXPECT_ERROR(train::ConcatDataset({}), "a ConcatDataset needs data sets");

  const auto parts = train::random_split(both, {7, 0, 3}, 5);
  ASSERT_EQ(parts.size(), 3u);
  std::vector<int64_t> seen;
  for (const train::Subset& part : parts)
    seen.insert(seen.end(), part.indices().begin(), part.indices().end());
  EXPECT_EQ(parts[0].size(), 7);
  EXPECT_NE(parts[0].indices(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  std::ranges::sort(seen);
  EXPECT_EQ(seen, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_ERROR(train::random_split(a, {2, 3}), "a: parts must have 6 examples in all, got 5");
  EXPECT_ERROR(train::random_split(a, {7, -1}), "a: a part must have from 0 to 6 examples, got 7");
}

TEST(TorchNames, OfImageGrids) {
  const Tensor images = cat({full({1, 1, 2, 3}, 1), full({1, 1, 2, 3}, 2), full({1, 1, 2, 3}, 3)});
  const Tensor grid = train::make_grid(images, {.nrow = 2, .padding = 1, .pad_value = 9});
  EXPECT_EQ(grid.shape(), (Shape{1, 7, 9}));
  EXPECT_EQ(to_vector(grid), (std::vector<double>{9, 9, 9, 9, 9, 9, 9, 9, 9,  //
                                                  9, 1, 1, 1, 9, 2, 2, 2, 9,  //
                                                  9, 1, 1, 1, 9, 2, 2, 2, 9,  //
                                                  9, 9, 9, 9, 9, 9, 9, 9, 9,  //
                                                  9, 3, 3, 3, 9, 9, 9, 9, 9,  //
                                                  9, 3, 3, 3, 9, 9, 9, 9, 9,  //
                                                  9, 9, 9, 9, 9, 9, 9, 9, 9}));
  EXPECT_EQ(train::make_grid(zeros({9, 3, 4, 4}, u8)).shape(), (Shape{3, 14, 50}));
  EXPECT_EQ(train::make_grid(zeros({9, 3, 4, 4}, u8)).dtype(), u8);
  EXPECT_ERROR(train::make_grid(zeros({3, 4, 4})),
               "a grid is made of images [n, channels, height, width], got [3, 4, 4]");
  EXPECT_ERROR(train::make_grid(images, {.nrow = 0}), "nrow must be > 0");
}

}  // namespace torch_names_test
}  // namespace mixtape
