// DetectAnomaly: the first NaN, and the error that says where it came from.

#include "autograd/anomaly.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/checkpoint.h"
#include "autograd/function.h"
#include "core/format.h"
#include "nn/nn.h"
#include "tests/support/errors.h"

namespace mixtape {
using namespace internal;
namespace anomaly_test {

using test::error;

Tensor leaf(std::initializer_list<double> v, DType t = f64) {
  return from(v, {int64_t(v.size())}, t).set_requires_grad();
}

TEST(Anomaly, NamesTheFirstOpInForward) {
  const Tensor x = leaf({1, 2, -3, -4}), w = leaf({1, 1, 1, 1}, f64);
  EXPECT_TRUE(std::isnan(sum(log(x)).item())) << "without one, nothing is looked at";
  const DetectAnomaly on;
  EXPECT_EQ(error([&] { sum(exp(sqrt(x * w))); }),
            "sqrt: nan in element 2 of its result f64 [4], from f64 [4], as op 2 under "
            "DetectAnomaly");
  EXPECT_EQ(error([&] {
              const NoGrad off;
              sum(from({NAN, 0}, {2}, bf16));
            }),
            "sum: nan in element 0 of its result bf16 [1], from bf16 [2], as op 3 under "
            "DetectAnomaly; input 0 held nan before");
}

TEST(Anomaly, SeesCastsToEightBits) {
  const DetectAnomaly on({.inf = true});
  EXPECT_EQ(error([&] { from({1, 500}, {2}).to(f8_e4m3); }),
            "cast_to_integer: nan in element 1 of its result f8_e4m3 [2], from f32 [2], as op 1 "
            "under DetectAnomaly");
  EXPECT_EQ(error([&] { from({-1e6, 1}, {2}).to(f8_e5m2); }),
            "cast_to_integer: -inf in element 0 of its result f8_e5m2 [2], from f32 [2], as op 2 "
            "under DetectAnomaly");
}

TEST(Anomaly, NamesTheRuleAndItsForwardCall) {
  const Tensor x = leaf({4, 0});
  const DetectAnomaly on;
  const SourceScope here;
  const int line = __LINE__ - 1;
  const Tensor y = sqrt(x) * leaf({1, 0});  // 0 / 0 in sqrt's gradient
  EXPECT_EQ(error([&] { sum(y).backward(); }),
            fmt::format("anomaly_test.cpp:{}: backward: sqrt: nan in element 1 of the gradient f64 "
                        "[2] of input 0; its forward call was op 1 under DetectAnomaly, "
                        "anomaly_test.cpp:{}: sqrt: from f64 [2]",
                        line, line));
  EXPECT_EQ(Scope::innermost()->op, fmt::format("anomaly_test.cpp:{}", line));
}

TEST(Anomaly, SaysWhatCameFromElsewhere) {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 2;
  const DetectAnomaly on;
  EXPECT_EQ(
      error([&] { y.backward({.gradient = from({1, NAN}, {2}, f64)}); }),
      "backward: mul_scalar: nan in element 1 of the gradient f64 [2] of input 0, the gradient it "
      "was given held nan before; its forward call was not under DetectAnomaly");
}

// Nodes made in backward are not forward calls, though they may reuse their addresses.
TEST(Anomaly, TakesNoNodeForAnother) {
  const DetectAnomaly on({.forward = false});
  for (int i = 0; i < 100; ++i) exp(leaf({1, 2}));
  const Tensor x = leaf({4, 0});
  const Tensor dx = grad({sum(pow(x, 0.5))}, {x}, {.create_graph = true})[0];
  const std::string said = error([&] { sum(dx * leaf({1, 0})).backward(); });
  EXPECT_TRUE(said.find("not under DetectAnomaly") != std::string::npos) << said;
}

TEST(Anomaly, InfinitiesCountIfAskedTo) {
  const Tensor x = leaf({1, 0});
  {
    const DetectAnomaly on;
    EXPECT_EQ(log(x).at(1), -INFINITY);
  }
  const DetectAnomaly on({.inf = true});
  EXPECT_EQ(error([&] { log(x); }),
            "log: -inf in element 1 of its result f64 [2], from f64 [2], as op 1 under "
            "DetectAnomaly");
  EXPECT_EQ(error([&] { reciprocal(x); }).substr(0, 28), "reciprocal: inf in element 1");
}

TEST(Anomaly, ForwardMayBeLeftOut) {
  const Tensor x = leaf({-1, 4});
  const DetectAnomaly on({.forward = false});
  const Tensor y = where(gt(x, 0.0), sqrt(x), x);  // a NaN that only the gradient uses
  EXPECT_EQ(to_vector(y), (std::vector<double>{-1, 2}));
  EXPECT_ERROR(sum(y).backward(), "backward: sqrt: nan in element 0");
}

struct Masks {  // a rule with a NaN in between, but none in its result
  static constexpr OpInfo info{"test_masks"};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    ctx.save(x);
    return clone(x);
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    const Tensor x = ctx.saved(0);
    return {where(eq(x, x), dy, x / x * NAN)};
  }
};

TEST(Anomaly, OnlyWhatARuleGivesCounts) {
  const Tensor x = leaf({0, 1});
  const DetectAnomaly on;
  sum(call<Masks>(x)).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{1, 1}));
}

TEST(Anomaly, ChangesNothingElse) {
  const Tensor x = leaf({0.5, 1.5}), w = leaf({2, 3});
  const auto loss = [&] { return sum(checkpoint([&](const Tensor& t) { return exp(t * w); }, x)); };
  loss().backward();
  const std::vector<double> plain = to_vector(x.grad());
  x.set_grad({});
  const DetectAnomaly on({.inf = true});
  for (int step = 0; step < 3; ++step) {
    for (const Tensor& leaf : {x, w}) leaf.set_grad({});  // (a gradient's graph holds its leaf)
    const Tensor l = loss();
    l.backward({.create_graph = step == 1});
    EXPECT_EQ(to_vector(x.grad()), plain);
  }
  EXPECT_EQ(to_vector(empty({0}) + empty({0})).size(), 0u);
}

struct Net : nn::Module<Net> {
  nn::Linear in{2, 3}, out{3, 1};
  Tensor forward(const Tensor& x) const { return out(log(in(x))); }
  MIXTAPE_FIELDS(in, out)
};

TEST(Anomaly, NamesTheModule) {
  Net net;
  {
    const NoGrad off;
    fill_(net.in.weight, 0);
    fill_(net.in.bias, 1);
    fill_(net.out.weight, 1);
    fill_(net.out.bias, NAN);
  }
  const DetectAnomaly on;
  EXPECT_EQ(error([&] { net(ones({4, 2})); }).substr(0, 45),
            "out: linear: nan in element 0 of its result f");
}

}  // namespace anomaly_test
}  // namespace mixtape
