// Every op, by its row in op_cases: gradients, strides, dtypes, empties, recording.

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>

#include "autograd/call.h"
#include "autograd/gradcheck.h"
#include "core/format.h"
#include "tests/support/errors.h"
#include "tests/support/op_rows/rows.h"

namespace mixtape {
using namespace internal;
namespace ops_test {

using tests::Input;
using tests::OpCase;

struct Seen : Observer {  // the ops that ran
  std::set<std::string_view> ops;
  void after(const Call& call, const Tensor&) override { ops.insert(call.op.name); }
};

// The largest difference relative to the scale of the values; NaN if only one side has one.
double difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double scale = 1, worst = 0;
  for (int64_t i = 0; i < a.numel(); ++i) scale = std::max(scale, std::abs(b.at(i)));
  for (int64_t i = 0; i < a.numel(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isnan(x) && std::isnan(y)) continue;
    worst = std::max(worst, std::abs(x - y) / scale);
    if (std::isnan(x) != std::isnan(y)) return NAN;
  }
  return worst;
}

// The same elements with unusual strides.
Tensor strided(const Tensor& x, int how) {
  if (how == 0)
    return x.rank() < 2 ? x
                        : clone(transpose(x, 0, -1))
                              .detach()
                              .with_layout(transpose(Layout([&] {
                                                       Shape s = x.shape();
                                                       std::swap(s[0], s[-1]);
                                                       return s;
                                                     }()),
                                                     0, -1));
  if (x.rank() == 0) return x;
  if (how == 2) {  // backwards
    const Tensor buffer(x.shape(), x.dtype());
    Layout backwards = buffer.layout();
    for (int d = 0; d < x.rank(); ++d) backwards = flip(backwards, d);
    const Tensor view = buffer.with_layout(backwards);
    copy_(view, x);
    return view;
  }
  Shape wide = x.shape();
  wide[-1] = 2 * wide[-1] + 1;
  const Tensor buffer = full(wide, x.dtype() == boolean ? 1 : 77, x.dtype());
  const Tensor view = buffer.with_layout(slice(buffer.layout(), -1, 1, wide[-1], 2));
  copy_(view, x);
  return view;
}

std::string case_name(const testing::TestParamInfo<OpCase>& i) { return i.param.name(); }
struct EveryOp : testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, testing::ValuesIn(tests::op_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Composed, EveryOp, testing::ValuesIn(tests::composed()), case_name);

// Checks f's gradients, or that it has none if the row says so.
void expect_gradients(const OpCase& c, const std::vector<Tensor>& in,
                      const std::function<Tensor(const std::vector<Tensor>&)>& f) {
  if (c.differentiable)
    EXPECT_EQ(gradcheck(f, in, {.step = c.step, .second_order = true}), "");
  else
    EXPECT_FALSE(f(in).requires_grad());
}

TEST_P(EveryOp, HasGradients) {
  const OpCase& c = GetParam();
  expect_gradients(c, tests::make_inputs(c, f64, true), c.run);
}

TEST_P(EveryOp, IsFreedWithItsResult) {
  const OpCase& c = GetParam();
  for (const DType dtype : {f64, bf16}) {
    if (dtype == bf16 && !c.half) continue;
    const auto in_use_after = [&] {
      const Seed seed(5);
      (void)c.run(tests::make_inputs(c, dtype, true));
      return memory_stats().in_use;
    };
    const int64_t first = in_use_after();  // tables that are made once stay
    EXPECT_EQ(in_use_after(), first) << dtype;
  }
}

// Rules compute the gradients that are wanted, and look at no other.
TEST_P(EveryOp, HasEachGradientAlone) {
  const OpCase& c = GetParam();
  if (!c.differentiable) return;
  for (const DType dtype : {f64, bf16}) {
    if (dtype == bf16 && !c.half) continue;
    const auto gradients = [&](std::optional<size_t> alone) {
      std::vector<Tensor> in = tests::make_inputs(c, dtype, true), leaves;
      for (size_t i = 0, leaf = 0; i < in.size(); ++i) {
        if (!in[i].requires_grad()) continue;
        if (!alone || *alone == leaf++)
          leaves.push_back(in[i]);
        else
          in[i] = in[i].detach();
      }
      const Seed seed(5);
      const Tensor y = c.run(in);
      if (!y.requires_grad()) return std::vector<Tensor>(leaves.size());
      return grad({y}, leaves, {.gradients = {tests::output_gradient(y)}, .allow_unused = true});
    };
    const std::vector<Tensor> all = gradients({});
    for (size_t i = 0; i < all.size(); ++i) {
      const Tensor alone = gradients(i)[0];
      ASSERT_EQ(bool(alone), bool(all[i])) << dtype << ", input " << i;
      if (!alone) continue;
      EXPECT_LE(difference(alone, all[i]), dtype == f64 ? 1e-12 : 1e-2) << dtype << ", input " << i;
    }
  }
}

TEST_P(EveryOp, HasGradientsOfEmpties) {
  const OpCase& c = GetParam();
  if (c.empty.empty()) return;
  const auto in = tests::make_inputs(c, f64, true, c.empty);
  expect_gradients(c, in, c.run);
  if (!c.differentiable) return;
  const Tensor y = c.run(in);
  y.backward({.gradient = ones_like(y)});
  for (const Tensor& t : in) {
    if (t.is_leaf()) {
      EXPECT_EQ(t.grad().shape(), t.shape());
    }
  }
}

TEST_P(EveryOp, HasGradientsOfBroadcasts) {
  const OpCase& c = GetParam();
  const auto small = tests::make_inputs(c, f64, true, tests::reduced_shapes(c));
  const auto repeated = [&](const std::vector<Tensor>& in) {
    std::vector<Tensor> wide;
    for (size_t i = 0; i < in.size(); ++i) wide.push_back(expand(in[i], c.inputs[i].shape));
    return wide;
  };
  std::vector<Tensor> copies;
  for (const Tensor& t : repeated(small)) copies.push_back(clone(t));
  EXPECT_LE(difference(c.run(repeated(small)), c.run(copies)), 1e-13);
  expect_gradients(c, small, [&](const std::vector<Tensor>& in) { return c.run(repeated(in)); });
}

TEST_P(EveryOp, RunsItsOpAndRecordsOnlyWhenAsked) {
  const OpCase& c = GetParam();
  Seen seen;
  {
    const Observe watch(seen);
    const Tensor y = c.run(tests::make_inputs(c, f64, true));
    EXPECT_EQ(y.requires_grad(), c.differentiable);
  }
  EXPECT_TRUE(seen.ops.contains(c.op));
  if (c.composite) return;
  const NoGrad off;
  EXPECT_FALSE(c.run(tests::make_inputs(c, f64, true)).requires_grad());
}

TEST_P(EveryOp, TakesAnyStrides) {
  const OpCase& c = GetParam();
  const auto in = tests::make_inputs(c, f64, false);
  if (c.composite) return;
  const Tensor want = c.run(in);
  for (int how = 0; how < 3; ++how) {
    std::vector<Tensor> odd;
    for (const Tensor& t : in) odd.push_back(strided(t, how));
    for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(difference(odd[i], in[i]), 0);
    EXPECT_LE(difference(c.run(odd), want), 1e-13) << "way " << how;
    if (!c.differentiable) continue;
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < odd.size(); ++i)
      leaves.push_back(c.inputs[i].differentiated() ? odd[i].detach().set_requires_grad() : odd[i]);
    EXPECT_EQ(gradcheck(c.run, leaves, {.step = c.step}), "") << "way " << how;
  }
}

TEST_P(EveryOp, AgreesAcrossDtypes) {
  const OpCase& c = GetParam();
  if (c.composite) return;
  for (const auto& [dtype, tolerance] : {std::pair{f32, 2e-6}, {f16, 1.5e-3}, {bf16, 1.2e-2}}) {
    if (is_half(dtype) && !c.half) continue;
    auto in = tests::make_inputs(c, dtype, true);
    std::vector<Tensor> wide;
    for (const Tensor& t : in) wide.push_back(is_float(t.dtype()) ? t.detach().to(f64) : t);
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].is_leaf()) wide[i].set_requires_grad();
    const Tensor y = c.run(in), want = c.run(wide);
    EXPECT_LE(difference(y, want), tolerance * c.tolerance) << name(dtype);
    if (is_float(want.dtype())) {
      EXPECT_EQ(y.dtype(), dtype) << "no op widens by itself";
    }
    if (!c.differentiable) continue;
    y.backward({.gradient = ones_like(y)});
    want.backward({.gradient = ones_like(want)});
    for (size_t i = 0; i < in.size(); ++i)
      if (in[i].is_leaf()) {
        ASSERT_TRUE(in[i].grad()) << "input " << i;
        EXPECT_EQ(in[i].grad().dtype(), dtype);
        EXPECT_LE(difference(in[i].grad(), wide[i].grad()), 4 * tolerance * c.tolerance)
            << name(dtype) << " input " << i;
      }
  }
}

using Ops = std::set<std::string_view>;

// The linked ops without a row that `fits`.
template <class Such>
Ops ops_without(const Such& row) {
  Ops missing;
  for (const OpInfo* op : all_ops()) missing.insert(op->name);
  for (const OpCase& c : tests::op_cases())
    if (row(c)) missing.erase(c.op);
  if (Device::best().is_host()) missing.erase("to_device");  // there is no other device
  return missing;
}

TEST(Numbers, GoThroughElementwiseOps) {
  for (const OpCase& c : tests::op_cases()) {
    if (!c.pointwise) continue;
    const auto inputs = [&](const Shape& shape) {
      return tests::make_inputs(c, f64, true, std::vector<Shape>(c.inputs.size(), shape));
    };
    const auto lone = inputs({}), one = inputs({1});
    const Tensor y = c.run(lone);
    ASSERT_EQ(y.shape(), Shape{}) << c.name();
    EXPECT_EQ(y.at(0), c.run(one).at(0)) << c.name();
    if (!c.differentiable) continue;
    y.backward();
    for (const Tensor& x : lone)
      EXPECT_TRUE(!x.requires_grad() || x.grad().rank() == 0) << c.name();
  }
}

TEST(Catalogue, EveryLinkedOpHasARow) {
  EXPECT_EQ(ops_without([](const OpCase&) { return true; }), Ops{});
}

// Only backward rules call these.
const Ops of_gradients = {"adaptive_avg_pool2d_gradient",
                          "avg_pool2d_gradient",
                          "conv2d_weight",
                          "det_gradient",
                          "fold",
                          "grouped_outer",
                          "interpolate_gradient",
                          "place_diagonal",
                          "place_heads",
                          "place_slice",
                          "put_at",
                          "recurrence",
                          "take_at"};

// (Empty inputs of the ops that they belong to test them.)
TEST(Catalogue, EveryOpIsTestedOnEmptiesAndBroadcasts) {
  EXPECT_EQ(ops_without([](const OpCase& c) { return !c.empty.empty(); }), of_gradients)
      << "a row with .empty is wanted for each other op";
  EXPECT_EQ(ops_without([](const OpCase& c) { return reduced_shapes(c) != shapes(c); }), Ops{})
      << "a row with an input that repeats is wanted for each other op";
}

// (No policy acts in backward.)
TEST(Catalogue, EveryPolicyIsTested) {
  Ops others = of_gradients;
  others.insert({"binary_cross_entropy", "cast"});  // tested separately
  others.insert(
      {"soft_margin_loss", "poisson_nll_loss", "poisson_rate_nll_loss"});  // see f64 alone
  EXPECT_EQ(ops_without([](const OpCase& c) { return c.half && !c.composite; }), others);
}

TEST(Catalogue, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const OpInfo* op : all_ops()) EXPECT_TRUE(names.insert(op->name).second) << op->name;
}

// A 0-d tensor has one line, along dimension 0 or -1, and 0-d results, as in PyTorch.
TEST(ZeroDim, HasOneLine) {
  const Tensor x = full({}, 2).set_requires_grad(), zero = zeros({}, i64), first = zeros({1}, i64),
               five = full({}, 5);
  const auto expect = [&](const Tensor& y, double want, double slope) {
    EXPECT_EQ(y.shape(), Shape{});
    EXPECT_NEAR(y.item(), want, 1e-6);
    EXPECT_NEAR(grad({y}, {x})[0].item(), slope, 1e-6);
  };
  const auto expect_sorted = [&](const Sorted& y) {
    expect(y.values, 2, 1);
    EXPECT_EQ(y.indices.shape(), Shape{});
    EXPECT_EQ(y.indices.item(), 0);
  };
  for (const int dim : {0, -1}) {
    for (const bool keepdim : {false, true}) {
      expect(sum(x, {dim}, keepdim), 2, 1);
      expect(mean(x, {dim}, keepdim), 2, 1);
      expect(prod(x, {dim}, keepdim), 2, 1);
      expect(max(x, {dim}, keepdim), 2, 1);
      expect(logsumexp(x, {dim}, keepdim), 2, 1);
      expect(norm(x, 2, {dim}, keepdim), 2, 1);
      expect(var(x, {dim}, keepdim, 0), 0, 0);
      expect(nanmean(x, {dim}, keepdim), 2, 1);
      expect(quantile(x, 0.3, dim, keepdim), 2, 1);
      EXPECT_EQ(argmax(x, dim, keepdim).shape(), Shape{});
      expect_sorted(median(x, dim, keepdim));
      expect_sorted(kthvalue(x, 1, dim, keepdim));
      expect_sorted(mode(x, dim, keepdim));
    }
    expect_sorted(sort(x, dim));
    for (const int64_t k : {0, 1}) expect_sorted(topk(x, k, dim));  // a 0-d result has an element
    expect_sorted(cummax(x, dim));
    expect_sorted(cummin(x, dim));
    expect(cumsum(x, dim), 2, 1);
    expect(cumprod(x, dim), 2, 1);
    expect(logcumsumexp(x, dim), 2, 1);
    expect(softmax(x, dim), 1, 0);
    expect(log_softmax(x, dim), 0, 0);
    expect(gumbel_softmax(x, 1, true, dim), 1, 0);
    expect(normalize(x, 2, dim), 1, 0);
    expect(cosine_similarity(x, five, dim), 1, 0);
    expect(flip(x, {dim}), 2, 1);
    expect(squeeze(x, dim), 2, 1);
    expect(transpose(x, dim, 0), 2, 1);
    expect(movedim(x, {dim}, {0}), 2, 1);
    EXPECT_EQ(to_vector(unfold(x, dim, 1, 1)), std::vector<double>{2});
    EXPECT_EQ(unfold(x, dim, 1, 1).shape(), Shape{1});
    EXPECT_EQ(flatten(x, dim, 0).shape(), Shape{1});
    expect(gather(x, dim, zero), 2, 1);
    EXPECT_EQ(to_vector(gather(x, dim, zeros({3}, i64))), (std::vector<double>{2, 2, 2}));
    for (const Tensor& index : {zero, first}) {
      expect(index_select(x, dim, index), 2, 1);
      expect(index_fill(x, dim, index, 3), 3, 0);
      expect(index_copy(x, dim, index, five), 5, 0);
      expect(index_add(x, dim, index, five), 7, 1);
      expect(scatter(x, dim, index, five), 5, 0);
      expect(scatter_add(x, dim, index, five), 7, 1);
      expect(scatter_reduce(x, dim, index, five, ScatterMode::Prod), 10, 5);
      expect(scatter_reduce(x, dim, index, five, ScatterMode::Mean), 3.5, 0.5);
    }
  }
  expect(prelu(-x, full({}, 0.5)), -1, -0.5);
  for (const Tensor& y : {cov(x), corrcoef(x)}) {  // of one observation
    EXPECT_EQ(y.shape(), Shape{});
    EXPECT_TRUE(std::isnan(y.item()));
  }
  EXPECT_ERROR(sort(x, 1), "sort: dimension 1 is out of range for rank 0");
  EXPECT_ERROR(sum(x, {-2}), "sum: dimension -2 is out of range for rank 0");
  EXPECT_ERROR(sum(x, {0, -1}), "sum: dimension -1 is named twice");
  EXPECT_ERROR(flatten(x, 1), "flatten: dimension 1 is out of range for rank 0");
  EXPECT_ERROR(unfold(x, 0, 2, 1),
               "unfold: windows of 2 elements with step 1 do not fit dimension 0 of [1]");
  EXPECT_ERROR(topk(x, 2), "topk: k must be from 0 to 1, got 2");
  EXPECT_ERROR(index_select(x, 0, zeros({3}, i64)),
               "index_select: an index of shape [3] for a 0-d tensor");
  EXPECT_ERROR(select(x, 0, 0), "select: dimension 0 is out of range for rank 0");
  EXPECT_ERROR(cat({x, x}), "cat: numbers have no dimension along which to join them: use stack()");
}

}  // namespace ops_test
}  // namespace mixtape
