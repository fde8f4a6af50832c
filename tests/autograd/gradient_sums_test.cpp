// Sums of many gradients of one tensor in f16 and bf16, which stop growing at 2048 and 256 unless
// they are formed in f32.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "amp/amp.h"
#include "autograd/checkpoint.h"
#include "autograd/function.h"
#include "core/allocator.h"
#include "core/format.h"
#include "optim/optim.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace gradient_sums_test {

using test::error;

Tensor leaf(const Shape& shape, DType dtype) { return zeros(shape, dtype).set_requires_grad(); }
double rounded(double x, DType dtype) { return full({}, x, dtype).item(); }

bool on_host() { return DefaultDevice::current().is_host(); }

// Runs f(n, dtype, create_graph) for an n that the dtype cannot count to, one by one. (On a device,
// whose launches are emulated, in bf16, which stops at 256.)
template <class F>
void for_half_dtypes(const F& f) {
  for (const DType dtype : {bf16, f16})
    for (const bool recorded : {false, true}) {
      if (dtype == f16 && !on_host()) continue;
      const ::testing::ScopedTrace trace(__FILE__, __LINE__,
                                         fmt::format("{} {}", dtype, recorded ? "recorded" : ""));
      f(dtype == f16 ? 4096 : 320, dtype, recorded);
    }
}

TEST(GradientSums, OfManyUsesAreRoundedOnce) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor q = leaf({1}, dtype), h = q * 1.0;  // of a leaf and of a result
    Tensor s = zeros({1});
    for (int i = 0; i < n; ++i) s = s + (q * 1.0).to(f32) + (h * 1.0).to(f32);
    sum(s).backward({.create_graph = recorded});
    EXPECT_EQ(q.grad().item(), 2 * n);
    EXPECT_EQ(q.grad().dtype(), dtype);
  });
}

// The gradient of a norm's input is added to the one that waits there, in place, and only if no
// other tensor shares its memory.
TEST(GradientSums, OfANormAreWrittenWhereTheyWait) {
  const Tensor x = rand({3, 8}), w = rand({3, 8}), u = rand({3, 8});
  struct Result {
    Values gradient;
    const void* waiting;  // where the gradient of the use that is visited first was, and what
    const void* sum;
    Values kept;
  };
  const auto run = [&](bool keeps, double used) {
    const Tensor in = x.clone().set_requires_grad(), h = in * 2.0;
    const Tensor norm = layer_norm(h, {8}), same = reshape(h, {24});
    Result r{};
    Tensor kept;
    const HookHandle first = register_hook(same, [&](const Tensor& g) {
      r.waiting = g.raw();
      if (keeps) kept = g;
      return Tensor();
    });
    const HookHandle second = register_hook(h, [&](const Tensor& g) {
      r.sum = g.raw();
      return Tensor();
    });
    (sum(norm * w) + sum(same * reshape(u, {24})) * used).backward();
    r.gradient = to_vector(in.grad());
    if (kept) r.kept = to_vector(kept);
    return r;
  };
  const Result once = run(false, 1), kept = run(true, 1), none = run(false, 0);
  EXPECT_EQ(once.waiting, once.sum) << "in place";
  EXPECT_NE(kept.waiting, kept.sum);
  EXPECT_EQ(kept.kept, to_vector(reshape(u, {24}))) << "what another tensor holds stays";
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_NEAR(once.gradient[i], kept.gradient[i], 1e-6) << i;  // a sum may be fused
    EXPECT_NEAR(once.gradient[i], none.gradient[i] + 2 * u.at(int64_t(i)), 1e-5) << i;
  }
}

TEST(GradientSums, OfGradAndOfRecomputedOnes) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor q = leaf({1}, dtype);
    const auto many = [n](const Tensor& x) {
      Tensor s = zeros({1});
      for (int i = 0; i < n; ++i) s = s + (x * 1.0).to(f32);
      return s;
    };
    const Tensor g = grad({many(q * 1.0)}, {q}, {.create_graph = recorded})[0];
    EXPECT_EQ(g.item(), n);
    EXPECT_EQ(g.dtype(), dtype);
    const Tensor y = checkpoint([](const Tensor& x) { return x * 1.0; }, q * 1.0);
    (many(y) + checkpoint(many, q * 1.0)).backward({.create_graph = recorded});
    EXPECT_EQ(q.grad().item(), 2 * n);
  });
}

TEST(GradientSums, OfOneTensorJoinedWithItself) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor q = leaf({1}, dtype);
    sum(cat(std::vector<Tensor>(size_t(n), q)).to(f32)).backward({.create_graph = recorded});
    EXPECT_EQ(q.grad().item(), n);
  });
}

TEST(GradientSums, OfParts) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor q = leaf({2, 2}, dtype), whole = q * 1.0;
    Tensor s = zeros({2});
    for (int i = 0; i < n; ++i) s = s + select(whole, 0, 1).to(f32);
    (sum(s) + sum(whole.to(f32)) + sum(narrow(whole, 1, 1, 1).to(f32)) * 15)
        .backward({.create_graph = recorded});
    EXPECT_EQ(to_vector(q.grad()), (Values{1, 16, rounded(n + 1, dtype), rounded(n + 16, dtype)}));
  });
}

// A part that goes backwards ends where it begins in memory.
TEST(GradientSums, OfPartsThatGoBackwards) {
  const auto gradient = [](const auto& f) {
    const Tensor x = leaf({4}, f32);
    f(x * 1.0).backward();
    return to_vector(x.grad());
  };
  const auto backwards = [](const Tensor& x) { return sum(x(Slice(None, None, -1))); };
  EXPECT_EQ(gradient([&](const Tensor& x) { return backwards(x) + backwards(x); }),
            (Values{2, 2, 2, 2}));
  EXPECT_EQ(gradient([&](const Tensor& x) { return sum(x(Slice(0, 2))) + backwards(x); }),
            (Values{2, 2, 1, 1}));
  EXPECT_EQ(gradient([&](const Tensor& x) { return backwards(x) + x(0); }), (Values{2, 1, 1, 1}));
  EXPECT_EQ(gradient([&](const Tensor& x) {
              return sum(x(Slice(3, 1, -1))) * 5 + sum(x(Slice(1, None, -1)));
            }),
            (Values{1, 1, 5, 5}));
}

// Parts that do not meet need no f32 buffer.
TEST(GradientSums, OfPartsApartTakeNoMore) {
  const auto used = [](DType dtype) {
    const Tensor x = leaf({256, 300}, dtype), h = x * 1.0;
    const Tensor a = narrow(h, 1, 0, 100), b = narrow(h, 1, 100, 100), c = narrow(h, 1, 200, 100);
    const Tensor s = sum(b * 3.0) + sum(c) + sum(a);
    const int64_t before = memory_stats().in_use;
    reset_peak();
    s.backward();
    EXPECT_EQ(x.grad().at(150), 3);
    EXPECT_EQ(x.grad().at(250), 1);
    return memory_stats().peak - before;
  };
  EXPECT_LT(double(used(bf16)), 0.6 * double(used(f32)));
}

// Attention writes the gradients of three parts of one tensor where they belong in that of the
// whole. Whatever else happens to them, they are those of separate tensors.
TEST(GradientSums, OfHeadsInOneStorage) {
  const auto gradients = [](bool split, int with) {
    const Seed seed(3);
    const Tensor x = randn({2, 5, 24}).set_requires_grad(), y = x * 1.0;
    std::vector<Tensor> heads;
    if (split)
      heads = split_heads(y, 2);
    else
      for (int i = 0; i < 3; ++i)
        heads.push_back(contiguous(transpose(select(reshape(y, {2, 5, 3, 2, 4}), 2, i), 1, 2)));
    const Tensor &q = heads[0], &k = heads[1], &v = heads[2];
    HookHandle hook;
    Tensor kept;
    if (with == 1) hook = register_hook(k, [](const Tensor& g) { return g * 2.0; });
    if (with == 2) hook = register_hook(k, [&](const Tensor& g) { return kept = g, Tensor(); });
    if (with == 3) retain_grad(q);
    Tensor o = scaled_dot_product_attention(q, with == 4 ? k.detach() : k, v, {.causal = true});
    if (with == 5) o = o + k * 0.5;
    Tensor loss = sum(square(o));
    if (with == 6) loss = loss + sum(square(y)) + sum(select(y, 2, 3));
    loss.backward();
    std::vector<Tensor> all{x.grad()};
    if (with == 2) all.push_back(kept);
    if (with == 3) all.push_back(q.grad());
    return all;
  };
  for (int with = 0; with < 7; ++with) {
    const std::vector<Tensor> one = gradients(true, with), apart = gradients(false, with);
    for (size_t i = 0; i < one.size(); ++i) {
      const Values a = to_vector(one[i]), b = to_vector(apart[i]);
      for (size_t e = 0; e < a.size(); ++e) ASSERT_NEAR(a[e], b[e], 1e-5) << with << " at " << e;
    }
  }
}

// Parts that are no more than copied take no pass of zeros, but those that nothing used are zeros.
TEST(GradientSums, OfHeadsThatAreNotUsed) {
  for (const DType dtype : {f32, bf16}) {
    const Tensor x = leaf({1, 2, 6}, dtype);
    const std::vector<Tensor> heads = split_heads(x * 1.0, 1);
    (sum(heads[0].to(f32)) * 3.0 + sum(heads[2].to(f32))).backward();
    EXPECT_EQ(to_vector(x.grad()), (Values{3, 3, 0, 0, 1, 1, 3, 3, 0, 0, 1, 1}));
  }
  EXPECT_EQ(error([] { split_heads(zeros({1, 2, 6}), 4); }),
            "split_heads: an input of shape [1, 2, 6] does not divide into 3 parts of 4 heads");
}

TEST(GradientSums, OfManyPasses) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor p = leaf({1}, dtype);
    const auto passes = [&] {
      for (int i = 0; i < n; ++i) sum(p * 1.0).backward({.create_graph = recorded});
    };
    passes();
    EXPECT_EQ(p.grad().item(), n);
    EXPECT_EQ(p.grad().dtype(), dtype);
    const void* const where = p.grad().raw();
    {  // Writes of others to the gradient count.
      const NoGrad off;
      fill_(p.grad(), 1);
    }
    passes();
    EXPECT_EQ(p.grad().item(), rounded(n + 1, dtype));
    if (!recorded) {
      EXPECT_EQ(p.grad().raw(), where);
    }
    optim::clip_grad_norm({p}, 1);
    passes();
    EXPECT_EQ(p.grad().item(), rounded(n + 1, dtype));
    p.set_grad({});
    passes();
    EXPECT_EQ(p.grad().item(), n);
  });
}

TEST(GradientSums, OfResultsThatKeepThem) {
  for_half_dtypes([](int n, DType dtype, bool recorded) {
    const Tensor p = leaf({1}, dtype), y = p * 1.0;
    retain_grad(y);
    for (int i = 0; i < n; ++i)
      sum(y * 1.0).backward({.retain_graph = true, .create_graph = recorded});
    EXPECT_EQ(y.grad().item(), n);
  });
}

TEST(GradientSums, StayInF32IfTheLeafSaysSo) {
  for (const DType dtype : {f16, bf16}) {
    const Tensor p = leaf({1}, dtype);
    p.set_grad_dtype(f32);
    EXPECT_EQ(p.grad_dtype(), f32);
    const Tensor x = full({1, 1}, 0.1, dtype);
    for (int i = 0; i < 100; ++i)
      (sum(p * 1.0) + sum(linear(x, reshape(p, {1, 1})) * 0.5)).backward();
    EXPECT_EQ(p.grad().dtype(), f32);
    EXPECT_NEAR(p.grad().item(), 100 * (1 + 0.5 * x.item()), 1e-3);
    const Tensor g = grad({p * 3.0}, {p})[0];
    EXPECT_EQ(g.dtype(), f32);
    p.set_grad_dtype(dtype);
    EXPECT_EQ(p.grad().dtype(), dtype);
    p.set_grad_dtype(f32);
    p.set_data(zeros({1}, f64));
    EXPECT_EQ(p.grad_dtype(), f64);
    EXPECT_FALSE(p.has_grad());
  }
  const Tensor x = zeros({1}, f16), p = leaf({1}, f32);
  EXPECT_EQ(error([&] { x.set_grad_dtype(f32); }),
            "set_grad_dtype() of a tensor that is not a leaf which requires a gradient");
  EXPECT_EQ(error([&] { p.set_grad_dtype(f16); }),
            "the gradient of a tensor of f32 must be f32, got f16");
  p.set_grad_dtype(f32);
}

// A sum of 1024 times 1/1024 in bf16 would keep a quarter.
TEST(GradientSums, InF32TrainParametersAsInHalf) {
  for (const DType dtype : {f16, bf16})
    for (const bool in_f32 : {false, true}) {
      const Tensor p = leaf({1}, dtype);
      if (in_f32) p.set_grad_dtype(f32);
      optim::SGD opt({p}, {.lr = 1});
      opt.set_multi_precision(!in_f32);
      amp::GradScaler scaler(dtype, {.init_scale = 4});
      const int n = on_host() ? 1024 : 128;
      for (int i = 0; i < n; ++i) scaler.scale(sum(p * (1.0 / n)).to(f32)).backward();
      scaler.unscale(opt);
      EXPECT_EQ(p.grad().item(), 1);
      EXPECT_EQ(optim::clip_grad_norm({p}, 0.5).item(), 1);
      EXPECT_TRUE(scaler.step(opt));
      scaler.update();
      EXPECT_EQ(p.item(), -0.5);
      opt.zero_grad();
      EXPECT_FALSE(p.has_grad());
    }
}

// Steps of one op add several gradients of an element: one rounding, at the end.
TEST(GradientSums, OfWindowsAreRoundedOnce) {
  const struct {
    const char* name;
    Shape shape;
    Tensor (*f)(const Tensor&);
  } cases[] = {{"unfold", {1, 2, 6, 6}, [](const Tensor& x) { return unfold(x, Size2(3)); }},
               {"dilated unfold",
                {1, 2, 7, 7},
                [](const Tensor& x) { return unfold(x, Size2(3), {.dilation = 2, .padding = 1}); }},
               {"reflect",
                {2, 5, 5},
                [](const Tensor& x) { return pad(x, {3, 3, 3, 3}, PadMode::Reflect); }},
               {"replicate",
                {2, 3, 3},
                [](const Tensor& x) { return pad(x, {3, 4, 3, 5}, PadMode::Replicate); }},
               {"circular",
                {2, 3, 3},
                [](const Tensor& x) { return pad(x, {3, 3, 3, 3}, PadMode::Circular); }},
               {"max_pool3d",
                {1, 1, 5, 5, 5},
                [](const Tensor& x) { return max_pool3d(x, 3, {.stride = 1}); }},
               {"avg_pool3d",
                {1, 1, 5, 5, 5},
                [](const Tensor& x) { return avg_pool3d(x, 3, {.stride = 1}); }},
               {"adaptive_avg_pool3d",
                {1, 1, 7, 7, 7},
                [](const Tensor& x) { return adaptive_avg_pool3d(x, 3); }},
               {"conv3d",
                {1, 2, 5, 4, 4},
                [](const Tensor& x) {
                  const Seed seed(7);
                  return conv3d(x, randn({2, 2, 3, 3, 3}, bf16).to(x.dtype()), {}, {.padding = 1});
                }},
               {"grid_sample", {1, 2, 3, 3}, [](const Tensor& x) {
                  const Seed seed(7);
                  const Tensor grid = rand({1, 6, 6, 2}, f64).to(f32) * 2 - 1;
                  return grid_sample(x, x.dtype() == f64 ? grid.to(f64) : grid);
                }}};
  for (const auto& c : cases)
    for (const DType dtype : {f16, bf16}) {
      const Seed seed(3);
      const Tensor x = randn(c.shape, f64).to(dtype);
      const Tensor dy = randn(c.f(x).shape(), f64).to(dtype), size = abs(dy.to(f64));
      const auto run = [&](DType t, const Tensor& slopes) {
        const Tensor in = x.to(t).detach().clone().set_requires_grad();
        return grad({c.f(in)}, {in}, {.gradients = {slopes.to(t)}})[0].to(f64);
      };
      const Tensor got = run(dtype, dy), exact = run(f64, dy), terms = run(f64, size);
      const double ulp = dtype == f16 ? 0x1p-11 : 0x1p-8;
      for (int64_t i = 0; i < x.numel(); ++i)
        EXPECT_NEAR(got.at(i), exact.at(i),
                    ulp * std::abs(exact.at(i)) + 1e-5 * std::abs(terms.at(i)) + 0x1p-25)
            << c.name << " in " << dtype << ", element " << i;
    }
}

}  // namespace gradient_sums_test
}  // namespace mixtape
