// Autocast's policies: the dtype in which every op runs, the tensors on the tape, the gradients.

#include "autograd/function.h"
#include "tests/support/amp.h"

namespace mixtape::amp {
using namespace internal;
namespace amp_test {

bool representable(const Tensor& x, DType narrow) {
  return to_vector(cast(cast(x.detach(), narrow), x.dtype())) == to_vector(x);
}

TEST(Policies, OfWhatIsMadeOfOps) {
  const Tensor h = values({4, 4}, f16), s = values({4, 4}), i = from({1, 0}, {2}, i64);
  const Tensor image = values({1, 2, 4, 4}), line = values({1, 2, 4}), cube = values({2, 4, 4});
  const Autocast on({.low = f16});
  for (const Tensor& y :  // Low
       {matmul(cube, cube), conv1d(line, values({3, 2, 1})), conv2d(image, values({3, 2, 1, 1})),
        einsum("ij,kj->ik", {s, s}), linear(s, s, values({4}))})
    EXPECT_EQ(y.dtype(), f16);
  for (const Tensor& y : {var(h), stddev(h), var(h, {1}), 1 / h, pow(2.0, h), norm(h)})  // Full
    EXPECT_EQ(y.dtype(), f32);
  EXPECT_EQ(stack({h, s}).dtype(), f32);
  EXPECT_EQ(stack({h, h}).dtype(), f16);
  EXPECT_EQ(index_put(h, {i}, values({2, 4})).dtype(), f32);
  for (const Tensor& y : {index_select(h, 0, i), sort(h).values, transpose(h), select(h, 0, 1)})
    EXPECT_EQ(y.dtype(), f16);
}

TEST(Policies, LowAddsItsBiasBeforeItRounds) {
  // f16 has no 2049: rounded first it would be 2048, and 2048 again when 1 is added.
  const Tensor x = from({2048, 1}, {1, 2}), w = ones({1, 2}), one = ones({1});
  const Autocast on({.low = f16});
  EXPECT_EQ(linear(x, w, one).item(), 2050);
  EXPECT_EQ(addmm(one, x, w.t()).item(), 2050);
  EXPECT_EQ(conv2d(x.reshape({1, 2, 1, 1}), w.reshape({1, 2, 1, 1}), one).item(), 2050);
}

TEST(Policies, LowSumsInF32) {
  constexpr int64_t n = 4096;  // in f16, 2048 + 1 is 2048
  const Tensor row = ones({1, n}), image = ones({1, n, 1, 1});
  const Autocast on({.low = f16});
  for (const Tensor& y :
       {matmul(row, row.t()), linear(row, row), conv2d(image, ones({1, n, 1, 1})),
        conv_transpose2d(image, ones({n, 1, 1, 1})), einsum("ij,kj->ik", {row, row})}) {
    EXPECT_EQ(y.dtype(), f16);
    EXPECT_EQ(y.item(), n);
  }
  const Tensor w = ones({1, 1}).set_requires_grad();
  sum(linear(ones({n + 1, 1}), w)).backward();
  EXPECT_EQ(w.grad().item(), n + 1) << "which f16 does not have";
}

TEST(Policies, ATableIsNotCastAndItsGradientSumsInF32) {
  const Tensor wide = leaf({3, 2}), narrow = leaf({3, 2}, f16),
               index = full({4096}, 1, i64);  // f16 counts to 2048
  Seen seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  EXPECT_EQ(embedding(wide, index).dtype(), f32);
  const Tensor rows = embedding(narrow, index);
  EXPECT_EQ(rows.dtype(), f16);
  EXPECT_EQ(seen.count["cast"], 0);
  EXPECT_EQ(grad({rows}, {narrow}, {.gradients = {ones({4096, 2}, f16)}})[0].at(2), 4096);
}

TEST(Policies, AFillBeyondTheDtypeSaturates) {
  const Tensor mask = from({1, 0}, {2}, boolean);
  const auto filled = [&](DType t, double value) {
    const Autocast on({.low = f16});
    return masked_fill(ones({2}, t), mask, value);
  };
  EXPECT_EQ(filled(f16, -1e9).dtype(), f16);
  EXPECT_EQ(filled(f16, -1e9).at(0), -65504);
  EXPECT_EQ(filled(f16, 1e5).at(0), 65504);
  EXPECT_EQ(filled(bf16, -3.4e38).at(0), -0x1.fep127);
  EXPECT_EQ(filled(f16, -INFINITY).at(0), -INFINITY);
  EXPECT_TRUE(std::isnan(filled(f16, NAN).at(0)));
  EXPECT_EQ(filled(f16, -1e9).at(1), 1);
}

TEST(Policies, ComparisonsGiveBoolOfMixedInputs) {
  const Autocast on({.low = f16});
  EXPECT_EQ(lt(values({3}, f16), values({3}, f32)).dtype(), boolean);
  EXPECT_EQ(argmax(values({3}, f16), 0).dtype(), i64);
}

TEST(Policies, LogicTakesMixedInputs) {
  const Tensor a = from({0, 1}, {2}, f16), b = from({1, 1}, {2});
  EXPECT_ERROR(logical_and(a, b), "different dtypes: f16 and f32");
  const Autocast on({.low = f16});
  EXPECT_EQ(to_vector(logical_and(a, b)), (std::vector<double>{0, 1}));
  EXPECT_EQ(to_vector(logical_or(a, b)), (std::vector<double>{1, 1}));
  EXPECT_EQ(to_vector(logical_xor(a, b)), (std::vector<double>{1, 0}));
}

TEST(Policies, LowSavesNarrowOperandsAndFullSavesWhatItRead) {
  const Tensor w = leaf({4, 4}), x = leaf({4, 4}, f16), target = from({0, 1, 2, 3}, {4}, i64);
  const Autocast on({.low = f16});
  const Tensor y = linear(x, w);
  EXPECT_EQ(y.grad_fn()->ctx.saved(0).dtype(), f16);
  EXPECT_EQ(y.grad_fn()->ctx.saved(1).dtype(), f16);
  EXPECT_EQ(log(y).dtype(), f32);
  EXPECT_EQ(log(y).grad_fn()->ctx.saved(0).dtype(), f16)
      << "the narrow input, not a wide copy of it";
  EXPECT_EQ(gelu(y).grad_fn()->ctx.saved(0).dtype(), f16);
  Seen seen;
  const Observe watch(seen);
  (void)layer_norm(y, {4}, leaf({4}), leaf({4}));
  (void)cross_entropy(y, target);
  EXPECT_EQ(seen.dtype["layer_norm"], f32);
  EXPECT_EQ(seen.dtype["cross_entropy"], f32);
  EXPECT_EQ(seen.count["cast"], 1) << "of the number of valid targets alone";
}

// Gradients of x, a weight, a bias and an f32 residual, in f32 and under Autocast.
void compare_with_residual(const std::vector<Shape>& shapes,
                           const std::function<Tensor(const std::vector<Tensor>&)>& f) {
  const auto gradients = [&](bool enabled) {
    std::vector<Tensor> in;
    for (const Shape& shape : shapes)  // (bf16 numbers, so that only products round)
      in.push_back(cast(values(shape, bf16, double(in.size() + 1)), f32).set_requires_grad());
    in[3] = leaf(shapes[3], f32, 4);
    const Autocast on({.low = bf16, .enabled = enabled});
    const Tensor y = f(in);
    EXPECT_EQ(y.dtype(), f32);
    y.backward({.gradient = values(y.shape(), f32, 5)});
    std::vector<Tensor> all{y};
    for (const Tensor& t : in) all.push_back(t.grad());
    return all;
  };
  const std::vector<Tensor> got = gradients(true), want = gradients(false);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].dtype(), f32);
    const bool rounds = 0 < i && i < 4;  // the gradient of the sums, to bf16, for all but their sum
    const double error = max(abs(got[i] - want[i])).item(), size = max(abs(want[i])).item();
    EXPECT_LE(error, size * (rounds ? 0x1p-7 : 1e-6)) << i;
    EXPECT_EQ(error > size * 1e-6, rounds) << i;
  }
}

TEST(Policies, AWideResidualIsNotRounded) {
  for (const Activation f : {Activation::None, Activation::Relu, Activation::GeluTanh}) {
    compare_with_residual({{3, 8}, {5, 8}, {5}, {3, 5}}, [&](const auto& in) {
      return linear(in[0], in[1], in[2], {.activation = f, .residual = in[3]});
    });
    compare_with_residual({{2, 3, 5, 4}, {4, 3, 2, 3}, {4}, {2, 4, 4, 2}}, [&](const auto& in) {
      return conv2d(in[0], in[1], in[2], {.activation = f, .residual = in[3]});
    });
  }
}

// layer_norm(x, ..., rounded) is the cast of layer_norm(x, ...), and so are gradients: bit for bit
// on the CPU; on a device, where statistics of rows that are written in 16 bits are added in
// another order, to rounding.
TEST(Policies, ANormThatRoundsIsItsCast) {
  const auto compare = [](DType from, DType to) {
    const auto run = [&](bool at_once) {
      const std::vector<Tensor> in{leaf({5, 24}, from), leaf({24}, f32, 2), leaf({24}, f32, 3)};
      const Tensor y = at_once ? layer_norm(in[0], {24}, in[1], in[2], 1e-5, to)
                               : cast(layer_norm(in[0], {24}, in[1], in[2]), to);
      EXPECT_EQ(y.dtype(), to);
      EXPECT_EQ(node_of(y)->grad_dtype, is_half(from) && !thread_state.policy ? to : f32);
      y.backward({.gradient = values(y.shape(), f32, 4)});
      return std::vector<std::vector<double>>{to_vector(y), to_vector(in[0].grad()),
                                              to_vector(in[1].grad()), to_vector(in[2].grad())};
    };
    const auto got = run(true), want = run(false);
    if (DefaultDevice::current().is_host()) {
      EXPECT_EQ(got, want) << name(from) << " " << name(to);
    }
    for (size_t part = 0; part < want.size(); ++part)
      for (size_t i = 0; i < want[part].size(); ++i)
        EXPECT_NEAR(got[part][i], want[part][i], part == 0 ? 0x1p-7 : 1e-5) << name(from) << part;
  };
  for (const DType from : {f32, f16, bf16})
    for (const DType to : {f32, f16, bf16}) {
      if (from == f32 || from == to) compare(from, to);
      const Autocast on({.low = f16});
      compare(from, to);
    }
}

TEST(Policies, WhatIsMadeOfFullOpsIsWideAsWell) {
  const Autocast on({.low = f16});
  EXPECT_EQ(var(values({4, 4}, f16)).dtype(), f32);
  EXPECT_EQ(stddev(values({4, 4}, f16)).dtype(), f32);
  const Autocast off({.enabled = false});
  EXPECT_EQ(var(values({4, 4}, f16)).dtype(), sum(values({4, 4}, f16)).dtype());
  EXPECT_EQ(stddev(values({4, 4}, f16)).dtype(), f16);
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

TEST(Policies, NativeReadsNarrowParametersBesideF32) {
  const Tensor x = randn({4, 3, 2}), w = rand({3}, f16).set_requires_grad(), b = rand({3}, f16);
  const auto check = [&](const auto& f) {
    EXPECT_ERROR(f(w, b), "beside f32 activations, got f16");
    const Tensor want = f(w.to(f32), b.to(f32));
    const Autocast on({.low = f16});
    const Tensor y = f(w, b);
    EXPECT_EQ(y.dtype(), f32);
    EXPECT_EQ(to_vector(y), to_vector(want));
    EXPECT_EQ(grad({sum(y)}, {w})[0].dtype(), f16);
  };
  check([&](const Tensor& a, const Tensor&) { return prelu(x, a); });
  check([&](const Tensor& a, const Tensor&) { return rms_norm(select(x, 2, 0), {3}, a); });
  check([&](const Tensor& a, const Tensor& c) {
    return batch_norm(x, {}, {}, a, c, {.training = true});
  });
}

TEST(Policies, WidestGoesToTheWidestPresent) {
  const Autocast on({.low = f16});
  const Tensor h = values({3}, f16), b = values({3}, bf16), s = values({3}, f32);
  EXPECT_EQ((h + h).dtype(), f16);
  EXPECT_EQ((s + s).dtype(), f32);
  EXPECT_EQ((h + s).dtype(), f32);
  EXPECT_EQ((h + b).dtype(), f32);
  EXPECT_EQ(cat({h, b, h}).dtype(), f32);
  const Tensor wide_h = h.to(f32), wide_b = b.to(f32);
  EXPECT_EQ(to_vector(cat({h, b, h, b})), to_vector(cat({wide_h, wide_b, wide_h, wide_b})));
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

TEST(Policies, IntegersAndBoolsAreUntouched) {
  const Autocast on({.low = f16});
  const Tensor d = values({4, 4}, f64), i = from({1, 2, 3}, {3}, i64);
  EXPECT_EQ((i + i).dtype(), i64);
  EXPECT_EQ(sum(i).dtype(), i64);
  EXPECT_EQ(sum(gt(i, 1)).dtype(), i64);
  EXPECT_ERROR((void)(d + values({4, 4}, f32)), "f64 and f32");
  EXPECT_ERROR((void)matmul(d, values({4, 4}, f32)), "f64 and f32");
  EXPECT_ERROR((void)(values({3}, f16) + i), "f16 and i64");
}

// Only activations decide. Other inputs are read in f32 or in the activations' dtype, and cast to
// the latter if they are in a third.
TEST(Policies, ParametersAndStatisticsFollow) {
  const Tensor h = values({4, 4}, f16), s = values({4, 4});
  for (const DType t : {f32, f16, bf16}) {
    const Tensor w = values({4, 4}, t), v = values({4}, t);
    const Autocast on({.low = f16});
    EXPECT_EQ(linear(h, w, v).dtype(), f16) << name(t);
    EXPECT_EQ(linear(s, w, v).dtype(), f16) << name(t);
    EXPECT_EQ(matmul(h, w).dtype(), f16) << name(t);
    EXPECT_EQ(layer_norm(h, {4}, v, v).dtype(), f32) << name(t);
    if (t != bf16) {
      EXPECT_EQ(rms_norm(h, {4}, v).dtype(), f16) << name(t);
    }
  }
  const Tensor mean = zeros({4}), variance = ones({4});
  Seen seen;
  const Autocast on({.low = f16});
  const Observe watch(seen);
  EXPECT_EQ(batch_norm(h, mean, variance, ones({4}), zeros({4}), {.training = true}).dtype(), f16);
  EXPECT_EQ(mean.dtype(), f32);
  EXPECT_NE(mean.at(0), 0) << "the running mean itself, not a copy of it";
  EXPECT_EQ(seen.count["cast"], 0);
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

TEST(AutocastDeathTest, RegionsEndInReverse) {
  EXPECT_DEATH(
      {
        auto outer = std::make_unique<Autocast>(AutocastOptions{.low = f16});
        const Autocast inner({.low = bf16});
        outer.reset();
      },
      "a region ends before a region opened in it");
}

struct Twice : Function<Twice> {
  static constexpr OpInfo info{"twice"};
  static Tensor forward(Ctx&, const Tensor& x) { return x * 2; }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * 2}; }
};
struct TwiceLow : Function<TwiceLow> {
  static constexpr OpInfo info{"twice_low", Precision::Low};
  static Tensor forward(Ctx& ctx, const Tensor& x) { return cast(x * 2, ctx.dtype()); }
  static Grads backward(const Ctx&, const Tensor& dy) { return {dy * 2}; }
};

template <Precision precision>
struct Pair : Function<Pair<precision>> {
  static constexpr OpInfo info{"pair", precision};
  static Tensor forward(Ctx&, const Tensor& a, const Tensor& b) { return cat({a, b}); }
  static Grads backward(const Ctx&, const Tensor&) { return {}; }
};

struct CubeFull : Function<CubeFull> {
  static constexpr OpInfo info{"cube_full", Precision::Full};
  static Tensor forward(Ctx& ctx, const Tensor& x) {
    ctx.save(x);
    return x * x * x;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy) {
    return {dy * square(ctx.saved(0)) * 3};
  }
};

TEST(Policies, AUsersFullOpComputesInF32) {
  const Autocast on({.low = f16});
  const Tensor x = full({2}, 50, f16).set_requires_grad(), y = CubeFull::apply(x);
  EXPECT_EQ(y.dtype(), f32);
  EXPECT_EQ(y.at(0), 125000) << "beyond f16";
  y.backward({.gradient = ones({2})});
  EXPECT_EQ(x.grad().dtype(), f16);
  EXPECT_EQ(x.grad().at(1), 7500);
}

TEST(Policies, AUsersOpRunsAsItsInfoSays) {
  const Autocast on({.low = f16});
  EXPECT_EQ(Twice::apply(values({3})).dtype(), f32);
  EXPECT_EQ(Twice::apply(values({3}, f16)).dtype(), f16);
  EXPECT_EQ(TwiceLow::apply(values({3})).dtype(), f16);
  const Tensor x = leaf({3});
  sum(TwiceLow::apply(x)).backward();
  EXPECT_EQ(to_vector(x.grad()), (std::vector<double>{2, 2, 2}));
  EXPECT_EQ(x.grad().dtype(), f32);
  const Autocast by_name({.overrides = {{"twice*", Precision::Full}}});
  EXPECT_EQ(Twice::apply(values({3}, f16)).dtype(), f32);
  EXPECT_EQ(TwiceLow::apply(values({3}, f16)).dtype(), f32);
}

TEST(Policies, AMixedCallIsToldWhetherARegionWouldCast) {
  const Tensor a = values({2}, f16), b = values({2});
  EXPECT_ERROR(Pair<Precision::Widest>::apply(a, b),
               "f16 and f32 (convert one with .to(), or run under amp::Autocast)");
  const Autocast on({.low = f16});
  EXPECT_EQ(Pair<Precision::Widest>::apply(a, b).dtype(), f32);
  EXPECT_ERROR(Pair<Precision::Any>::apply(a, b),
               "f16 and f32 (convert one with .to(), or give the op a Precision that amp::Autocast "
               "casts for)");
  const Autocast as_called({.overrides = {{"pair", Precision::Any}}});
  EXPECT_ERROR(Pair<Precision::Widest>::apply(a, b),
               "f16 and f32 (convert one with .to(); the region here, or an override in it, leaves "
               "them as they are)");
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

TEST(Policies, ADtypeThatIsAskedForStays) {
  const Tensor h = values({4, 4}, f16);
  const Autocast on({.low = f16});
  EXPECT_EQ(softmax(h).dtype(), f32);
  EXPECT_EQ(softmax(h, -1, f16).dtype(), f16);
  EXPECT_EQ(log_softmax(h, 0, bf16).dtype(), bf16);
  EXPECT_EQ(log_softmax(h, 0, f64).dtype(), f64);
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

}  // namespace amp_test
}  // namespace mixtape::amp
