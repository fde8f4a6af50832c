// Overflows planted in named modules, forward and backward: the trace names the op.

#include "amp/trace.h"

#include "nn/nn.h"
#include "tests/support/scaler.h"

namespace mixtape::amp {
namespace trace_test {

using Texts = std::vector<std::string>;
Texts texts(OverflowTrace& trace) {
  Texts all;
  for (const BadOp& op : trace.found()) all.push_back(op.text());
  return all;
}

struct Net : nn::Module<Net> {
  nn::Linear body{4, 4}, head{4, 2};
  explicit Net(double body_weight, double head_weight) {
    const NoGrad off;
    fill_(body.weight, body_weight);
    fill_(head.weight, head_weight);
    fill_(body.bias, 0);
    fill_(head.bias, 0);
  }
  Tensor forward(const Tensor& x) const { return head(relu(body(x))); }
  MIXTAPE_FIELDS(body, head)
};

TEST(Trace, NamesTheModuleWhoseProductOverflows) {
  const Net net(100, 100);
  OverflowTrace trace;
  const Autocast on({.low = f16});
  sum(net(ones({3, 4})));  // body returns 400, head would return 160000, and sum reads infinities
  EXPECT_EQ(
      texts(trace),
      Texts{"forward of linear in head: 6 inf in f16 [3, 2], from f16, f16, f32 with absmax 400"});
  const BadOp& op = trace.found()[0];
  EXPECT_EQ(op.module, "head");
  EXPECT_EQ(op.kind, BadOp::Kind::Forward);
  EXPECT_EQ(op.input_absmax, 400);
}

TEST(Trace, NamesTheModuleWhoseGradientOverflows) {
  const Net net(1, 100);
  OverflowTrace trace;
  Tensor loss;
  {
    const Autocast on({.low = f16});
    loss = sum(net(full({3, 4}, 1e-3)));
  }
  mul(loss, 4096).backward();  // head's rule would return 2 * 4096 * 100
  EXPECT_EQ(
      texts(trace),
      Texts{"backward of linear in head: 12 inf in f16 [3, 4], from f16 with absmax 4.1e+03"});
}

TEST(Trace, SeesScalesBeyondF16) {
  const Net net(1, 1);
  OverflowTrace trace;
  Tensor loss;
  {
    const Autocast on({.low = f16});
    loss = sum(net(full({3, 4}, 1e-3)));
  }
  mul(loss, 65536).backward();
  EXPECT_EQ(texts(trace), Texts{"backward of sum: 6 inf in f16 [3, 2], from f32 with absmax "
                                "6.55e+04"});
}

TEST(Trace, SeesGradientsConverted) {
  const Tensor x = full({2}, 1, f16).set_requires_grad();
  OverflowTrace trace;
  relu(x).to(f32).backward({.gradient = from({1, 1e5}, {2})});
  EXPECT_EQ(texts(trace), Texts{"backward of cast for backward: 1 inf in f16 [2], from f32 with "
                                "absmax 1e+05"});
}

TEST(Trace, SeesCastsToEightBits) {
  OverflowTrace trace;
  const Tensor x = from({1, 500, 1e6}, {3});
  x.to(f8_e4m3).to(f32);  // e4m3 has no infinity
  trace.next_iteration();
  x.to(f8_e5m2);
  EXPECT_EQ(
      texts(trace),
      (Texts{"forward of cast_to_integer: 2 nan in f8_e4m3 [3], from f32 with absmax 1e+06",
             "forward of cast_to_integer: 1 inf in f8_e5m2 [3], from f32 with absmax 1e+06"}));
}

TEST(Trace, SeesGradientsMeet) {
  const Tensor x = full({2}, 1e-3, f16).set_requires_grad();
  OverflowTrace trace;
  const Tensor y = relu(x);
  sum((y * 40000 + y * 40000).to(f32)).backward();
  EXPECT_EQ(texts(trace), Texts{"incoming gradient of relu: 2 inf in f16 [2]"});
  trace.next_iteration();
  relu(x).backward({.gradient = from({NAN, 1}, {2}, f16)});
  EXPECT_EQ(texts(trace).back(), "incoming gradient of relu: 1 nan in f16 [2]");
}

// The sum over two uses of a weight, or two backward passes, in grad().
TEST(Trace, SeesGradientsMeetAtALeaf) {
  const Tensor w = full({2}, 1, f16).set_requires_grad();
  OverflowTrace trace;
  sum((w * 40000).to(f32)).backward();
  EXPECT_TRUE(trace.found().empty());
  sum((w * 40000).to(f32)).backward();
  EXPECT_EQ(texts(trace), Texts{"incoming gradient of leaf: 2 inf in f16 [2]"});
}

TEST(Trace, NamesTheHookWhoseOpOverflows) {
  const Net net(1, 1);
  OverflowTrace trace;
  Tensor y;
  {
    const Autocast on({.low = f16});
    y = net(full({3, 4}, 1e-3));
  }
  register_hook(y, [](const Tensor& dy) { return dy * 1e5; });
  sum(y).backward();
  EXPECT_EQ(texts(trace), Texts{"backward of mul_scalar for hook on linear in head: 6 inf in f16 "
                                "[3, 2], from f16 with absmax 1"});
}

TEST(Trace, NamesTheHookOnALeafWhoseOpOverflows) {
  const Tensor x = full({2}, 1, f16).set_requires_grad();
  OverflowTrace trace;
  const HookHandle hook = register_post_accumulate_hook(x, [](const Tensor& leaf) {
    const NoGrad off;
    (void)(leaf.grad() * 1e5);
  });
  sum(x).backward();
  EXPECT_EQ(texts(trace), Texts{"backward of mul_scalar for hook on leaf: 2 inf in f16 [2], from "
                                "f16 with absmax 1"});
}

TEST(Trace, BlamesWhoMadeNanOfInfinities) {
  const Tensor x = ones({2, 2}).set_requires_grad();
  OverflowTrace trace;
  const Tensor mask = from({1, 1, 0, 1}, {2, 2}, boolean);
  sum(exp(softmax(masked_fill(x, mask, -INFINITY)))).backward();
  EXPECT_EQ(texts(trace), Texts{"forward of softmax: 2 nan in f32 [2, 2], from f32 with absmax 1"});
}

TEST(Trace, BlamesDataThatWasNan) {
  const Tensor w = ones({3, 2}).set_requires_grad(), x = from({1, NAN, 2, 3}, {2, 2});
  OverflowTrace trace;
  sum(square(linear(x, w))).backward();
  EXPECT_EQ(texts(trace), Texts{"input of linear: 1 nan in f32 [2, 2]"});
  trace.next_iteration();
  const Tensor v = full({2, 2}, 1, f16).set_requires_grad();
  const Tensor held = where(isnan(x), 0, x * 2);  // NaN on purpose
  EXPECT_EQ(trace.found().size(), 1u);
  ((v * 300) * 300).to(f32).backward({.gradient = held + 1000.0});
  EXPECT_EQ(texts(trace).back(),
            "forward of mul_scalar: 4 inf in f16 [2, 2], from f16 with absmax 300");
  trace.next_iteration();
  (x * 2);
  (v * 300 * 0.001).to(f32).backward({.gradient = full({2, 2}, 3e5)});
  EXPECT_NE(texts(trace).back().find("inf"), std::string::npos) << "an overflow, whatever x was";
}

TEST(Trace, TellsInfFromNan) {
  OverflowTrace trace;
  log(from({0, -1, 1, -2}, {4}));
  EXPECT_EQ(texts(trace), Texts{"forward of log: 1 inf and 2 nan in f32 [4], from f32 "
                                "with absmax 2"});
}

TEST(Trace, AsksWhatOverflowsToBeNews) {
  OverflowTrace trace;
  const Tensor x = from({1, 2, 3, 4}, {2, 2}), bad = from({1, INFINITY}, {2});
  exp(bad);                                                     // infinite already
  const Tensor masked = masked_fill(x, gt(x, 3.5), -INFINITY);  // on purpose
  softmax(masked);
  add(x, bad);
  x.t();
  empty({0}) + empty({0});
  EXPECT_TRUE(trace.found().empty()) << texts(trace)[0];
  from({1e5}, {1}).to(f16);
  EXPECT_EQ(texts(trace), Texts{"forward of cast: 1 inf in f16 [1], from f32 with absmax 1e+05"});
}

TEST(Trace, FindsTheFirstOfManyOps) {
  OverflowTrace trace;
  const Tensor x = values({2, 3});
  for (int i = 0; i < 600; ++i) relu(x);  // more than are counted at once
  exp(full({2, 3}, 1000));
  for (int i = 0; i < 600; ++i) relu(x);
  log(zeros({1}));
  ASSERT_EQ(trace.found().size(), 1u);
  EXPECT_EQ(trace.found()[0].op, "exp");
}

TEST(Trace, CountsTransposedAndRepeatedNumbers) {
  OverflowTrace trace;
  const Tensor x = from({1, 2, 3, 1e3, 5, 6}, {2, 3});
  exp(expand(unsqueeze(slice(x, 1, 0, 2).t(), 0), {4, 2, 2}));
  ASSERT_EQ(trace.found().size(), 1u);
  EXPECT_EQ(trace.found()[0].infinities, 4);
  EXPECT_EQ(trace.found()[0].input_absmax, 1e3);
}

TEST(Trace, ChangesNothingElse) {
  const Tensor w = leaf({4, 4});
  const auto step = [&] {
    w.set_grad({});
    const Tensor y = matmul(values({3, 4}), w) * 2;
    mul_(y, values({3, 4}));  // in place: y has no other owner
    sum(y).backward();
    return to_vector(w.grad());
  };
  const std::vector<double> plain = step();
  OverflowTrace trace;
  EXPECT_EQ(step(), plain);
  EXPECT_TRUE(trace.found().empty());
}

TEST(Trace, TellsTheScaler) {
  Net net(1, 100);
  optim::SGD sgd(net.parameters(), {.lr = 1e-3});
  GradScaler scaler({.init_scale = 8192, .max_consecutive_skips = 2});
  const auto step = [&](double factor) {
    sgd.zero_grad();
    Tensor loss;
    {
      const Autocast on({.low = f16});
      loss = sum(net(full({3, 4}, 1e-3))) * factor;
    }
    scaler.scale(loss).backward();
    const bool stepped(scaler.step(sgd));
    scaler.update();
    return stepped;
  };
  EXPECT_FALSE(step(1));
  ASSERT_FALSE(scaler.last_overflow().empty());
  EXPECT_EQ(scaler.last_overflow()[0].first_bad_op, "");
  EXPECT_TRUE(step(1e-3));

  OverflowTrace trace;
  EXPECT_FALSE(step(1));
  const std::string bad =
      "backward of linear in head: 12 inf in f16 [3, 4], from f16 with absmax 4.1e+03";
  EXPECT_EQ(scaler.last_overflow()[0].first_bad_op, bad);
  EXPECT_TRUE(step(1e-3));
  EXPECT_EQ(trace.found().size(), 1u);
  std::string message;
  try {
    for (int i = 0; i < 20; ++i) step(1e3);  // a device reports some updates later
  } catch (const ScaleCollapse& e) {
    message = e.what();
  }
  EXPECT_NE(message.find("\n  first bad op: backward of sum: 6 inf in f16 [3, 2]"),
            std::string::npos)
      << message;
  EXPECT_GE(trace.found().size(), 3u) << "one for each iteration";
}

TEST(Trace, CountsGradientsThatVanish) {
  const Tensor x = full({4}, 1, f16).set_requires_grad();
  OverflowTrace trace;
  const Tensor y = relu(x) * from({1, 1e-4, 1e-5, 1e-8}, {4}, f16);
  sum(y.to(f32)).backward({.gradient = full({}, 1e-1)});
  const auto all = trace.underflow();
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].dtype, f16);
  EXPECT_EQ(all[0].op, "mul");
  EXPECT_EQ(all[0].elements, 4);
  EXPECT_EQ(all[0].subnormals, 2);
  EXPECT_EQ(all[0].zeros, 1);
  EXPECT_EQ(all[0].fraction(), 0.75);
}

}  // namespace trace_test
}  // namespace mixtape::amp
