// Autocast: which dtype every op runs in, what is cast and how often, and who decides.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "amp/autocast.h"
#include "autograd/function.h"
#include "autograd/ops.h"
#include "core/allocator.h"
#include "core/format.h"

namespace mixtape::amp {
namespace {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}
#define EXPECT_ERROR(statement, text)                            \
  do {                                                           \
    const std::string message = error_of([&] { statement; });    \
    EXPECT_NE(message.find(text), std::string::npos) << message; \
  } while (false)

// How often each op ran, and the dtype of its last result.
struct Seen : Observer {
  std::map<std::string, int> count;
  std::map<std::string, DType> dtype;
  void after(const Call& call, const Tensor& y) override {
    ++count[std::string(call.op.name)];
    dtype[std::string(call.op.name)] = y.dtype();
  }
};

// Values of magnitude 0.1 to 1 that bf16 cannot hold, all of one sign so that sums do not cancel.
Tensor values(const Shape& shape, DType dtype = f32, double seed = 1) {
  Tensor t(shape, dtype);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.set(i, 0.1 + 0.9 * std::abs(std::sin(seed + 0.7 * double(i))));
  return t;
}
Tensor leaf(const Shape& shape, DType dtype = f32, double seed = 1) {
  return values(shape, dtype, seed).set_requires_grad();
}
bool representable(const Tensor& x, DType narrow) {
  return to_vector(cast(cast(x.detach(), narrow), x.dtype())) == to_vector(x);
}
void expect_near(const Tensor& a, const Tensor& b, double tolerance) {
  ASSERT_EQ(a.shape(), b.shape());
  for (int64_t i = 0; i < a.numel(); ++i)
    ASSERT_NEAR(a.at(i), b.at(i), tolerance * (1 + std::abs(b.at(i)))) << i;
}

// --- the table ---

struct Row {
  std::string op;
  Precision precision;
  std::function<Tensor(const Tensor&)> run;  // of x [4, 4]
};

const std::vector<Row>& table() {
  using enum Precision;
  using X = const Tensor&;
  static const Tensor index = from({1, 0, 3, 2}, {4}, i64);
  static const std::vector<Row> rows = {
      {"matmul", Low, [](X x) { return matmul(x, x); }},
      {"linear", Low, [](X x) { return linear(x, x); }},
      {"conv2d", Low,
       [](X x) {
         return conv2d(x.reshape({1, 1, 4, 4}), x.reshape({1, 1, 4, 4}));
       }},
      {"embedding", Any, [](X x) { return embedding(x, index); }},
      {"add", Widest, [](X x) { return x + x; }},
      {"sub", Widest, [](X x) { return x - x; }},
      {"mul", Widest, [](X x) { return x * x; }},
      {"div", Widest, [](X x) { return x / x; }},
      {"maximum", Widest, [](X x) { return maximum(x, x); }},
      {"minimum", Widest, [](X x) { return minimum(x, x); }},
      {"where", Widest, [](X x) { return where(gt(x, 0.5), x, x); }},
      {"cat", Widest,
       [](X x) {
         return cat({x, x});
       }},
      {"add_scalar", Widest, [](X x) { return x + 1; }},
      {"sub_scalar", Widest, [](X x) { return x - 1; }},
      {"sub_from_scalar", Widest, [](X x) { return 1 - x; }},
      {"mul_scalar", Widest, [](X x) { return x * 2; }},
      {"div_scalar", Widest, [](X x) { return x / 2; }},
      {"div_from_scalar", Full, [](X x) { return 1 / x; }},
      {"exp", Full, [](X x) { return exp(x); }},
      {"expm1", Full, [](X x) { return expm1(x); }},
      {"log", Full, [](X x) { return log(x); }},
      {"log1p", Full, [](X x) { return log1p(x); }},
      {"pow", Full, [](X x) { return pow(x, x); }},
      {"pow_scalar", Full, [](X x) { return pow(x, 2); }},
      {"square", Full, [](X x) { return square(x); }},
      {"reciprocal", Full, [](X x) { return reciprocal(x); }},
      {"rsqrt", Full, [](X x) { return rsqrt(x); }},
      {"softplus", Full, [](X x) { return softplus(x); }},
      {"softmax", Full, [](X x) { return softmax(x); }},
      {"log_softmax", Full, [](X x) { return log_softmax(x); }},
      {"cross_entropy", Full, [](X x) { return cross_entropy(x, index); }},
      {"mse_loss", Full, [](X x) { return mse_loss(x, x); }},
      {"layer_norm", Full, [](X x) { return layer_norm(x, {4}, ones({4}), zeros({4})); }},
      {"batch_norm", Native,
       [](X x) {
         return batch_norm(x, zeros({4}), ones({4}), ones({4}), zeros({4}), {.training = true});
       }},
      {"sum", Full, [](X x) { return sum(x); }},
      {"mean", Full, [](X x) { return mean(x); }},
      {"var", Full, [](X x) { return var(x); }},
      {"stddev", Full, [](X x) { return stddev(x); }},
      {"relu", Any, [](X x) { return relu(x); }},
      {"dropout", Any, [](X x) { return dropout(x, 0.5); }},
      {"abs", Any, [](X x) { return abs(x); }},
      {"neg", Any, [](X x) { return -x; }},
      {"max_pool2d", Any,
       [](X x) {
         return max_pool2d(x.reshape({1, 1, 4, 4}), {2, 2});
       }},
      {"max", Any, [](X x) { return max(x); }},
      {"min", Any, [](X x) { return min(x); }},
      {"reshape", Any, [](X x) { return reshape(x, {16}); }},
      {"permute", Any, [](X x) { return transpose(x); }},
      {"slice", Any, [](X x) { return slice(x, 0, 1, 3); }},
      {"expand", Any,
       [](X x) {
         return expand(x, {2, 4, 4});
       }},
      {"masked_fill", Any, [](X x) { return masked_fill(x, gt(x, 0.5), -1e9); }},
      {"gelu", Native, [](X x) { return gelu(x); }},
      {"gelu_tanh", Native, [](X x) { return gelu_tanh(x); }},
      {"silu", Native, [](X x) { return silu(x); }},
      {"sigmoid", Native, [](X x) { return sigmoid(x); }},
      {"tanh", Native, [](X x) { return tanh(x); }},
      {"sqrt", Native, [](X x) { return sqrt(x); }},
  };
  return rows;
}

DType result(Precision p, DType given, DType low) {
  return p == Precision::Low ? low : p == Precision::Full ? f32 : given;
}

TEST(Policies, EveryRowOfTheTable) {
  for (const DType low : {f16, bf16})
    for (const DType given : {f32, low})
      for (const Row& row : table()) {
        const Autocast on({.low = low});
        EXPECT_EQ(row.run(values({4, 4}, given)).dtype(), result(row.precision, given, low))
            << row.op << " of " << name(given) << " in " << name(low);
      }
}

TEST(Policies, ComparisonsGiveBoolOfMixedInputs) {
  const Autocast on({.low = f16});
  EXPECT_EQ(lt(values({3}, f16), values({3}, f32)).dtype(), boolean);
  EXPECT_EQ(argmax(values({3}, f16), 0).dtype(), i64);
}

TEST(Policies, LowSavesNarrowOperandsAndFullSavesWhatItRead) {
  const Tensor w = leaf({4, 4}), x = leaf({4, 4}, f16), target = from({0, 1, 2, 3}, {4}, i64);
  const Autocast on({.low = f16});
  const Tensor y = linear(x, w);
  EXPECT_EQ(y.maker()->ctx.saved(0).dtype(), f16);
  EXPECT_EQ(y.maker()->ctx.saved(1).dtype(), f16);
  EXPECT_EQ(log(y).dtype(), f32);
  EXPECT_EQ(log(y).maker()->ctx.saved(0).dtype(), f16) << "the narrow input, not a wide copy of it";
  EXPECT_EQ(gelu(y).maker()->ctx.saved(0).dtype(), f16);
  Seen seen;
  const Observe watch(seen);
  (void)layer_norm(y, {4}, leaf({4}), leaf({4}));
  (void)cross_entropy(y, target);
  EXPECT_EQ(seen.dtype["layer_norm"], f32);
  EXPECT_EQ(seen.dtype["cross_entropy"], f32);
  EXPECT_EQ(seen.count["cast"], 1) << "of the number of valid targets alone";
}

TEST(Policies, FullOfMixedActivationsRunsInF32) {
  const Autocast on({.low = f16});
  EXPECT_EQ(mse_loss(values({3}, f16), values({3}, f32)).dtype(), f32);
  EXPECT_EQ(mse_loss(values({3}, f16), values({3}, bf16)).dtype(), f32);
  const Tensor x = values({2, 4}, f32);
  EXPECT_EQ(layer_norm(x, {4}, ones({4}, f16), zeros({4}, f16)).dtype(), f32)
      << "narrow parameters beside f32 activations";
}

TEST(Policies, NativeNeverCasts) {
  const Autocast on({.low = f16, .overrides = {{"add", Precision::Native}}});
  EXPECT_EQ((values({3}, bf16) + values({3}, bf16)).dtype(), bf16);
  EXPECT_ERROR((void)(values({3}, f16) + values({3}, f32)),
               "add: inputs have different dtypes: f16 and f32");
}

TEST(Policies, WidestGoesToTheWidestPresent) {
  const Autocast on({.low = f16});
  const Tensor h = values({3}, f16), b = values({3}, bf16), s = values({3}, f32);
  EXPECT_EQ((h + h).dtype(), f16);
  EXPECT_EQ((s + s).dtype(), f32);
  EXPECT_EQ((h + s).dtype(), f32);
  EXPECT_EQ((h + b).dtype(), f32);
  EXPECT_EQ(cat({h, b, h}).dtype(), f32);
  EXPECT_EQ(where(gt(s, 0), h, s).dtype(), f32);
  expect_near(h + s, cast(h, f32) + s, 0);
}

TEST(Policies, AZeroDimensionalTensorNeverWidens) {
  const Autocast on({.low = f16});
  const Tensor h = values({3}, f16), s = values({3}, f32);
  EXPECT_EQ((h * from({2}, {})).dtype(), f16);
  EXPECT_EQ((from({2}, {}) * h).dtype(), f16);
  EXPECT_EQ((s * from({2}, {}, f16)).dtype(), f32);
  EXPECT_EQ((s * from({2}, {}, bf16)).dtype(), f32);
  EXPECT_EQ((from({2}, {}, f16) + from({2}, {})).dtype(), f32) << "among themselves";
  EXPECT_EQ(where(gt(h, 0.5), h, from({0}, {})).dtype(), f16);
  EXPECT_EQ((h * from({2}, {1})).dtype(), f32) << "one element, but of one dimension";
  const Tensor scalar = from({2}, {}).set_requires_grad();
  (h * scalar).backward({.gradient = ones({3}, f16)});
  EXPECT_EQ(scalar.grad().dtype(), f32);
  EXPECT_NEAR(scalar.grad().item(), h.at(0) + h.at(1) + h.at(2), 1e-2);
}

TEST(Policies, ABroadcastOperandIsCastBeforeItIsExpanded) {
  const Tensor x = values({64, 8}), bias = values({8}, f16);
  struct CastSizes : Observer {
    std::vector<int64_t> sizes;
    void after(const Call& call, const Tensor& y) override {
      if (call.op.name == "cast") sizes.push_back(y.numel());
    }
  } seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  EXPECT_EQ((x + bias).shape(), (Shape{64, 8}));
  EXPECT_EQ(seen.sizes, std::vector<int64_t>{8});
}

TEST(Policies, DoublesIntegersAndBoolsAreUntouched) {
  const Autocast on({.low = f16});
  const Tensor d = values({4, 4}, f64), i = from({1, 2, 3}, {3}, i64);
  const std::set<std::string> with_others = {"layer_norm", "batch_norm"};  // f32 parameters
  for (const Row& row : table()) {
    if (with_others.contains(row.op)) continue;
    EXPECT_EQ(row.run(d).dtype(), f64) << row.op;
  }
  EXPECT_EQ((i + i).dtype(), i64);
  EXPECT_EQ(sum(i).dtype(), i64);
  EXPECT_EQ(sum(gt(i, 1)).dtype(), i64);
  EXPECT_ERROR((void)(d + values({4, 4}, f32)), "f64 and f32");
  EXPECT_ERROR((void)matmul(d, values({4, 4}, f32)), "f64 and f32");
  EXPECT_ERROR((void)(values({3}, f16) + i), "f16 and i64");
}

TEST(Policies, AnExplicitResultDtypeIsExempt) {
  const Autocast on({.low = f16});
  const Tensor x = values({4, 4});
  EXPECT_EQ(matmul(x, x, {.out = f32}).dtype(), f32);
  EXPECT_EQ(to_vector(matmul(x, x, {.out = f32})), to_vector([&] {
              const Autocast off({.enabled = false});
              return matmul(x, x);
            }()))
      << "neither input nor output was rounded";
  EXPECT_EQ(cast(x, bf16).dtype(), bf16);
}

TEST(Policies, InPlaceKeepsTheDtypeOfItsTarget) {
  const Autocast on({.low = f16});
  const NoGrad off;
  const Tensor h = values({3}, f16), s = values({3}, f32);
  add_(h, values({3}, f32));
  add_(s, values({3}, f16));
  mul_(h, 2.0);
  EXPECT_EQ(h.dtype(), f16);
  EXPECT_EQ(s.dtype(), f32);
}

struct Twice : Function<Twice> {
  static constexpr OpInfo info{"twice"};
  static Tensor forward(Ctx&, const Tensor& x) { return x * 2; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * 2}; }
};
struct TwiceLow : Function<TwiceLow> {
  static constexpr OpInfo info{"twice_low", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& x) { return cast(x * 2, ctx.dtype()); }
};

TEST(Policies, AUsersOpRunsAsItsInfoSays) {
  const Autocast on({.low = f16});
  EXPECT_EQ(Twice::apply(values({3})).dtype(), f32);
  EXPECT_EQ(Twice::apply(values({3}, f16)).dtype(), f16);
  EXPECT_EQ(TwiceLow::apply(values({3})).dtype(), f16);
}

// --- gradients ---

TEST(Gradients, OfWeightsLeaveTheAccumulatorsUnrounded) {
  for (const DType low : {f16, bf16}) {
    const Tensor x = values({16, 8}, f32, 3), w = leaf({4, 8}), b = leaf({4});
    Tensor y;
    {
      const Autocast on({.low = low});
      y = linear(x, w, b);
      EXPECT_EQ(y.dtype(), low);
      y = sum(square(y));
    }
    y.backward();  // the region is closed
    EXPECT_EQ(w.grad().dtype(), f32);
    EXPECT_EQ(b.grad().dtype(), f32);
    EXPECT_FALSE(representable(w.grad(), low));
    EXPECT_FALSE(representable(b.grad(), low));

    const Tensor w2 = w.detach().clone().set_requires_grad(),
                 b2 = b.detach().clone().set_requires_grad();
    sum(square(linear(x, w2, b2))).backward();
    expect_near(w.grad(), w2.grad(), low == f16 ? 4e-3 : 3e-2);
    expect_near(b.grad(), b2.grad(), low == f16 ? 4e-3 : 3e-2);
  }
}

TEST(Gradients, OfActivationsAreNarrowAndOfConvolutionsToo) {
  const Tensor x = values({2, 3, 6, 6}), w = leaf({4, 3, 3, 3}), w2 = leaf({2, 4, 1, 1});
  const Autocast on({.low = bf16});
  const Tensor h = conv2d(x, w), y = conv2d(h, w2);
  const std::vector<Tensor> g = grad({sum(y)}, {h, w, w2});
  EXPECT_EQ(g[0].dtype(), bf16);
  EXPECT_EQ(g[1].dtype(), f32);
  EXPECT_EQ(g[2].dtype(), f32);
  EXPECT_FALSE(representable(g[2], bf16));
}

TEST(Gradients, BackwardIsTheSameInsideAndOutsideOfTheRegion) {
  const Tensor x = values({8, 4}, f32, 2);
  std::vector<std::vector<double>> grads;
  for (const bool inside : {false, true}) {
    const Tensor w = leaf({4, 4});
    std::optional<Autocast> on;
    on.emplace(AutocastOptions{.low = f16});
    const Tensor loss = mean(softmax(gelu(linear(linear(x, w), w))) * x);
    if (!inside) on.reset();
    loss.backward();
    grads.push_back(to_vector(w.grad()));
  }
  EXPECT_EQ(grads[0], grads[1]);
}

TEST(Gradients, SecondOrderGoesThroughTheCasts) {
  const Tensor x = values({4, 4}, f32, 2), w = leaf({4, 4});
  Tensor loss;
  {
    const Autocast on({.low = bf16});
    loss = sum(square(linear(x, w)));
  }
  const Tensor g = grad({loss}, {w}, {.create_graph = true})[0];
  EXPECT_EQ(g.dtype(), f32);
  sum(square(g)).backward();
  const Tensor v = w.detach().clone().set_requires_grad();
  const Tensor h = grad({sum(square(linear(x, v)))}, {v}, {.create_graph = true})[0];
  sum(square(h)).backward();
  expect_near(w.grad(), v.grad(), 5e-2);
}

// --- regions ---

TEST(Region, NestsAndTheInnermostWins) {
  const Tensor x = values({4, 4});
  const auto dtype = [&] { return matmul(x, x).dtype(); };
  EXPECT_EQ(dtype(), f32);
  {
    const Autocast outer({.low = f16});
    EXPECT_EQ(dtype(), f16);
    {
      const Autocast inner({.low = bf16});
      EXPECT_EQ(dtype(), bf16);
      {
        const Autocast island({.enabled = false});
        EXPECT_EQ(dtype(), f32);
        EXPECT_ERROR((void)(x + cast(x, f16)), "different dtypes");
        const Autocast again;
        EXPECT_EQ(dtype(), bf16) << "a region without a dtype has that of the one around it";
      }
      EXPECT_EQ(dtype(), bf16);
    }
    EXPECT_EQ(dtype(), f16);
  }
  EXPECT_EQ(dtype(), f32);
  EXPECT_EQ(Autocast::innermost(), nullptr);
}

TEST(Region, EndsWithAnException) {
  const Tensor x = values({4, 4});
  try {
    const Autocast on({.low = f16});
    (void)matmul(x, values({3, 3}));
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("matmul: inner dimensions differ"), std::string::npos);
  }
  EXPECT_EQ(matmul(x, x).dtype(), f32);
  EXPECT_ERROR(Autocast({.low = f16, .overrides = {{"sofmax", Precision::Low}}}), "sofmax");
  EXPECT_EQ(matmul(x, x).dtype(), f32) << "a region that failed to open is not open";
}

TEST(Region, IsThisThreadsAlone) {
  const Autocast on({.low = f16});
  const Tensor x = values({4, 4});
  DType there = boolean;
  std::thread([&] { there = matmul(x, x).dtype(); }).join();
  EXPECT_EQ(there, f32);
  EXPECT_EQ(matmul(x, x).dtype(), f16);
}

TEST(Region, TakesItsDtypeByName) {
  const Tensor x = values({4, 4});
  const std::string name = "float16";
  EXPECT_EQ(Autocast({.low = "fp16"}).low(), f16);
  EXPECT_EQ(Autocast({.low = "bf16"}).low(), bf16);
  EXPECT_EQ(Autocast({.low = "fp32"}).low(), f32);
  EXPECT_EQ(Autocast({.low = name}).low(), f16);
  EXPECT_EQ(Autocast().low(), bf16);
  EXPECT_ERROR(Autocast({.low = "fp8"}), "unknown dtype 'fp8'");
  EXPECT_ERROR(Autocast({.low = i64}), "autocast to i64: low is f16, bf16 or f32");
  EXPECT_ERROR(Autocast({.low = f64}), "autocast to f64");
}

TEST(Region, OfF32ChangesNothing) {
  const Tensor x = values({8, 4}), w = leaf({4, 4}), v = leaf({4, 4});
  const auto run = [&](const Tensor& w) { return mean(softmax(gelu(linear(x, w)))); };
  const Tensor plain = run(v);
  Seen seen;
  {
    const Autocast on({.low = f32});
    const Observe watch(seen);
    const Tensor loss = run(w);
    EXPECT_EQ(to_vector(loss), to_vector(plain));
    loss.backward();
  }
  plain.backward();
  EXPECT_EQ(seen.count["cast"], 0);
  EXPECT_EQ(to_vector(w.grad()), to_vector(v.grad()));
}

TEST(Region, OpensAgainFromASnapshot) {
  Autocast::Snapshot saved = Autocast::snapshot();
  EXPECT_FALSE(saved.enabled);
  {
    const Autocast on(
        {.low = f16, .preset = Preset::Fast, .overrides = {{"gelu", Precision::Full}}});
    saved = Autocast::snapshot();
  }
  const Tensor x = values({4, 4});
  const Autocast again(saved);
  EXPECT_EQ(matmul(x, x).dtype(), f16);
  EXPECT_EQ(softmax(matmul(x, x)).dtype(), f16);
  EXPECT_EQ(gelu(matmul(x, x)).dtype(), f32);
}

// --- the cache ---

TEST(Cache, CastsALeafOncePerRegion) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  for (const bool cache : {true, false}) {
    Seen seen;
    const Autocast on({.low = f16, .cache = cache});
    const Observe watch(seen);
    Tensor y = x;
    for (int i = 0; i < 5; ++i) y = linear(y, w);
    EXPECT_EQ(seen.count["cast"], cache ? 1 : 5);
    EXPECT_EQ(on.cache_stats().casts, cache ? 1 : 0);
    EXPECT_EQ(on.cache_stats().hits, cache ? 4 : 0);
  }
}

TEST(Cache, GradientsAreThoseWithoutIt) {
  const Tensor x = values({4, 4}, f16);
  std::vector<std::vector<double>> grads;
  for (const bool cache : {true, false}) {
    const Tensor w = leaf({4, 4});
    const Autocast on({.low = f16, .cache = cache});
    (sum(linear(linear(x, w), w)) + sum(matmul(x, w.t())) + sum(matmul(x, slice(w, 0, 1, 3).t())))
        .backward();
    EXPECT_EQ(w.grad().dtype(), f32);
    grads.push_back(to_vector(w.grad()));
  }
  EXPECT_EQ(grads[0], grads[1]);
}

TEST(Cache, AViewOfALeafIsAViewOfItsCopy) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor flat = leaf({32}, f32, 5);
  Seen seen;
  {
    const Autocast on({.low = f16});
    const Observe watch(seen);
    const Tensor y = linear(x, w) + matmul(x, transpose(w)) +
                     matmul(x, reshape(reshape(w, {16}), {4, 4})) +
                     matmul(x, expand(slice(w, 1, 0, 1), {4, 4})) + matmul(expand(x, {2, 4, 4}), w);
    EXPECT_EQ(seen.count["cast"], 1);
    // Parameters packed in one leaf: views first, the whole never.
    const Tensor a = reshape(narrow(flat, 0, 0, 16), {4, 4}),
                 b = reshape(narrow(flat, 0, 16, 16), {4, 4});
    const Tensor z = matmul(y, a) + matmul(y, b);
    EXPECT_EQ(seen.count["cast"], 2);
    EXPECT_EQ(to_vector(matmul(x, b)), to_vector(matmul(x, cast(b, f16))));
    sum(z).backward();
  }
  EXPECT_EQ(w.grad().dtype(), f32);
  EXPECT_EQ(flat.grad().dtype(), f32);
  for (int64_t i = 0; i < 32; ++i) EXPECT_NE(flat.grad().at(i), 0) << i;
}

TEST(Cache, GradientsOfAViewItselfAreThere) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor t = transpose(w);
  int called = 0;
  register_hook(t, [&](const Tensor&) { return ++called, Tensor(); });
  const Autocast on({.low = f16});
  const Tensor y = sum(matmul(x, t));
  EXPECT_EQ(grad({y}, {t}, {.retain_graph = true})[0].dtype(), f32);
  y.backward();
  EXPECT_EQ(called, 2);
}

TEST(Cache, LeavesThatShareStorageKeepTheirOwnGradients) {
  const Tensor x = values({4, 4}, f16), w = leaf({4, 4});
  const Tensor twin = w.detach().set_requires_grad();
  const Autocast on({.low = f16});
  sum(linear(x, w)).backward();
  sum(linear(x, twin)).backward();
  EXPECT_EQ(to_vector(w.grad()), to_vector(twin.grad()));
}

TEST(Cache, IsNotStaleAfterAWriteInsideTheRegion) {  // R12
  const Tensor x = values({2, 4}, f16), w = leaf({4, 4});
  Seen seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  const Tensor before = linear(x, w);
  {
    const NoGrad off;
    mul_(w, 2.0);
  }
  const Tensor after = linear(x, w);
  for (int64_t i = 0; i < after.numel(); ++i) EXPECT_NEAR(after.at(i), 2 * before.at(i), 1e-2);
  w.set_data(ones({4, 4}));
  EXPECT_NEAR(linear(x, w).at(0), x.at(0) + x.at(1) + x.at(2) + x.at(3), 1e-2);
  EXPECT_EQ(seen.count["linear"], 3);
  EXPECT_EQ(on.cache_stats().casts, 3);
}

TEST(Cache, IsNotPoisonedUnderNoGrad) {
  const Tensor x = values({2, 4}, f16), w = leaf({4, 4});
  const Autocast on({.low = f16});
  {
    const NoGrad off;
    EXPECT_FALSE(linear(x, w).requires_grad());
    EXPECT_FALSE(matmul(x, w).requires_grad());
  }
  sum(linear(x, w)).backward();
  ASSERT_TRUE(w.grad());
  EXPECT_EQ(on.cache_stats().casts, 1) << "and used all the same";
  const NoGrad off;
  EXPECT_FALSE(linear(x, w).requires_grad());
}

TEST(Cache, KnowsTheDtypeAndEndsWithTheOutermostRegion) {
  const Tensor x = values({2, 4}), w = leaf({4, 4});
  const Autocast outer({.low = f16});
  EXPECT_EQ(linear(x, w).dtype(), f16);
  {
    const Autocast inner({.low = bf16});
    EXPECT_EQ(linear(x, w).dtype(), bf16);
    const Autocast island({.enabled = false});
    EXPECT_EQ(linear(x, w).dtype(), f32);
  }
  {
    const Autocast inner({.low = bf16});
    EXPECT_EQ(linear(x, w).dtype(), bf16);
    EXPECT_EQ(linear(x, w).dtype(), bf16);
  }
  EXPECT_EQ(linear(x, w).dtype(), f16);
  EXPECT_EQ(outer.cache_stats().casts, 2);
  EXPECT_EQ(outer.cache_stats().hits, 3);
}

TEST(Cache, LeaksNothing) {
  const Tensor x = values({2, 64}, f16), w = leaf({64, 64});
  const int64_t before = memory_stats().in_use;
  const long handles = w.storage().use_count();
  {
    const Autocast on({.low = f16});
    (void)linear(x, w);
    EXPECT_EQ(memory_stats().in_use - before, 64 * 64 * 2) << "the copy alone: no graph, no leaf";
    EXPECT_EQ(w.storage().use_count(), handles);
    sum(linear(x, w)).backward();
    w.set_grad({});
  }
  EXPECT_EQ(memory_stats().in_use, before);

  const Autocast on({.low = f16});  // one region for a thousand batches that are leaves
  for (int i = 0; i < 1000; ++i) (void)matmul(leaf({8, 64}), w);
  EXPECT_LT(memory_stats().in_use - before, 64 * 64 * 2 + 200 * 8 * 64 * 2);
}

// --- presets and overrides ---

TEST(Presets, DoWhatTheirNamesSay) {
  using enum Precision;
  const auto dtype = [&](Preset p, const std::string& op, DType given = f16) {
    const Autocast on({.low = f16, .preset = p});
    for (const Row& row : table())
      if (row.op == op) return row.run(values({4, 4}, given)).dtype();
    return boolean;
  };
  EXPECT_EQ(dtype(Preset::Torch, "softmax"), f32);
  for (const char* op : {"softmax", "log_softmax", "layer_norm"})
    EXPECT_EQ(dtype(Preset::Fast, op), f16) << op;
  EXPECT_EQ(dtype(Preset::Fast, "exp"), f32);
  for (const char* op : {"gelu", "gelu_tanh", "silu", "sigmoid", "tanh"}) {
    EXPECT_EQ(dtype(Preset::Safe, op), f32) << op;
    EXPECT_EQ(dtype(Preset::Torch, op), f16) << op;
  }
  EXPECT_EQ(dtype(Preset::Safe, "sqrt"), f16);
  EXPECT_EQ(dtype(Preset::TensorCoresOnly, "matmul", f32), f32) << "from narrow operands";
  EXPECT_EQ(dtype(Preset::TensorCoresOnly, "softmax"), f16) << "no other op is touched";
  EXPECT_EQ(dtype(Preset::O1, "softmax"), f32);
  EXPECT_EQ(dtype(Preset::O2, "softmax"), f16);
  EXPECT_EQ(dtype(Preset::O2, "cross_entropy"), f32);
  EXPECT_EQ(dtype(Preset::O2, "mse_loss"), f32);
  EXPECT_EQ(dtype(Preset::O3, "mse_loss"), f16);
  EXPECT_EQ(dtype(Preset::O3, "matmul", f32), f16);
  for (const Preset off : {Preset::O0, Preset::Off}) {
    EXPECT_EQ(dtype(off, "matmul", f32), f32) << name(off);
    EXPECT_EQ(dtype(off, "softmax"), f16) << name(off);
  }
  const Tensor x = values({4, 4});
  const Autocast on({.low = bf16, .preset = Preset::TensorCoresOnly});
  EXPECT_EQ(to_vector(matmul(x, x)), to_vector(matmul(cast(x, bf16), cast(x, bf16), {.out = f32})));
}

TEST(Presets, AreInheritedByInnerRegions) {
  const Tensor x = values({4, 4}, f16);
  const Autocast outer({.low = f16, .preset = Preset::Fast});
  const Autocast inner({.overrides = {{"gelu", Precision::Full}}});
  EXPECT_EQ(softmax(x).dtype(), f16);
  EXPECT_EQ(gelu(x).dtype(), f32);
  const Autocast torch({.preset = Preset::Torch});
  EXPECT_EQ(softmax(x).dtype(), f32);
  EXPECT_EQ(gelu(x).dtype(), f32);
}

TEST(Overrides, OfOpsByNameAndGlob) {
  const Tensor x = values({4, 4}, f16), s = values({4, 4});
  const Autocast on({.low = f16,
                     .overrides = {{"*softmax", Precision::Native},
                                   {"relu", Precision::Full},
                                   {"matmul", Precision::Full},
                                   {"linear", Precision::Full},
                                   {"tan?", Precision::Low}}});
  EXPECT_EQ(softmax(x).dtype(), f16);
  EXPECT_EQ(log_softmax(x).dtype(), f16);
  EXPECT_EQ(relu(x).dtype(), f32);
  EXPECT_EQ(tanh(s).dtype(), f16);
  EXPECT_EQ(matmul(s, s).dtype(), f32);
  EXPECT_EQ(matmul(x, x).dtype(), f32);
  EXPECT_EQ(to_vector(linear(x, s)), to_vector(linear(cast(x, f32), s))) << "operands of one dtype";
}

TEST(Overrides, EveryOpRunsUnderEveryPrecision) {
  using enum Precision;
  for (const Row& row : table())
    for (const Precision p : {Any, Native, Low, Full, Widest})
      for (const DType given : {f32, f16}) {
        if ((p == Native || p == Any) && row.op == "layer_norm" && given == f32) continue;
        const Autocast on({.low = f16, .overrides = {{"*", p}}});
        const Tensor x = leaf({4, 4}, given);
        const Tensor y = row.run(x);
        if (is_float(y.dtype())) y.backward({.gradient = ones_like(y)});
        EXPECT_EQ(x.grad().dtype(), given) << row.op << " as " << name(p);
      }
}

TEST(Overrides, OfModulesByPath) {
  const Tensor x = values({4, 4}), h = values({4, 4}, f16);
  const Autocast on({.low = f16,
                     .overrides = {{"decoder.*.mlp", Precision::Full},
                                   {"encoder", Precision::Native},
                                   {"gelu", Precision::Native}}});
  const auto in = [&](const char* path, const auto& f) {
    const Scope module("", intern(path));
    return f().dtype();
  };
  const auto product = [&] { return matmul(h, h); };
  EXPECT_EQ(in("decoder.3.mlp", product), f32);
  EXPECT_EQ(in("decoder.3.mlp.up", product), f32) << "modules inside";
  EXPECT_EQ(in("decoder.3.mlpx", product), f16);
  EXPECT_EQ(in("decoder.3.attn", product), f16);
  EXPECT_EQ(in("encoder.0", [&] { return softmax(h); }), f16);
  EXPECT_EQ(in("decoder.0", [&] { return softmax(h); }), f32);
  EXPECT_EQ(in("decoder.3.mlp", [&] { return gelu(h); }), f16) << "a name beats a path";
  EXPECT_EQ(in("decoder.3.mlp", [&] { return relu(h); }), f16) << "what moves values follows them";
  EXPECT_EQ(product().dtype(), f16);
  EXPECT_EQ(matmul(x, x).dtype(), f16);
}

TEST(Overrides, InnerRegionsWinAndOuterOnesHold) {
  const Tensor h = values({4, 4}, f16);
  const Autocast outer(
      {.low = f16, .overrides = {{"softmax", Precision::Native}, {"exp", Precision::Native}}});
  {
    const Autocast inner({.overrides = {{"softmax", Precision::Full}}});
    EXPECT_EQ(softmax(h).dtype(), f32);
    EXPECT_EQ(exp(h).dtype(), f16);
  }
  EXPECT_EQ(softmax(h).dtype(), f16);
  const Autocast last({.overrides = {{"exp", Precision::Native}, {"exp", Precision::Full}}});
  EXPECT_EQ(exp(h).dtype(), f32) << "the last listed";
  const Scope module("", intern("head"));
  const Autocast by_path({.overrides = {{"head*", Precision::Native}}});
  EXPECT_EQ(exp(h).dtype(), f16) << "an inner path beats an outer name";
}

TEST(Overrides, RejectMisspeltOps) {
  using P = Precision;
  EXPECT_ERROR(Autocast({.overrides = {{"sofmax", P::Native}}}),
               "no op is called 'sofmax'; near it are softmax");
  EXPECT_ERROR(Autocast({.overrides = {{"LayerNorm", P::Native}}}), "near it are layer_norm");
  EXPECT_ERROR(Autocast({.overrides = {{"matmull", P::Full}}}),
               "for a module of that name, write 'matmull*'");
  EXPECT_ERROR(Autocast({.overrides = {{"", P::Full}}}), "an override without a name");
  for (const char* path :
       {"decoder", "conv1", "linear2", "head", "sofmax.0", "*mlp", "mlp", "attn"})
    EXPECT_EQ(error_of([&] { Autocast({.overrides = {{path, P::Full}}}); }), "no error") << path;
}

TEST(Overrides, AreReadFromText) {
  const Overrides o =
      parse_overrides("# a comment\n\n softmax = Native\r\ndecoder.*.mlp=full # here\n*norm = LOW");
  EXPECT_EQ(o, (Overrides{{"softmax", Precision::Native},
                          {"decoder.*.mlp", Precision::Full},
                          {"*norm", Precision::Low}}));
  EXPECT_TRUE(parse_overrides("").empty());
  EXPECT_ERROR(parse_overrides("softmax = Native\nexp"),
               "line 2: 'exp' is not of the form 'softmax = Native'");
  EXPECT_ERROR(parse_overrides("\n\nexp = f16"),
               "line 3: 'f16' is not a precision; known are Any, Native, Low");
  EXPECT_ERROR(parse_overrides("= Low"), "line 1: '= Low' names no op and no module");

  const std::string path =
      (std::filesystem::temp_directory_path() / "mixtape_overrides.txt").string();
  std::ofstream(path) << "exp = Any\nbad\n";
  EXPECT_ERROR(load_overrides(path), path + ": line 2: 'bad'");
  std::ofstream(path) << "exp = Any\n";
  EXPECT_EQ(load_overrides(path), (Overrides{{"exp", Precision::Any}}));
  std::filesystem::remove(path);
  EXPECT_ERROR(load_overrides(path), "cannot read '" + path);
}

// A string match per call would show here: 32 modules, one resolution each.
TEST(Overrides, AreResolvedOncePerOpAndModule) {
  const Overrides overrides = {{"a.*", Precision::Full}, {"b.*", Precision::Full}};
  const Autocast::Snapshot first = [&] {
    const Autocast on({.low = f16, .overrides = overrides});
    return Autocast::snapshot();
  }();
  const Autocast on({.low = f16, .overrides = overrides});
  EXPECT_EQ(Autocast::snapshot().rules, first.rules)
      << "the next step's region has what this one learnt";
}

// --- all together ---

TEST(Training, ReachesTheSameLossInBf16) {
  const Tensor x = values({32, 8}, f32, 7), target = values({32, 1}, f32, 11);
  std::map<DType, double> last;
  for (const DType low : {f32, bf16}) {
    const Tensor w1 = leaf({16, 8}, f32, 2), w2 = leaf({1, 16}, f32, 3), b = leaf({16}, f32, 4);
    for (int i = 0; i < 200; ++i) {
      Tensor loss;
      {
        const Autocast on({.low = low});
        loss = mse_loss(linear(tanh(linear(x, w1, b)), w2), target);
      }
      loss.backward();
      last[low] = loss.item();
      const NoGrad off;
      for (const Tensor& p : {w1, w2, b}) {
        add_(p, p.grad() * -0.05);
        p.set_grad({});
      }
    }
  }
  EXPECT_LT(last[f32], 0.08);
  EXPECT_NEAR(last[bf16], last[f32], 0.1 * last[f32]);
}

}  // namespace
}  // namespace mixtape::amp
