// vmap by batching rules: which functions it replays, with a loop's results, and which it does not.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "amp/autocast.h"
#include "autograd/call.h"
#include "autograd/checkpoint.h"
#include "autograd/ops.h"
#include "autograd/tape.h"
#include "autograd/vmap.h"
#include "core/dispatch.h"
#include "core/dlpack.h"
#include "core/dlpack_abi.h"
#include "core/random.h"
#include "nn/nn.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace vmap_replay_test {

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensor&)>;

struct Count : Observer {
  int all = 0;
  void after(const Call& call, const Tensor&) override { all += !call.backward; }
};
int calls_of(const Function& f, const Tensor& x) {
  Count count;
  const Observe watch(count);
  vmap(f)(x);
  return count.all;
}
Tensor loop(const Function& f, const Tensor& x) {
  Tensors all;
  for (int64_t b = 0; b < x.size(0); ++b) all.push_back(f(select(x, 0, b)));
  return stack(all);
}
// Compares results, and gradients of x and of the tensors that f holds, with a loop's.
void expect_a_loop(const Function& f, const Shape& one, const Tensors& held = {},
                   DType dtype = f64) {
  const Tensor x = randn(joined({5}, one), dtype).set_requires_grad();
  const Tensor y = vmap(f)(x), want = loop(f, x);
  const double digits = dtype == f64 ? 1e-10 : 1e-4;
  expect_near(y, want, digits);
  ASSERT_EQ(y.requires_grad(), want.requires_grad());
  if (!y.requires_grad()) return;
  Tensors of{x};
  of.insert(of.end(), held.begin(), held.end());
  const Tensor dy = randn(y.shape(), y.dtype());
  const GradOptions o{.gradients = {dy}, .allow_unused = true};
  const Tensors got = grad({y}, of, o), by_loop = grad({want}, of, o);
  for (size_t i = 0; i < of.size(); ++i) {
    ASSERT_EQ(bool(got[i]), bool(by_loop[i]));
    if (got[i]) expect_near(got[i], by_loop[i], digits);
  }
}
// True if the number of calls does not grow with that of examples.
bool is_replayed(const Function& f, const Shape& one, DType dtype = f64) {
  const auto calls = [&](int64_t n) { return calls_of(f, randn(joined({n}, one), dtype)); };
  return calls(20) == calls(4);
}

struct RuleCase {
  const char* name;
  Shape one;
  Function f;
};
// (Made by the first test, on its device.)
const Tensor& weights() {
  static const Tensor w = randn({4, 3}, f64).set_requires_grad();
  return w;
}
const Tensor& vector() {
  static const Tensor v = randn({4}, f64).set_requires_grad();
  return v;
}
std::vector<RuleCase> rule_cases() {
  return {
      {"Unary", {3, 4}, [](const Tensor& x) { return tanh(exp(x) * 0.1); }},
      {"Clamp", {4}, [](const Tensor& x) { return clamp(x, -0.5, 0.5); }},
      {"Binary", {4}, [](const Tensor& x) { return x * vector() + x / (vector() + 10); }},
      {"SharedOfMoreDims", {3}, [](const Tensor& x) { return x * weights(); }},
      {"OwnOfFewerDims", {3, 4}, [](const Tensor& x) { return x - select(x, 0, 1); }},
      {"Number", {4}, [](const Tensor& x) { return x * select(x, 0, 1); }},
      {"Compared", {4}, [](const Tensor& x) { return where(gt(x, vector()), x * 2.0, vector()); }},
      {"MaskedFill", {4}, [](const Tensor& x) { return masked_fill(x, gt(vector(), 0), 3); }},
      {"Lerp", {4}, [](const Tensor& x) { return lerp(x, vector(), 0.3); }},
      {"Cast", {4}, [](const Tensor& x) { return cast(x, f32) * 2.0; }},
      {"Clone", {4}, [](const Tensor& x) { return clone(x); }},
      {"Reshape", {3, 4}, [](const Tensor& x) { return flatten(transpose(x, 0, 1)) * 2.0; }},
      {"Permute", {2, 3, 4}, [](const Tensor& x) { return permute(x, {-1, 0, 1}); }},
      {"Expand", {3}, [](const Tensor& x) { return expand(x, {2, 3}) * 2.0; }},
      {"Slice", {3, 4}, [](const Tensor& x) { return slice(x, -1, 1, 4, 2); }},
      {"Select", {3, 4}, [](const Tensor& x) { return select(x, 1, -1); }},
      {"Flip", {3, 4}, [](const Tensor& x) { return flip(x, {1}); }},
      {"Cat", {2, 4}, [](const Tensor& x) { return cat({x, x * 2.0, ones({1, 4}, f64)}); }},
      {"Stack", {4}, [](const Tensor& x) { return stack({x, vector()}, 1); }},
      {"Sum", {3, 4}, [](const Tensor& x) { return sum(x, {1}) + sum(x); }},
      {"Mean", {3, 4}, [](const Tensor& x) { return x - mean(x, {0}, true); }},
      {"Max", {3, 4}, [](const Tensor& x) { return max(x) - min(x); }},
      {"Norm", {3, 4}, [](const Tensor& x) { return norm(x); }},
      {"Prod", {3, 4}, [](const Tensor& x) { return prod(x, {-1}); }},
      {"LogSumExp", {3, 4}, [](const Tensor& x) { return logsumexp(x, {0}); }},
      {"Cumsum", {3, 4}, [](const Tensor& x) { return cumsum(x, 1); }},
      {"Argmax", {3, 4}, [](const Tensor& x) { return argmax(x, 1); }},
      {"Argmin", {3, 4}, [](const Tensor& x) { return argmin(x, 0); }},
      {"AnyAll",
       {3, 4},
       [](const Tensor& x) { return eq(any(gt(x, vector()), {0}), all(gt(x, vector()), {0})); }},
      {"Cumprod", {3, 4}, [](const Tensor& x) { return cumprod(x, 0); }},
      {"LogCumsumExp", {3, 4}, [](const Tensor& x) { return logcumsumexp(x, 1); }},
      {"Gather", {3, 4}, [](const Tensor& x) { return sort(x, 1).values; }},
      {"TopK", {3, 4}, [](const Tensor& x) { return topk(x, 2).indices; }},
      {"Addcmul", {4}, [](const Tensor& x) { return addcmul(x, vector(), x, 2); }},
      {"Addcdiv", {4}, [](const Tensor& x) { return addcdiv(vector(), x, vector() + 10, 2); }},
      {"GroupNorm",
       {2, 4, 3},
       [](const Tensor& x) { return group_norm(x, 2, vector(), vector()); }},
      {"InstanceNorm",
       {2, 4, 3},
       [](const Tensor& x) { return instance_norm(x, vector(), vector()); }},
      {"Triu", {4, 4}, [](const Tensor& x) { return triu(x, 1); }},
      {"Tril", {4, 4}, [](const Tensor& x) { return tril(x); }},
      {"MatmulShared", {2, 4}, [](const Tensor& x) { return matmul(x, weights()); }},
      {"MatmulOwn", {2, 4}, [](const Tensor& x) { return matmul(x, x.t()); }},
      {"MatmulVector", {4}, [](const Tensor& x) { return matmul(x, weights()); }},
      {"Dot", {4}, [](const Tensor& x) { return dot(x, vector()); }},
      {"Linear", {4}, [](const Tensor& x) { return linear(x, weights().t()); }},
      {"Softmax", {3, 4}, [](const Tensor& x) { return softmax(x, 0); }},
      {"LogSoftmax", {4}, [](const Tensor& x) { return log_softmax(x, 0); }},
      {"LayerNorm", {2, 4}, [](const Tensor& x) { return layer_norm(x, {4}, vector(), vector()); }},
      {"RmsNorm", {4}, [](const Tensor& x) { return rms_norm(x, {4}, vector()); }},
      {"Detached", {4}, [](const Tensor& x) { return x * exp(x).detach(); }},
      {"OfSharedAlone", {4}, [](const Tensor& x) { return x + exp(vector()); }},
      {"SharedResult", {4}, [](const Tensor&) { return exp(vector()); }},
      {"Itself", {4}, [](const Tensor& x) { return x; }},
  };
}
struct Rules : testing::TestWithParam<RuleCase> {};
std::string case_name(const testing::TestParamInfo<RuleCase>& i) { return i.param.name; }
INSTANTIATE_TEST_SUITE_P(Ops, Rules, testing::ValuesIn(rule_cases()), case_name);

TEST_P(Rules, ReplayALoop) {
  const RuleCase& c = GetParam();
  expect_a_loop(c.f, c.one, {weights(), vector()});
  EXPECT_TRUE(is_replayed(c.f, c.one));
}

TEST(VmapReplay, RunsModules) {
  const nn::Conv2d conv(1, 3, 3);
  const Function f = [&](const Tensor& x) { return relu(squeeze(conv(unsqueeze(x, 0)), 0)); };
  expect_a_loop(f, {1, 5, 5}, conv.parameters(), f32);
  EXPECT_TRUE(is_replayed(f, {1, 5, 5}, f32));
  const nn::Linear layer(4, 2);
  const Function g = [&](const Tensor& x) { return relu(layer(x)); };
  expect_a_loop(g, {3, 4}, layer.parameters(), f32);
  EXPECT_TRUE(is_replayed(g, {3, 4}, f32));
}

TEST(VmapReplay, HasTheDtypesOfAutocast) {
  const Tensor w = randn({4, 3}).set_requires_grad();
  const Tensor x = randn({5, 2, 4});
  for (const DType dtype : {f16, bf16}) {
    const amp::Autocast autocast({.dtype = dtype});
    const Function f = [&](const Tensor& t) { return gelu(matmul(t, w)); };
    const Function g = [&](const Tensor& t) { return softmax(matmul(t, w), -1); };
    for (const Function& h : {f, g}) {
      expect_near(vmap(h)(x), loop(h, x), 2e-2);
      EXPECT_TRUE(is_replayed(h, {2, 4}, f32));  // after the cast of w, which Autocast keeps
    }
  }
}

TEST(VmapReplay, CastsNumbersAsAPolicyDoes) {
  const Seed seed(1);
  const Tensor x = randn({6, 40}) * 0.002 + 1;
  const amp::Autocast on({.low = f16});
  const Function compared = [](const Tensor& t) { return lt(cast(t, f16), mean(t)); };
  const Function product = [](const Tensor& t) { return cast(t, f16) * mean(t); };
  for (const Function& f : {compared, product}) {
    EXPECT_EQ(to_vector(vmap(f)(x)), to_vector(loop(f, x)));
    EXPECT_TRUE(is_replayed(f, {40}, f32));
  }
}

TEST(VmapReplay, LoopsForAnOpWithoutARule) {
  const Function f = [](const Tensor& x) { return exp(diagonal(x * 2.0)); };
  expect_a_loop(f, {3, 3});
  const auto calls = [&](int64_t n) { return calls_of(f, randn({n, 3, 3}, f64)); };
  EXPECT_EQ(calls(7) - calls(6), calls(6) - calls(5));
  EXPECT_LT(calls(7) - calls(6), 5);  // mul and exp are not repeated
}

TEST(VmapReplay, IsSecondOrder) {
  const Tensor x = randn({4, 3}, f64).set_requires_grad();
  const Function f = [](const Tensor& t) { return sum(t * t * t); };
  const Tensor dx = grad({sum(vmap(f)(x))}, {x}, {.create_graph = true})[0];
  expect_near(grad({sum(dx)}, {x})[0], x * 6.0, 1e-12);
}

// --- what only a loop does ---

TEST(VmapLoop, BranchesOnValues) {
  const Function by_item = [](const Tensor& x) { return sum(x).item() > 0 ? x : x * 2.0; };
  const Function by_vector = [](const Tensor& x) { return to_vector(x)[0] > 0 ? x : x * 2.0; };
  const Function by_data = [](const Tensor& x) {
    return *x.to(Device::cpu()).data<double>() > 0 ? x : x * 2.0;
  };
  const Tensor x = from({1, 2, -3, 4}, {4, 1}, f64);
  for (const Function& f : {by_item, by_vector, by_data})
    EXPECT_EQ(to_vector(vmap(f)(x)), (std::vector<double>{1, 2, -6, 4}));
}

TEST(VmapLoop, ChecksTheIndicesOfEachExample) {
  const Tensor table = randn({4, 3}, f64).set_requires_grad();
  const Function f = [&](const Tensor& x) { return embedding(table, x); };
  const Tensor x = from({0, 3, 1, 2, 2, 0, 3, 3}, {4, 2}, i64);
  expect_near(vmap(f)(x), loop(f, x), 0);
  const Tensor wrong = from({0, 3, 1, 4, 2, 0, 3, 3}, {4, 2}, i64);
  EXPECT_THROW(to_vector(vmap(f)(wrong)), Error);  // a device's comes late
}

TEST(VmapLoop, DrawsForEachExample) {
  const Function f = [](const Tensor& x) { return x + randn({2}, f64); };
  const Tensor x = zeros({4, 2}, f64);
  const auto seeded = [&](const auto& run) {
    const Seed seed(3);
    return to_vector(run());
  };
  EXPECT_EQ(seeded([&] { return vmap(f)(x); }), seeded([&] { return loop(f, x); }));
}

TEST(VmapLoop, RunsBackward) {
  const Function f = [](const Tensor& x) {
    const Tensor w = ones({2}, f64).set_requires_grad();
    return grad({sum(w * w * x)}, {w})[0];
  };
  const Tensor x = randn({4, 2}, f64);
  expect_near(vmap(f)(x), x * 2.0, 1e-12);
  EXPECT_FALSE(is_replayed(f, {2}));
}

TEST(VmapLoop, WritesInPlace) {
  const Function own = [](const Tensor& x) {
    const Tensor sum = zeros({2}, f64);
    add_(sum, x);
    return sum * 3.0;
  };
  expect_a_loop(own, {2});
  const Tensor x = randn({4, 2}, f64), total = zeros({2}, f64);
  const Function outside = [&](const Tensor& t) {
    const NoGrad off;
    add_(total, t);
    return t * 2.0;
  };
  expect_near(vmap(outside)(x), x * 2.0, 1e-12);
  expect_near(total, sum(x, {0}), 1e-12);
  const Function set = [](const Tensor& t) {
    const Tensor y = clone(t);
    y.set(0, 7);
    return y * 2.0;
  };
  expect_near(vmap(set)(x), loop(set, x), 1e-12);
  const Function assigned = [](const Tensor& t) {
    const Tensor y = clone(t);
    y[0] = 7;
    return y * 2.0;
  };
  expect_near(vmap(assigned)(x), loop(assigned, x), 1e-12);
}

TEST(VmapLoop, TakesAStateFromBesideTheResult) {
  const amp::Autocast on({.low = bf16});
  const Tensor w = randn({9, 3}), x = randn({4, 5, 2, 9});
  const Function f = [&](const Tensor& gates) {
    Tensor state;
    gru(gates, w, {}, {}, {.last_state = &state});
    return state;
  };
  EXPECT_EQ(to_vector(vmap(f)(x)), to_vector(loop(f, x)));
}

TEST(VmapLoop, ChangesPolicies) {
  const Tensor w = randn({4, 3});
  const Function f = [&](const Tensor& x) {
    const amp::Autocast autocast({.dtype = bf16});
    return matmul(x, w);
  };
  const Tensor x = randn({5, 2, 4});
  EXPECT_EQ(to_vector(vmap(f)(x)), to_vector(loop(f, x)));
  EXPECT_FALSE(is_replayed(f, {2, 4}, f32));
}

TEST(VmapLoop, SeesAViewThatNoOpMade) {
  const Function f = [](const Tensor& x) { return exp(x.with_layout(Layout(Shape{2}, Shape{2}))); };
  const Tensor x = randn({4, 4}, f64);
  expect_near(vmap(f)(x), loop(f, x), 1e-12);
  EXPECT_FALSE(is_replayed(f, {4}));
}

TEST(VmapLoop, RunsACheckpoint) {
  const Function f = [](const Tensor& x) {
    return checkpoint([](const Tensor& t) { return exp(t); }, x);
  };
  expect_a_loop(f, {3});
}

TEST(VmapLoop, MovesRunningStatistics) {
  nn::BatchNorm2d norm(2);
  const Tensor x = randn({4, 3, 2, 2, 2});
  const Function f = [&](const Tensor& t) { return norm(t); };
  EXPECT_FALSE(is_replayed(f, {3, 2, 2, 2}, f32));
  expect_near(vmap(f)(x), loop(f, x), 1e-5);
}

TEST(VmapLoop, RepeatsAnErrorOfTheFunction) {
  const Function f = [](const Tensor& x) { return x + ones({7}, f64); };
  EXPECT_THROW(vmap(f)(ones({4, 3}, f64)), Error);
}

TEST(VmapReplay, MayBeNested) {
  const Tensor y = randn({6}, f64);
  const Function outer = [&](const Tensor& a) {
    return vmap([&](const Tensor& b) { return a * b; })(y);
  };
  expect_a_loop(outer, {});
  EXPECT_TRUE(is_replayed(outer, {}));
}

// Values of the last example are those of the first, so that results alone tell nothing.
TEST(VmapLoop, KeepsATensorOfTheFirstExample) {
  const Tensor x = from({1, 2, 3, 1}, {4, 1}, f64), first = select(x, 0, 0);
  const auto expect_loops = [&](const std::function<Function()>& make) {
    EXPECT_EQ(to_vector(vmap(make())(x)), to_vector(loop(make(), x)));
  };
  expect_loops([&]() -> Function {
    return [kept = std::make_shared<Tensor>()](const Tensor& t) {
      if (!*kept) *kept = exp(t);
      return t * *kept;
    };
  });
  expect_loops([]() -> Function {
    return [former = std::make_shared<Tensor>(zeros({1}, f64))](const Tensor& t) {
      return std::exchange(*former, t) * 0.0 + t;
    };
  });
  expect_loops([&]() -> Function { return [&](const Tensor& t) { return t - first; }; });
  expect_loops([]() -> Function {
    return [calls = 0](const Tensor& t) mutable { return t + full({1}, ++calls % 3, f64) * 0.0; };
  });
}

TEST(VmapLoop, PutsHooksOnEachExample) {
  const Function f = [](const Tensor& t) {
    const Tensor y = t * 2.0;
    if (y.requires_grad()) register_hook(y, [](const Tensor& dy) { return dy * 0.5; });
    return y;
  };
  expect_a_loop(f, {2});
}

// A scale for all examples would round those of small values to zero.
TEST(VmapLoop, RoundsEachExampleByARecipe) {
  const Tensor w = randn({16, 16}), size = from({1e-6, 1e3, 1, 1e3}, {4, 1, 1});
  const Tensor x = randn({4, 16, 16}) * size;
  const Function f = [&](const Tensor& t) { return linear(t, w); };
  for (const amp::Recipe& recipe : {amp::Recipe(amp::Current{}), amp::Recipe(amp::NvFp4{})}) {
    const amp::Autocast on({.low = bf16, .recipe = recipe});
    EXPECT_EQ(to_vector(vmap(f)(x)), to_vector(loop(f, x)));
  }
}

TEST(VmapLoop, LetsOthersReadEachExample) {
  const Tensor x = from({1, 2, 1, 1}, {4, 1}, f64);
  const auto expect_each = [&](const std::function<void(const Tensor&)>& read) {
    int seen = 0;
    vmap([&](const Tensor& t) {
      ++seen;
      read(t);
      return t * 2.0;
    })(x);
    EXPECT_EQ(seen, 4);
  };
  expect_each([](const Tensor& t) { to_string(t); });
  expect_each([](const Tensor& t) {
    DLManagedTensor* const shared = to_dlpack(t);
    shared->deleter(shared);
  });
}

// A counter of its own: the last example differs.
TEST(VmapLoop, CountsItsCalls) {
  int calls = 0;
  const Function f = [&](const Tensor& x) { return x * double(++calls); };
  const Tensor y = vmap(f)(ones({4, 1}, f64));
  EXPECT_EQ(calls, 5);  // the first, the last to compare, and those after the first
  EXPECT_NE(y.at(3), y.at(1));
}

}  // namespace vmap_replay_test
}  // namespace mixtape
