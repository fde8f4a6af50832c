// Clipping: flags of gradients that are not finite, norms, limits.
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <thread>

#include "autograd/ops.h"
#include "core/warn.h"
#include "kernels/common/tensor_stats.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"
#include "tests/support/optim.h"

namespace mixtape::optim {
using namespace internal;
namespace optim_clip_test {

TEST(Kernels, UnscaleFlagsEachTensorThatIsNotFinite) {
  for (const bool writes : {true, false}) {
    const std::vector<Tensor> grads = {from({2, 4}, {2}),       from({1, inf}, {2}),
                                       from({nan}, {1}, f16),   from({3e38}, {1}),
                                       from({60000}, {1}, f16), Tensor({0}, f32)};
    const std::vector<View> views(grads.begin(), grads.end());
    const Tensor found({6}, f32);
    kernels::Launch launch(DefaultDevice::current());
    (writes ? kernels::unscale : kernels::find_nonfinite)(launch, views, scalar(2), found, View{});
    // 120000 is finite in f32, but not as an f16 gradient.
    EXPECT_EQ(to_vector(found), (std::vector<double>{0, 1, 1, 1, double(writes), 0}));
    EXPECT_EQ(grads[0].at(1), writes ? 8 : 4);
    EXPECT_EQ(grads[4].at(0), writes ? inf : 60000);
  }
}

TEST(Kernels, UnscaleFindsTheOneBadElement) {
  for (const int64_t bad : {0, 15, 16, 16383, 16384, 39999}) {
    const Tensor g({40000}, f32);
    kernels::Launch launch(g.device());
    kernels::fill(launch, 1, g);
    g.set(bad, -inf);
    const Tensor found({1}, f32);
    kernels::find_nonfinite(launch, std::vector<View>{g}, scalar(0x1p-16), found, View{});
    EXPECT_EQ(found.item(), 1) << bad;
    g.set(bad, 3e38);
    kernels::find_nonfinite(launch, std::vector<View>{g}, scalar(0x1p-16), found, View{});
    EXPECT_EQ(found.item(), 0) << bad;
  }
}

std::vector<double> counted_exponents(const std::vector<Tensor>& grads) {
  std::vector<double> counts(grads.size() * 256);
  for (size_t g = 0; g < grads.size(); ++g)
    for (int64_t i = 0; i < grads[g].numel(); ++i)
      ++counts[g * 256 + (std::bit_cast<uint32_t>(float(grads[g].at(i))) >> 23 & 255)];
  return counts;
}

TEST(Kernels, UnscaleCountsExponents) {
  using std::ldexp;
  for (const int64_t n : {1, 3, 255, 257, 8191, 40001}) {
    const auto made = [&](DType t, int low, int high) {
      const Tensor x = Tensor({n}, t, Device::cpu());
      for (int64_t i = 0; i < n; ++i)
        x.set(i,
              i % 7 == 3 ? -0.0 : (i % 2 ? 1.5 : -1) * ldexp(1, low + int(i * i % (high - low))));
      return x;
    };
    const std::vector<Tensor> grads = {made(f32, -140, 127), made(f16, -24, 15),
                                       Tensor({0}, f32),     made(bf16, -126, 127),
                                       made(f64, -120, 120), full({n}, nan, f32, Device::cpu())};
    const std::vector<double> want = counted_exponents(grads);
    std::vector<std::vector<double>> unscaled;
    for (const bool counts : {false, true}) {
      std::vector<Tensor> here;
      for (const Tensor& g : grads) here.push_back(g.clone().copied_to(DefaultDevice::current()));
      const std::vector<View> views(here.begin(), here.end());
      const Tensor found({int64_t(grads.size())}, f32),
          exponents({int64_t(grads.size()), kernels::exponent_bins}, i32);
      kernels::Launch launch(DefaultDevice::current());
      for (const auto& kernel : {kernels::find_nonfinite, kernels::unscale}) {
        kernel(launch, views, scalar(0.125), found, counts ? View(exponents) : View{});
        if (counts) {
          EXPECT_EQ(to_vector(exponents), want) << n;
        }
        EXPECT_EQ(to_vector(found), (std::vector<double>{0, 0, 0, 0, 0, 1}));
      }
      for (size_t g = 0; g < 5; ++g) {
        if (!counts) unscaled.push_back(to_vector(here[g]));
        EXPECT_EQ(to_vector(here[g]), unscaled[g]) << "counting changes nothing";
      }
    }
  }
}

// Exponents that lie far apart, in the first numbers or behind them, beside zeros, subnormals,
// infinities and NaN; and numbers of vectors and chunks, and one more or less.
TEST(Kernels, UnscaleCountsExponentsWhereverTheyAre) {
  const DefaultDevice cpu(Device::cpu());
  uint64_t state = 1;
  const auto random = [&] { return uint32_t((state = state * 6364136223846793005u + 1) >> 33); };
  using Field = std::function<uint32_t(int64_t i)>;  // the exponent of an element
  const std::vector<Field> fields = {
      [&](int64_t) { return random() % 2 * (100 + random() % 20); },
      [&](int64_t i) { return i < 300 ? 0 : 90 + random() % 40; },
      [&](int64_t i) { return i < 300 ? 20 : 255; },
      [&](int64_t i) { return i < 300 ? 255 : random() % 3; },
      [&](int64_t i) { return i % 500 == 499 ? random() % 256 : 120 + random() % 9; },
      [&](int64_t) { return random() % 256; },
      [](int64_t) { return 0; },
  };
  for (const DType dtype : {f32, f16, bf16, f64})
    for (const Field& field : fields) {
      std::vector<Tensor> grads;
      for (const int64_t n : {1, 7, 16, 17, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 16383,
                              16384, 16385, 33000}) {
        grads.push_back(Tensor({n}, f32));
        for (int64_t i = 0; i < n; ++i) {
          const uint32_t fraction = random() % 3 * random() & 0x7fffff, sign = random() << 31;
          grads.back().set(i, std::bit_cast<float>(sign | field(i) << 23 | fraction));
        }
        grads.back() = grads.back().to(dtype);
      }
      const std::vector<double> want = counted_exponents(grads);
      for (const int threads : {1, 2}) {
        const kernels::cpu::ThreadLimit limit(threads);
        const Tensor found({int64_t(grads.size())}, f32),
            exponents({int64_t(grads.size()), kernels::exponent_bins}, i32);
        kernels::Launch launch(Device::cpu());
        kernels::find_nonfinite(launch, std::vector<View>(grads.begin(), grads.end()), scalar(1),
                                found, exponents);
        EXPECT_EQ(to_vector(exponents), want) << dtype << " " << &field - fields.data();
      }
    }
}

TEST(Kernels, SurveyCountsWhatElementsAre) {
  const double tiny = 0x1p-1074;
  const std::vector<Tensor> tensors = {
      from({1, -2, 0, -0.0, inf, -inf, nan, 0x1p-14, -0x1p-15, 0x1p-24}, {10}, f16),
      from({0x1p-126, 0x1p-127, 3e38, nan}, {4}, bf16), from({0x1p-127, -7, inf}, {3}, f32),
      from({-1e300, tiny, 0x1p-1022}, {3}, f64), Tensor({0}, f32)};
  const std::vector<View> views(tensors.begin(), tensors.end());
  const Tensor stats({5, kernels::stats_size}, f64);
  kernels::Launch launch(DefaultDevice::current());
  kernels::tensor_stats(launch, views, stats);
  const std::vector<double> f16s = {2, 2, 1, 2, 2}, bf16s = {tensors[1].at(2), 0, 1, 0, 1},
                            f32s = {7, 1, 0, 0, 1}, f64s = {1e300, 0, 0, 0, 1}, none(5);
  std::vector<double> all;
  for (const auto& v : {f16s, bf16s, f32s, f64s, none}) all.insert(all.end(), v.begin(), v.end());
  EXPECT_EQ(to_vector(stats), all);
  const Tensor large({40000}, f16);
  kernels::fill(launch, 0, large);
  for (const int64_t i : {0, 16383, 16384, 39999}) large.set(i, nan);
  kernels::tensor_stats(launch, std::vector<View>{large}, stats);
  EXPECT_EQ(stats.at(2), 4);
  EXPECT_EQ(stats.at(3), 39996);
}

TEST(Clip, NormIsThatOfAllGradientsTogether) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor a = from({0, 0}, {2}).set_requires_grad(), b = from({0}, {1}).set_requires_grad();
    const Tensor unused = from({0}, {1}).set_requires_grad();
    a.set_grad(from({2, 3}, {2}, dtype));
    b.set_grad(from({6}, {1}, dtype));
    EXPECT_EQ(clip_grad_norm({a, unused, b}, 10).item(), 7);
    EXPECT_EQ(to_vector(a.grad()), (std::vector<double>{2, 3}));  // below the limit: the same bits
    const uint64_t version = a.grad().version();
    EXPECT_EQ(clip_grad_norm({a, unused, b}, 3.5).item(), 7);
    EXPECT_GT(a.grad().version(), version);
    EXPECT_NEAR(a.grad().at(1), 1.5, dtype == bf16 ? 8e-3 : 1e-3);
    EXPECT_NEAR(b.grad().at(0), 3 * 7 / (7 + 1e-6), is_half(dtype) ? 2e-2 : 1e-6);
  }
}

TEST(Clip, NormCountsEveryElement) {
  for (const DType dtype : {f64, f32, f16, bf16})
    for (const int64_t n : {1, 15, 16, 17, 16384, 40001}) {
      const Tensor p = Tensor({n}, f32).set_requires_grad();
      p.set_grad(Tensor({n}, dtype));
      double sum = 0;
      for (uint32_t i = 0; i < n; ++i) {
        p.grad().set(i, optim_problem::value(0, i, 0));
        sum += p.grad().at(i) * p.grad().at(i);
      }
      EXPECT_NEAR(clip_grad_norm({p}, 1e9).item(), std::sqrt(sum), 1e-7 * std::sqrt(sum)) << n;
    }
}

// 16385 elements: the last is a chunk of its own.
TEST(Clip, NormsOfOtherOrders) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor p = Tensor({16385}, f32).set_requires_grad(), q = from({0, 0}, {2});
    q.set_requires_grad();
    const auto norm = [&](double order, double max_norm = 1e9) {
      return clip_grad_norm({p, q}, max_norm, {.norm_type = order}).item();
    };
    p.set_grad(Tensor({16385}, dtype));
    kernels::Launch launch(DefaultDevice::current());
    kernels::fill(launch, 0, p.grad());
    p.grad().set(16384, -4);
    p.grad().set(5, 2);
    q.set_grad(from({-3, 0.5}, {2}, dtype));
    EXPECT_EQ(norm(1), 9.5);
    EXPECT_EQ(norm(inf), 4);
    EXPECT_NEAR(norm(3), std::cbrt(64 + 8 + 27 + 0.125), 1e-6);
    EXPECT_NEAR(norm(0.5), std::pow(2 + std::sqrt(2) + std::sqrt(3) + std::sqrt(0.5), 2), 1e-5);
    EXPECT_EQ(norm(1, 19), 9.5);
    EXPECT_EQ(q.grad().at(0), -3);
    EXPECT_EQ(norm(inf, 1), 4);
    EXPECT_NEAR(q.grad().at(0), -0.75, 4e-3);
    q.grad().set(1, nan);
    EXPECT_TRUE(std::isnan(norm(inf)));
    EXPECT_TRUE(std::isnan(norm(1)));
    p.set_grad({});
    q.set_grad(from({-3, -inf}, {2}, dtype));
    EXPECT_EQ(norm(inf), inf);
  }
}

TEST(Clip, NormOfNothingIsZero) {
  EXPECT_EQ(clip_grad_norm({}, 1).item(), 0);
  EXPECT_EQ(clip_grad_norm(problem(), 1).item(), 0);
}

TEST(Clip, AnInfiniteNormIsAnErrorOnRequest) {
  const Params params = problem();
  set_grads(params, 1, f32);
  params[1].grad().set(4, inf);
  EXPECT_EQ(error([&] { clip_grad_norm(params, 1, {.error_if_nonfinite = true}); }),
            "clip_grad_norm: the norm of 4 gradients is inf");
  EXPECT_EQ(params[1].grad().at(4), inf);
  EXPECT_EQ(clip_grad_norm(params, 1).item(), inf);
  EXPECT_EQ(params[0].grad().at(0), 0);  // as in PyTorch: 1 / inf
  EXPECT_TRUE(std::isnan(params[1].grad().at(4)));
}

TEST(Clip, LargeGradientsDoNotOverflowTheNorm) {
  const Tensor p = from({0, 0}, {2}).set_requires_grad();
  p.set_grad(from({3e30, 4e30}, {2}));
  EXPECT_FLOAT_EQ(static_cast<float>(clip_grad_norm({p}, 5).item()), 5e30f);
  EXPECT_FLOAT_EQ(static_cast<float>(p.grad().at(1)), 4);
}

TEST(Clip, FactorIncludesTheScaleOfTheGradients) {
  const Tensor total = scalar(8, f64), norm = scalar(0), factor = scalar(0);
  kernels::Launch launch(DefaultDevice::current());
  kernels::clip_factor(launch, total, scalar(0.5), 1, norm, factor);
  EXPECT_EQ(norm.item(), 4);
  EXPECT_FLOAT_EQ(static_cast<float>(factor.item()), 0.125f);
  kernels::clip_factor(launch, total, scalar(0.5), 100, norm, factor);
  EXPECT_EQ(factor.item(), 0.5);
}

TEST(Clip, OfF64IsInF64) {
  const Tensor p = from({0, 0}, {2}, f64).set_requires_grad();
  p.set_grad(from({3, 4}, {2}, f64));
  const Tensor norm = clip_grad_norm({p}, 1);
  EXPECT_EQ(norm.dtype(), f64);
  EXPECT_EQ(norm.item(), 5);
  EXPECT_NEAR(p.grad().at(0), 3 / (5 + 1e-6), 1e-15);
  EXPECT_NEAR(p.grad().at(1), 4 / (5 + 1e-6), 1e-15);
  p.set_grad(from({3, 4}, {2}));
  EXPECT_EQ(clip_grad_norm({p}, 1).dtype(), f32);
}

TEST(Clip, ValueLimitsEachElement) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor p = from({0, 0, 0, 0, 0}, {5}).set_requires_grad();
    p.set_grad(from({-2, -0.5, nan, 0.5, inf}, {5}, dtype));
    clip_grad_value({p}, 1);
    EXPECT_EQ(p.grad().at(0), -1);
    EXPECT_EQ(p.grad().at(1), -0.5);
    EXPECT_TRUE(std::isnan(p.grad().at(2)));
    EXPECT_EQ(p.grad().at(3), 0.5);
    EXPECT_EQ(p.grad().at(4), 1);
  }
}

TEST(Clip, ReachesTensorsThatShareAGradient) {
  for (const auto& [name, make] : problems) {
    const Params params = problem(), others = problem();
    const auto opt = make(params, {}), at_once = make(others, {});
    for (uint32_t t = 1; t <= 3; ++t) {
      set_grads(params, t, f32);
      set_grads(others, t, f32);
      Params held;
      for (const Tensor& p : others) held.push_back(p.grad());
      const double norm = clip_grad_norm(params, 0.1).item();
      EXPECT_EQ(clip_grad_norm(others, 0.1).item(), norm);
      opt->step();
      at_once->step();
      EXPECT_TRUE(bits(*opt) == bits(*at_once)) << name << " " << t;
      for (size_t i = 0; i < params.size(); ++i)
        EXPECT_EQ(to_vector(params[i].grad()), to_vector(held[i])) << "also after the step";
    }
  }
}

TEST(Clip, ComposesWithItself) {
  const Params params = problem();
  const auto norm = [&](const Params& p) { return clip_grad_norm(p, 1e9).item(); };
  const auto clip = [&](const Params& p, double to) {
    clip_grad_norm(p, to);
    return norm(p);
  };
  set_grads(params, 1, f32);
  EXPECT_NEAR(clip(params, 0.5), 0.5, 1e-6);
  EXPECT_NEAR(clip(params, 0.25), 0.25, 1e-6);
  const Params first = {params[0]}, rest(params.begin() + 1, params.end());
  const double all = std::hypot(clip(first, 0.01), norm(rest));
  EXPECT_NEAR(norm(params), all, 1e-6) << "of parameters with different factors";
  clip_grad_value(params, 1e-3);
  EXPECT_NEAR(norm({params[1]}), 1e-3 * std::sqrt(double(params[1].numel())), 1e-6);

  const Tensor x = from({1}, {1}).set_requires_grad();
  (x * 4.0).backward();
  clip_grad_norm({x}, 2);
  (x * 3.0).backward();
  EXPECT_NEAR(x.grad().item(), 5, 1e-5) << "of two passes, the first clipped";
  clip_grad_norm({x}, 1);
  x.set_grad(from({7}, {1}));
  EXPECT_EQ(x.grad().item(), 7) << "a new gradient is not multiplied";
  x.set_grad({});
  EXPECT_FALSE(x.grad());
}

TEST(Clip, KeepsWhatIsKnownOfTheLossScale) {
  const Tensor p = zeros({3, 2}).set_requires_grad(), q = zeros({2}).set_requires_grad();
  p.set_grad(transpose(ones({2, 3}), 0, 1));
  q.set_grad(ones({2}));
  for (const Tensor& t : {p, q}) t.autograd_meta().set_loss_scale({.unscaled = true});
  clip_grad_norm({p, q}, 1);
  EXPECT_TRUE(p.grad().is_contiguous());
  for (const Tensor& t : {p, q}) EXPECT_TRUE(t.autograd_meta().loss_scale().unscaled);
  p.set_grad(transpose(ones({2, 3}), 0, 1));
  p.autograd_meta().set_loss_scale({.number = 3});
  const OnWarning none([](const std::string&) {});
  EXPECT_TRUE(dense_grad(p).is_contiguous());
  EXPECT_EQ(p.autograd_meta().loss_scale().number, 3u);
  clip_grad_value({p}, 0.5);
  EXPECT_EQ(p.autograd_meta().loss_scale().number, 3u);
}

TEST(Clip, ThreadsMayReadGradients) {
  for (int i = 0; i < 20; ++i) {
    const Tensor p = zeros({1 << 16}).set_requires_grad();
    p.set_grad(ones({1 << 16}));
    clip_grad_norm({p}, 1);
    std::array<double, 2> seen = {};
    std::thread other([&] { seen[0] = p.grad().at((1 << 16) - 1); });
    seen[1] = p.grad().at((1 << 16) - 1);
    other.join();
    EXPECT_NEAR(seen[0], 0x1p-8, 1e-6);
    EXPECT_NEAR(seen[1], 0x1p-8, 1e-6);
  }
}

TEST(Clip, Errors) {
  EXPECT_EQ(error([] { clip_grad_norm({}, -1); }), "clip_grad_norm: max_norm must be >= 0, got -1");
  EXPECT_EQ(error([] { clip_grad_norm({}, nan); }),
            "clip_grad_norm: max_norm must be >= 0, got nan");
  EXPECT_EQ(error([] { clip_grad_norm({}, 1, {.norm_type = 0}); }),
            "clip_grad_norm: norm_type must be > 0, got 0");
  EXPECT_EQ(error([] { clip_grad_norm({}, 1, {.norm_type = nan}); }),
            "clip_grad_norm: norm_type must be > 0, got nan");
  EXPECT_EQ(error([] { clip_grad_value({}, -1); }), "clip_grad_value: limit must be >= 0, got -1");
}

}  // namespace optim_clip_test
}  // namespace mixtape::optim
