// Every op that computes, against PyTorch: values and gradients, in f64 and f32. The inputs come
// from ops_problem.h, what libtorch made of them in f64 from ops_reference.json.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "autograd/ops.h"
#include "tests/data/ops_problem.h"
#include "tests/support/errors.h"

namespace ops_problem {
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
}  // namespace ops_problem

namespace mixtape {
namespace {

using nlohmann::json;
using X = const std::vector<Tensor>&;
using Y = std::vector<Tensor>;
using Run = std::function<Y(X)>;

Run loss(const CrossEntropyOptions& o) {
  return [o](X x) -> Y { return {cross_entropy(x[0], x[1], o)}; };
}
Run ignoring_all(Reduction reduction) {
  return [=](X x) -> Y {
    return {cross_entropy(x[0], full_like(x[1], 7), {.reduction = reduction, .ignore_index = 7})};
  };
}
Run mse(Reduction reduction) {
  return [=](X x) -> Y { return {mse_loss(x[0], x[1], reduction)}; };
}
Run conv(const Conv2dOptions& o) {
  return [o](X x) -> Y { return {conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), o)}; };
}
Run norm(bool training) {
  return [=](X x) -> Y {
    const Tensor mean = clone(x[3]), var = clone(x[4]);
    const BatchNormOptions o{.training = training, .momentum = 0.3, .eps = 1e-3};
    return {batch_norm(x[0], mean, var, x[1], x[2], o), mean, var};
  };
}
Run over(const std::function<Tensor(const Tensor&)>& op) {
  return [op](X x) -> Y { return {op(x[0])}; };
}
Run both(const std::function<Tensor(const Tensor&, const Tensor&)>& op) {
  return [op](X x) -> Y { return {op(x[0], x[1])}; };
}

const std::map<std::string, Run>& runs() {
  using In = const Tensor&;
  using enum Reduction;
  static const Run product = both([](In a, In b) { return matmul(a, b); });
  static const Run power = both([](In a, In b) { return pow(a, b); });
  static const Run larger = both([](In a, In b) { return maximum(a, b); });
  static const std::map<std::string, Run> all = {
      {"add", both([](In a, In b) { return a + b; })},
      {"sub", both([](In a, In b) { return a - b; })},
      {"mul", both([](In a, In b) { return a * b; })},
      {"div", both([](In a, In b) { return a / b; })},
      {"pow", power},
      {"pow of zero", power},
      {"maximum", larger},
      {"maximum of ties", larger},
      {"minimum", both([](In a, In b) { return minimum(a, b); })},
      {"where", [](X x) -> Y { return {where(x[2], x[0], x[1])}; }},
      {"masked_fill", both([](In a, In mask) { return masked_fill(a, mask, 0.5); })},
      {"expand", over([](In x) {
         return expand(x, {2, 2, 2, 3});
       })},
      {"scalars", over([](In x) { return 3 / (2 - pow(x * 0.5 + 1, -1.5)) - pow(x, 3) / 4; })},
      {"views", over([](In x) {
         return select(reshape(slice(permute(x, {2, 0, 1}), 0, 0, 4, 2), {3, -1}), 1, -1);
       })},
      {"cat", both([](In a, In b) {
         return cat({a, b, a}, 1);
       })},
      {"stack", both([](In a, In b) {
         return stack({a, b}, -1);
       })},
      {"matmul", product},
      {"matmul 1d 1d", product},
      {"matmul 1d 3d", product},
      {"matmul 3d 1d", product},
      {"linear", [](X x) -> Y { return {linear(x[0], x[1], x[2])}; }},
      {"embedding", both([](In table, In index) { return embedding(table, index); })},
      {"argmax", over([](In x) { return argmax(x, 0); })},
      {"argmin", over([](In x) { return argmin(x, 1, true); })},
      {"max of ties", over([](In x) { return max(x, {0}); })},
      {"std of equals", over([](In x) {
         return stddev(expand(unsqueeze(x, 1), {3, 4}), {1});
       })},
      {"abs", over(abs)},
      {"cos", over(cos)},
      {"erf", over(erf)},
      {"exp", over(exp)},
      {"expm1", over(expm1)},
      {"gelu", over(gelu)},
      {"gelu_tanh", over(gelu_tanh)},
      {"log", over(log)},
      {"log1p", over(log1p)},
      {"neg", over(neg)},
      {"reciprocal", over(reciprocal)},
      {"relu", over(relu)},
      {"rsqrt", over(rsqrt)},
      {"sigmoid", over(sigmoid)},
      {"silu", over(silu)},
      {"sin", over(sin)},
      {"softplus", over(softplus)},
      {"sqrt", over(sqrt)},
      {"square", over(square)},
      {"tanh", over(tanh)},
      {"sum", over([](In x) {
         return sum(x, {0, 2});
       })},
      {"mean", over([](In x) {
         return mean(x, {0, 2}, true);
       })},
      {"max", over([](In x) {
         return max(x, {0, 2});
       })},
      {"min", over([](In x) {
         return min(x, {0, 2}, true);
       })},
      {"var", over([](In x) {
         return var(x, {0, 2}, true);
       })},
      {"var 0", over([](In x) {
         return var(x, {0, 2}, false, 0);
       })},
      {"var 2", over([](In x) {
         return var(x, {0, 2}, false, 2);
       })},
      {"std", over([](In x) {
         return stddev(x, {0, 2});
       })},
      {"std 0", over([](In x) {
         return stddev(x, {0, 2}, true, 0);
       })},
      {"mean of all", over([](In x) { return mean(x); })},
      {"softmax 0", over([](In x) { return softmax(x, 0); })},
      {"softmax 1", over([](In x) { return softmax(x, 1); })},
      {"softmax -1", over([](In x) { return softmax(x); })},
      {"log_softmax 1", over([](In x) { return log_softmax(x, 1); })},
      {"softmax of large", over([](In x) { return softmax(x); })},
      {"log_softmax of large", over([](In x) { return log_softmax(x); })},
      {"layer_norm", [](X x) -> Y { return {layer_norm(x[0], {5}, x[1], x[2], 1e-3)}; }},
      {"layer_norm plain", over([](In x) {
         return layer_norm(x, {3, 2});
       })},
      {"batch_norm", norm(true)},
      {"batch_norm eval", norm(false)},
      {"batch_norm plain",
       over([](In x) { return batch_norm(x, {}, {}, {}, {}, {.training = true}); })},
      {"conv2d", conv({})},
      {"conv2d stride padding", conv({.stride = {2, 1}, .padding = {1, 2}})},
      {"conv2d dilation", conv({.stride = {1, 2}, .padding = {0, 1}, .dilation = {3, 2}})},
      {"conv2d groups", conv({.padding = {1, 0}, .groups = 2})},
      {"conv2d depthwise", conv({.padding = {1, 1}, .groups = 3})},
      {"conv2d pointwise", conv({})},
      {"max_pool2d", over([](In x) {
         return max_pool2d(x, {2, 2});
       })},
      {"max_pool2d padding", over([](In x) {
         return max_pool2d(x, {3, 2}, {.stride = {1, 2}, .padding = {1, 0}});
       })},
      {"max_pool2d of ties", over([](In x) {
         return max_pool2d(x, {3, 3}, {.stride = {1, 1}});
       })},
      {"cross_entropy mean", loss({})},
      {"cross_entropy sum", loss({.reduction = Sum})},
      {"cross_entropy none", loss({.reduction = None})},
      {"cross_entropy smooth mean", loss({.label_smoothing = 0.3})},
      {"cross_entropy smooth sum", loss({.reduction = Sum, .label_smoothing = 0.3})},
      {"cross_entropy smooth none", loss({.reduction = None, .label_smoothing = 1})},
      {"cross_entropy ignore mean", loss({.ignore_index = 1})},
      {"cross_entropy ignore sum", loss({.reduction = Sum, .ignore_index = 1})},
      {"cross_entropy ignore none", loss({.reduction = None, .ignore_index = 1})},
      {"cross_entropy smooth ignore", loss({.label_smoothing = 0.3, .ignore_index = 1})},
      {"cross_entropy ignore all", ignoring_all(Mean)},
      {"cross_entropy ignore all sum", ignoring_all(Sum)},
      {"cross_entropy large",
       both([](In x, In target) { return cross_entropy(x + 8192, target, {.reduction = None}); })},
      {"mse mean", mse(Mean)},
      {"mse sum", mse(Sum)},
      {"mse none", mse(None)},
  };
  return all;
}

const json& reference() {
  static const json file = json::parse(std::ifstream(MIXTAPE_TEST_DATA "/ops_reference.json"));
  return file;
}

// Within `tolerance` of the largest magnitude that is expected.
void expect_close(X got, const json& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t k = 0; k < want.size(); ++k) {
    std::vector<double> values;
    double scale = 0;
    for (const json& v : want[k]) {
      values.push_back(v.is_string() ? std::stod(v.get<std::string>()) : v.get<double>());
      if (std::isfinite(values.back())) scale = std::max(scale, std::abs(values.back()));
    }
    ASSERT_EQ(got[k].numel(), int64_t(values.size())) << what << ' ' << k;
    for (size_t i = 0; i < values.size(); ++i) {
      const double x = got[k].at(int64_t(i)), y = values[i];
      const bool same = x == y || (std::isnan(x) && std::isnan(y));
      EXPECT_TRUE(same || std::abs(x - y) <= tolerance * scale)
          << what << ' ' << k << ", element " << i << ": " << x << ", PyTorch has " << y;
    }
  }
}

struct OpsReference : testing::TestWithParam<ops_problem::Case> {
  static void compare(DType dtype, double tolerance);
};

void OpsReference::compare(DType dtype, double tolerance) {
  const ops_problem::Case& c = GetParam();
  std::vector<Tensor> x, leaves;
  for (const ops_problem::Input& in : c.inputs) {
    Tensor t(Shape(in.shape), in.kind == ops_problem::Index  ? i64
                              : in.kind == ops_problem::Mask ? boolean
                                                             : dtype);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.set(i, ops_problem::value(uint32_t(x.size()), uint32_t(i), in));
    if (in.kind == ops_problem::Real || in.kind == ops_problem::Tied)
      leaves.push_back(t.set_requires_grad());
    x.push_back(t);
  }
  const std::vector<Tensor> y = runs().at(c.name)(x);
  const json& want = reference().at(c.name);
  expect_close(y, want.at("y"), tolerance, "value");
  ASSERT_EQ(y[0].requires_grad(), !want.at("dx").empty());
  if (!y[0].requires_grad()) return;
  const Tensor dy(y[0].shape(), dtype);
  for (int64_t i = 0; i < dy.numel(); ++i) dy.set(i, ops_problem::gradient(uint32_t(i)));
  expect_close(grad({y[0]}, leaves, {.gradients = {dy}}), want.at("dx"), tolerance, "gradient");
}

TEST_P(OpsReference, Double) { compare(f64, 1e-12); }
TEST_P(OpsReference, Single) { compare(f32, 2e-6); }
INSTANTIATE_TEST_SUITE_P(PyTorch, OpsReference, testing::ValuesIn(ops_problem::cases()),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) {
                             if (c == '-') c = 'm';
                             if (c == ' ') c = '_';
                           }
                           return name;
                         });

TEST(LikePyTorch, AWindowMustFit) {
  // Two rows short, which a stride of 3 would round away.
  EXPECT_ERROR(
      conv2d(ones({1, 1, 3, 9}), ones({1, 1, 3, 3}), {}, {.stride = {3, 1}, .dilation = {2, 1}}),
      "a window of 3 (dilation 2) does not fit into 3 + 2 * 0");
}

TEST(LikePyTorch, SplittingNothingGivesNothingInPieces) {
  const Tensor none = zeros({2, 0});
  EXPECT_EQ(split(none, 3, 1).size(), 1u);
  EXPECT_EQ(chunk(none, 3, 1).size(), 3u);
  EXPECT_EQ(chunk(none, 3, 1)[2].shape(), (Shape{2, 0}));
}

TEST(LikePyTorch, ANumberIsNotTruncatedForIntegers) {
  const Tensor x = arange(0, 3);
  EXPECT_ERROR(x + 1.5, "of i64 elements and 1.5 (convert them to a float dtype)");
  EXPECT_ERROR(0.5 - x, "of i64 elements and 0.5");
  EXPECT_EQ(to_vector(x + 2), (std::vector<double>{2, 3, 4}));
  EXPECT_EQ(to_vector(gt(x, 0.5)), (std::vector<double>{0, 1, 1}));
}

TEST(OpsReferenceFile, SaysHowItWasMadeAndHoldsTheCases) {
  EXPECT_NE(reference().at("made").get<std::string>().find("libtorch"), std::string::npos);
  EXPECT_EQ(reference().size(), ops_problem::cases().size() + 1);
  EXPECT_EQ(runs().size(), ops_problem::cases().size());
}

}  // namespace
}  // namespace mixtape
