// Results and gradients that are in range although steps on the way are not: sums and squares
// beyond f16 or f32, long sums, vectors without a direction. Numbers are in closed form.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "amp/amp.h"
#include "autograd/ops.h"
#include "autograd/vmap.h"
#include "optim/optimizers.h"
#include "tests/support/values.h"

namespace mixtape {
namespace range_test {

const Reduction Sum = Reduction::Sum;

double rounded(double x, DType dtype) { return full({}, x, dtype).item(); }
// Each number, or the largest of them where 0 is wanted, counts as 1.
void expect_ratio(const Tensor& x, const Values& want, double tolerance = 1e-6) {
  ASSERT_EQ(x.numel(), int64_t(want.size()));
  double scale = 0;
  for (const double w : want) scale = std::max(scale, std::abs(w));
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x.at(i) == want[size_t(i)]) continue;  // infinities, too
    const double w = want[size_t(i)], unit = w == 0 ? scale : std::abs(w);
    EXPECT_LE(std::abs(x.at(i) - w), tolerance * unit) << i << ": " << x.at(i) << ", not " << w;
  }
}

// --- f16: rounded once, at the end ---

TEST(InF16, ALossMayHaveTermsBeyondIt) {
  const Tensor zero = zeros({4}, f16);
  const auto lone = [](double x) { return row({x, 0, 0, 0}, f16); };
  const Tensor far = row({60000, 0, 0, 0}, f16), near = row({-60000, 0, 0, 0}, f16);
  const auto expect = [](const Tensor& loss, double want) {
    EXPECT_EQ(loss.dtype(), f16);
    EXPECT_EQ(loss.item(), rounded(want, f16));
  };
  expect(mse_loss(lone(300), zero), 22500);
  expect(l1_loss(far, near), 30000);
  expect(smooth_l1_loss(far, near), (120000 - 0.5) / 4);
  expect(huber_loss(lone(600), zero, {.delta = 1e4}), 45000);
  expect(binary_cross_entropy_with_logits(far, zero), (60000 + 3 * std::log(2)) / 4);
  expect(binary_cross_entropy_with_logits(far, zero, {.weight = full({}, 4, f16)}), 60000);
  expect(binary_cross_entropy_with_logits(near, row({1, 0, 0, 0}, f16),
                                          {.pos_weight = full({}, 4, f16)}),
         (240000 + 3 * std::log(2)) / 4);
  expect(kl_div(near, lone(2)), (2 * (std::log(2) + 60000)) / 4);
  expect(kl_div(near, lone(2), {.batch_mean = true}), (2 * (std::log(2) + 60000)) / 4);
  expect(soft_margin_loss(near, row({2, 0, 0, 0}, f16)), (120000 + 3 * std::log(2)) / 4);
  expect(hinge_embedding_loss(near, full({4}, -1, f16), {.margin = 10000}), 25000);
  expect(margin_ranking_loss(near, far, lone(1)), 30000);
  expect(gaussian_nll_loss(lone(300), zero, full({4}, 10, f16)), (9000 + 4 * std::log(10)) / 8);
  expect(poisson_nll_loss(zeros({1}, f16), full({1}, 3, i64), {.log_input = false}),
         -3 * std::log(1e-8));
  const Tensor apart = row({60000, -60000}, f16), pair = expand(apart, {4, 2}),
               second = from({1, 0, 0, 0}, {4}, i64);
  expect(cross_entropy(pair, second), 30000);
  expect(cross_entropy(pair, second, {.reduction = Sum, .weight = 0.25}), 30000);
  expect(nll_loss(pair * -1, second * 0, {.class_weights = full({2}, 4, f16)}), 60000);
  const Tensor a = full({1, 1}, 60000, f16);
  expect(triplet_margin_loss(a, -a, -a), 1);
  expect(pairwise_distance(a, full({1, 1}, -5000, f16)), 65000);
}

TEST(InF16, GradientsOfALossBeyondIt) {
  const Tensor x = row({300, 0, 0, 0}, f16).set_requires_grad();
  mse_loss(x, zeros({4}, f16)).backward();
  EXPECT_EQ(to_vector(x.grad()), (Values{150, 0, 0, 0}));
}

TEST(InF16, NormsBeyondIt) {
  for (const double size : {4000.0, 60000.0, 1e-6}) {
    const Tensor x = full({1, 512}, size, f16).set_requires_grad();
    const double share = rounded(std::sqrt(1.0 / 512), f16);
    EXPECT_EQ(normalize(x).at(7), share);
    EXPECT_EQ(grad({norm(x)}, {x})[0].at(7), share);
    EXPECT_EQ(cosine_similarity(x, x).item(), 1);
  }
}

TEST(InF16, BagsBeyondIt) {
  const Tensor table = from({40000, 0.01}, {2, 1}, f16).set_requires_grad();
  const auto start = [](const Tensor& index) { return zeros({1}, i64, index.device()); };
  const Tensor three = zeros({3}, i64), many = ones({70000}, i64);
  EXPECT_EQ(embedding_bag(table, three, start(three)).item(), 40000);
  EXPECT_EQ(embedding_bag(table, reshape(three, {1, 3})).item(), 40000);
  EXPECT_EQ(embedding_bag(table, three, start(three), {.padding_idx = 1}).item(), 40000);
  const Tensor y = embedding_bag(table, many, start(many));
  EXPECT_EQ(y.item(), table.at(1));
  EXPECT_EQ(grad({y}, {table})[0].at(1), 1);
}

// --- vectors shorter than eps ---

// Their gradient dy / eps is 1e12 of normalize and 1e8 of cosine_similarity: more than f16 holds.
TEST(ShortVectors, HaveFiniteGradientsInF16) {
  const Tensor x = zeros({1, 4}, f16).set_requires_grad(), y = ones({1, 4}, f16);
  EXPECT_EQ(to_vector(grad({sum(normalize(x))}, {x})[0]), Values(4, 65504));
  EXPECT_EQ(to_vector(grad({sum(-cosine_similarity(x, y))}, {x})[0]), Values(4, -65504));
  // An earlier overflow stays visible.
  const Tensor dy = row({inf, -inf, NAN, 1}, f16);
  const Tensor dx = grad({normalize(x)}, {x}, {.gradients = {unsqueeze(dy, 0)}})[0];
  EXPECT_EQ(dx.at(0), inf);
  EXPECT_EQ(dx.at(1), -inf);
  EXPECT_TRUE(std::isnan(dx.at(2)));
  EXPECT_EQ(dx.at(3), 65504);
  const Tensor wide = zeros({1, 4}).set_requires_grad();
  expect_ratio(grad({sum(normalize(wide))}, {wide})[0], Values(4, 1e12));
}

// One of eight rows is masked. (Times 0, an infinite gradient would be NaN in every step.)
TEST(ShortVectors, DoNotEndStepsOfAMaskedRow) {
  const Seed seed(1);
  using Loss = std::function<Tensor(const Tensor&, const Tensor&)>;
  for (const Loss& loss :
       {Loss([](const Tensor& h, const Tensor& t) { return mse_loss(normalize(h), t); }),
        Loss([](const Tensor& h, const Tensor& t) {
          return mean(1.0 - cosine_similarity(h, t));
        })}) {
    const Tensor w = (randn({16, 8}) * 0.3).detach().set_requires_grad(), mask = ones({8, 1});
    mask.set(3, 0);
    optim::SGD sgd({w}, {.lr = 0.1});
    amp::GradScaler scaler;
    int skipped = 0;
    for (int i = 0; i < 60; ++i) {
      Tensor each;
      {
        const amp::Autocast on({.low = f16});
        const Tensor h = matmul(randn({8, 16}), w);
        each = loss(h * cast(mask, h.dtype()), normalize(randn({8, 8})));
      }
      scaler.scale(each).backward();
      skipped += scaler.step(sgd).state() == amp::StepResult::State::Skipped;
      scaler.update();
      sgd.zero_grad();
    }
    EXPECT_EQ(skipped, 0);
  }
}

// --- f32 and f64 ---

TEST(InF32, SquaresBeyondIt) {
  const auto expect = [](DType dtype, double scale) {
    const Tensor x = row({3 * scale, 4 * scale}, dtype).set_requires_grad();
    expect_ratio(norm(x), {5 * scale});
    expect_ratio(grad({norm(x)}, {x})[0], {0.6, 0.8});
    expect_ratio(norm(x, 5), {std::pow(243 + 1024, 0.2) * scale});
    expect_ratio(norm(x, 20), {4 * std::pow(1 + std::pow(0.75, 20), 0.05) * scale});
    expect_ratio(norm(x, -3), {std::pow(1 / 27. + 1 / 64., -1 / 3.) * scale});
    expect_ratio(normalize(x, 2, 0, 0), {0.6, 0.8});
    const Tensor y = row({-2 * scale, 2 * scale, 0, 2 * scale}, dtype).set_requires_grad();
    expect_ratio(stddev(y), {std::sqrt(11 / 3.) * scale});
    expect_ratio(grad({stddev(y)}, {y})[0], {-2.5 / std::sqrt(33), 1.5 / std::sqrt(33),
                                             -0.5 / std::sqrt(33), 1.5 / std::sqrt(33)});
  };
  expect(f32, 1e30);
  expect(f32, 1e-23);
  expect(f32, 1e19);
  expect(f64, 1e200);
  expect(f64, 1e-200);
  expect_ratio(norm(row({1e-4}), 20), {1e-4});
  expect_ratio(norm(row({1e10, 0}), 5), {1e10});
  expect_ratio(mean(full({10}, 3e38)), {3e38});
  expect_ratio(var(cat({zeros({9998}), row({3e19, -3e19})}), {}, false, 0), {1.8e35}, 1e-5);
}

// Differences of which are twice as far apart, and numbers whose reciprocals are beyond f32.
TEST(InF32, SpreadsOfAllOfIt) {
  for (const auto& [dtype, end, least] : {std::tuple{f32, 3e38, 1e-41}, {f64, 1.5e308, 1e-318}}) {
    const Tensor x = row({end, -end, end / 2}, dtype).set_requires_grad();
    expect_ratio(stddev(x), {std::sqrt(13 / 12.) * end});
    const double unit = std::sqrt(1 / 13. / 12);
    expect_ratio(grad({stddev(x)}, {x})[0], {5 * unit, -7 * unit, 2 * unit});
    EXPECT_EQ(var(x).item(), inf);
    const Tensor y = row({least, -least, least, -least}, dtype).set_requires_grad();
    const double each = std::sqrt(1 / 12.);
    expect_ratio(stddev(y), {std::sqrt(4 / 3.) * y.at(0)}, 1e-4);
    expect_ratio(grad({stddev(y)}, {y})[0], {each, -each, each, -each});
    const Tensor near = row({end, end * 0.8}, dtype).set_requires_grad();
    expect_ratio(grad({stddev(near)}, {near})[0], {std::sqrt(0.5), -std::sqrt(0.5)});
    const Tensor z = row({end / 0x1p20, 0}, dtype).set_requires_grad();
    expect_ratio(grad({var(z)}, {z})[0], {end / 0x1p20, -end / 0x1p20});
  }
}

// The logarithm of the largest number is rounded up to that of infinity.
TEST(InF32, UnitsOfTheLargestNumber) {
  const double most = std::numeric_limits<float>::max();
  const Tensor x = row({most, most}).set_requires_grad();
  EXPECT_EQ(var(x).item(), 0);
  EXPECT_EQ(to_vector(grad({sum(var(x))}, {x})[0]), (Values{0, 0}));
  EXPECT_EQ(stddev(row({most, -most})).item(), inf);
  expect_ratio(stddev(row({most, 0})), {most / std::sqrt(2)});
  EXPECT_EQ(to_vector(histc(row({-most, 0, most}), 2)), (Values{1, 2}));
  expect_ratio(cdist(full({1, 2}, most), full({26, 2}, most / 2))[0],
               Values(26, most / std::sqrt(2)));
}

// The slope of a distance is at most 1, and that of a sum of them at most their number.
TEST(InF32, SlopesOfManyDistances) {
  for (const auto& [dtype, far, near] : {std::tuple{f32, 2e38, 1e-40}, {f64, 1e308, 1e-315}})
    for (const double size : {far, near}) {
      const Tensor x = full({26, 2}, size, dtype).set_requires_grad();
      const Tensor y = (0 * x.detach()).set_requires_grad(), all = cdist(x, y);
      expect_ratio(all[0], Values(26, size * std::sqrt(2)), 1e-4);
      const std::vector<Tensor> slopes = grad({sum(all)}, {x, y});
      expect_ratio(slopes[0][0], Values(2, 26 / std::sqrt(2)), 1e-4);
      expect_ratio(slopes[1][0], Values(2, -26 / std::sqrt(2)), 1e-4);
    }
}

TEST(InF32, MeansCountsAndCovariancesOfAllOfIt) {
  const Tensor beside = row({3e38, NAN, 1e38, 3e38}).set_requires_grad();
  expect_ratio(nanmean(beside), {7e38 / 3});
  expect_ratio(grad({nanmean(beside)}, {beside})[0], {1 / 3., 0, 1 / 3., 1 / 3.});
  EXPECT_EQ(to_vector(histc(row({-3e38, -1e38, 3e38}), 3)), (Values{1, 1, 1}));
  const Tensor end = row({1e19, -1e19}), x = repeat(stack({end, -end}), {1, 8});
  expect_ratio(cov(x), {1.6e39 / 15, -1.6e39 / 15, -1.6e39 / 15, 1.6e39 / 15});
}

TEST(InF32, MeansWhoseSumsAreBeyondIt) {
  const Tensor x = from({-3e38, -1, -2e38, -1}, {2, 2}).set_requires_grad();
  const Tensor loss = kl_div(x, ones({2, 2}), {.batch_mean = true});
  expect_ratio(loss, {2.5e38});
  expect_ratio(grad({loss}, {x})[0], Values(4, -0.5));
  EXPECT_EQ(kl_div(zeros({2, 0}), zeros({2, 0}), {.batch_mean = true}).item(), 0);
  expect_ratio(nanmean(row({3e38, NAN, 1e38, 3e38}, bf16)), {7e38 / 3}, 0x1p-8);
}

TEST(InF32, SignsOfTheSmallestNumbers) {
  const Tensor x = row({-0x1p-149, 4, 0}).set_requires_grad();
  EXPECT_EQ(to_vector(grad({norm(x, 1)}, {x})[0]), (Values{-1, 1, 0}));
}

// A length beyond f32 has a direction, and a slope.
TEST(InF32, LengthsBeyondIt) {
  for (const bool recorded : {false, true})
    for (const double p : {2.0, 3.0, 1.0}) {
      const Tensor x = row({3e38, -3e38, 0}).set_requires_grad();
      const double share = std::pow(0.5, 1 / p);
      EXPECT_EQ(norm(x, p).item(), inf);
      expect_ratio(normalize(x, p, 0), {share, -share, 0});
      const double slope = std::pow(share, p - 1);
      expect_ratio(grad({norm(x, p)}, {x}, {.create_graph = recorded})[0], {slope, -slope, 0});
      const Tensor dy = row({1e38, 0, 0});
      const Tensor dx =
          grad({normalize(x, p, 0)}, {x}, {.gradients = {dy}, .create_graph = recorded})[0];
      expect_ratio(dx, {share / 6, share / 6, 0});
    }
}

TEST(InF32, DotsOfProductsBeyondIt) {
  const auto repeated = [](const Tensor& x, int64_t n) { return reshape(expand(x, {n, 2}), {-1}); };
  for (const int64_t n : {1, 2500, 4096}) {
    const Tensor a = repeated(row({1e30, -1e30}), n), b = repeated(row({1e30, 1e30}), n);
    EXPECT_EQ(dot(a, b).item(), 0);
  }
  const Tensor small = full({1 << 16}, 1e-22);
  expect_ratio(dot(small, small), {0x1p16 * 1e-44}, 1e-5);
  EXPECT_EQ(dot(zeros({0}), zeros({0})).item(), 0);
}

TEST(InF32, CosineOfLongAndShortVectors) {
  for (const double size : {2e19, 1e30, 1e-7}) {
    const Tensor x = from({size, 0}, {1, 2}).set_requires_grad(), y = from({size, size}, {1, 2});
    const Tensor c = cosine_similarity(x, y, 1, 1e-12);
    expect_ratio(c, {std::sqrt(0.5)});
    expect_ratio(grad({c}, {x})[0], {0, std::sqrt(0.5) / size});
  }
}

// A vector that is longer than any f32 number has a slope.
TEST(InF32, CosineOfVectorsLongerThanIt) {
  for (const bool recorded : {false, true}) {
    const Tensor x = from({3e38, 3e38, 0, 2}, {2, 2}).set_requires_grad(),
                 y = from({3e38, 0, 3e38, 3e38}, {2, 2}).set_requires_grad();
    const Tensor dy = row({1e38, 1});
    const Tensor c = cosine_similarity(x, y);
    expect_ratio(c, {std::sqrt(0.5), std::sqrt(0.5)});
    const auto g = grad({c}, {x, y}, {.gradients = {dy}, .create_graph = recorded});
    const double slope = std::sqrt(0.5) / 6;
    expect_ratio(g[0], {slope, -slope, std::sqrt(0.5) / 2, 0});
    expect_ratio(narrow(g[1], 0, 0, 1), {0, std::sqrt(0.5) / 3});
  }
}

TEST(InF32, DistancesOfManyPoints) {
  for (const double size : {1e30, 1e-30}) {
    const Tensor x = cat({zeros({1, 2}), full({29, 2}, size)}).set_requires_grad();
    const Tensor y = from({3 * size, 4 * size}, {1, 2}), all = cdist(x, y);
    expect_ratio(select(all, 0, 0), {5 * size});
    expect_ratio(select(grad({sum(select(all, 0, 0))}, {x})[0], 0, 0), {-0.6, -0.8});
  }
}

TEST(InF32, DistancesBeyondItHaveSlopes) {
  const Tensor x = from({3e38, -3e38}, {1, 2}).set_requires_grad();
  for (const bool recorded : {false, true})
    for (const double p : {2.0, 1.0}) {
      const Tensor y = cdist(x, from({-3e38, 3e38}, {1, 2}), p);
      EXPECT_EQ(y.item(), inf);
      const double slope = p == 2 ? std::sqrt(0.5) : 1;
      expect_ratio(grad({y}, {x}, {.create_graph = recorded})[0], {slope, -slope});
    }
  EXPECT_EQ(cdist(x, from({0, -3e38}, {1, 2}), 0).item(), 1);
}

// Numbers of one unit of a subnormal: half of one is none.
TEST(InF32, DistancesOfTheSmallestNumbers) {
  const double unit = 0x1p-149;
  const Tensor x = from({unit, 2 * unit}, {1, 2}), y = from({3 * unit, 0}, {1, 2});
  for (const auto& [p, want] : {std::pair<double, double>{2, 3}, {1, 4}, {3, 3}, {0, 2 / unit}})
    EXPECT_EQ(cdist(x, y, p).item(), want * unit) << p;
}

TEST(InF32, NormLayersOfLargeNumbers) {
  const Tensor x = from({-2e19, 2e19, -2e19, 2e19, 1, 3, 3, 1}, {2, 4});
  expect_ratio(layer_norm(x, {4}), {-1, 1, -1, 1, -1, 1, 1, -1}, 1e-4);
  expect_ratio(rms_norm(x, {4}), {-1, 1, -1, 1, 1 / std::sqrt(5), 3 / std::sqrt(5),
                                  3 / std::sqrt(5), 1 / std::sqrt(5)});
  expect_ratio(group_norm(reshape(x, {2, 2, 2}), 1), {-1, 1, -1, 1, -1, 1, 1, -1}, 1e-4);
  expect_ratio(instance_norm(reshape(x, {2, 1, 4})), {-1, 1, -1, 1, -1, 1, 1, -1}, 1e-4);
  for (const Shape& shape : {Shape{4, 1}, {1, 1, 4}, {2, 1, 2}})
    expect_ratio(batch_norm(reshape(select(x, 0, 0), shape), {}, {}, {}, {}, {.training = true}),
                 {-1, 1, -1, 1}, 1e-4);
}

// Rows of one number, as large as they get, in lengths that are no multiple of a vector's.
TEST(InF32, NormLayersOfTheLargestNumber) {
  const double most = std::numeric_limits<float>::max(), rstd = 1 / std::sqrt(1e-5);
  for (const bool recorded : {false, true}) {
    const auto expect = [&](const Tensor& x, const Tensor& y, const Values& dx) {
      EXPECT_EQ(to_vector(y), Values(dx.size(), 0));
      const Tensor dy = arange(1, double(dx.size() + 1));
      expect_ratio(
          grad({y}, {x}, {.gradients = {reshape(dy, y.shape())}, .create_graph = recorded})[0], dx);
    };
    const Tensor x = full({1, 3, 1}, most).set_requires_grad(), line = reshape(x, {1, 3}),
                 column = reshape(x, {3, 1}), plane = reshape(x, {1, 1, 3});
    expect(x, layer_norm(line, {3}), {-rstd, 0, rstd});
    expect(x, group_norm(x, 1), {-rstd, 0, rstd});
    expect(x, batch_norm(column, {}, {}, {}, {}, {.training = true}), {-rstd, 0, rstd});
    expect(x, batch_norm(plane, {}, {}, {}, {}, {.training = true}), {-rstd, 0, rstd});
  }
}

// Differences from a mean, and from the first number, that are beyond it: results, gradients of x,
// of weights and of each example are those of f64.
TEST(InF32, NormLayersOfAllOfIt) {
  const auto rows_of = [](DType dtype) {
    return from({-3e38, 3e38, 1e38, 2e38, 3e38, -3e38, -2e38, 0, 1e38, -2e38, 3e38, -1e38}, {3, 4},
                dtype);
  };
  const auto expect_near = [](const Tensor& x, const Tensor& want) {
    EXPECT_LE(norm(x.to(f64) - want).item(), 4e-6 * norm(want).item());
  };
  const auto first = [](const Tensor& w, int64_t n) { return narrow(w, 0, 0, n); };
  const BatchNormOptions training{.training = true};
  using Layer = std::function<Tensor(const Tensor&, const Tensor&)>;
  for (const Layer& layer :
       {Layer([](const Tensor& x, const Tensor& w) { return layer_norm(x, {4}, w); }),
        Layer([](const Tensor& x, const Tensor& w) { return rms_norm(x, {4}, w); }),
        Layer([&](const Tensor& x, const Tensor& w) {
          return group_norm(reshape(x, {3, 2, 2}), 1, first(w, 2));
        }),
        Layer([&](const Tensor& x, const Tensor& w) {
          return instance_norm(reshape(x, {1, 3, 4}), first(w, 3));
        }),
        Layer([&](const Tensor& x, const Tensor& w) {
          return batch_norm(x, {}, {}, w, {}, training);
        }),
        Layer([&](const Tensor& x, const Tensor& w) {
          return batch_norm(reshape(x, {1, 3, 4}), {}, {}, first(w, 3), {}, training);
        }),
        Layer([](const Tensor& x, const Tensor& w) {
          const Tensor mean = full({4}, 2e38, x.dtype()), var = full({4}, 1e38, x.dtype());
          return batch_norm(x, mean, var, w, {});
        })})
    for (const bool recorded : {false, true}) {
      const auto run = [&](DType dtype) {
        const Tensor x = rows_of(dtype).set_requires_grad(),
                     w = from({1, 2, -1, 3}, {4}, dtype).set_requires_grad(), y = layer(x, w);
        const Tensor dy = from({1, 2, -1, 3, 0, 1, 5, 2, 3, 1, -4, 2}, {12}, dtype);
        auto all =
            grad({y}, {x, w}, {.gradients = {reshape(dy, y.shape())}, .create_graph = recorded});
        all.push_back(y);
        return all;
      };
      const auto found = run(f32), want = run(f64);
      for (size_t i = 0; i < want.size(); ++i) expect_near(found[i], want[i]);
    }
  const auto each = [&](DType dtype) {
    const Tensor w = ones({4}, dtype).set_requires_grad(), v = ones({2}, dtype).set_requires_grad();
    const auto losses = [&](const std::vector<Tensor>& in) {
      const Tensor grouped = group_norm(reshape(in[0], {-1, 2, 2}), 1, v);
      const Tensor y = cat({layer_norm(in[0], {4}, w), reshape(grouped, {-1, 4})}, 1);
      return sum(y * from({1, 2, -1, 3, 0, 1, 5, 2}, {8}, dtype), {1});
    };
    return cat(per_sample_gradients(losses, {w, v}, {rows_of(dtype)}), 1);
  };
  expect_near(each(f32), each(f64));
}

// Squares that vanish, without an eps that would hide them.
TEST(InF32, NormLayersOfSmallNumbers) {
  const auto at_scale = [](double scale) {
    return (from({-3, 1, 2, 4, 1, 3, -3, 1}, {2, 4}) * scale).detach().set_requires_grad();
  };
  const Tensor unit = at_scale(1), small = at_scale(0x1p-100);
  using Layer = std::function<Tensor(const Tensor&)>;
  for (const Layer& layer :
       {Layer([](const Tensor& x) { return rms_norm(x, {4}, {}, 0); }),
        Layer([](const Tensor& x) { return layer_norm(x, {4}, {}, {}, 0); }),
        Layer([](const Tensor& x) { return group_norm(reshape(x, {2, 2, 2}), 1, {}, {}, 0); }),
        Layer([](const Tensor& x) {
          return batch_norm(x, {}, {}, {}, {}, {.training = true, .eps = 0});
        }),
        Layer([](const Tensor& x) {
          return batch_norm(reshape(x, {2, 2, 2}), {}, {}, {}, {}, {.training = true, .eps = 0});
        })}) {
    expect_ratio(layer(small), to_vector(layer(unit)));
    for (const bool recorded : {false, true}) {
      const auto slope = [&](const Tensor& x) {
        const Tensor y = layer(x), dy = reshape(row({1, 2, -1, 3, 0, 1, 5, 2}), y.shape());
        return grad({y}, {x}, {.gradients = {dy}, .create_graph = recorded})[0];
      };
      expect_ratio(slope(small) * 0x1p-100, to_vector(slope(unit)), 1e-5);
    }
  }
}

TEST(InF32, ActivationsAndLosses) {
  const Tensor x = row({1e38, -1e38}).set_requires_grad();
  expect_ratio(hardswish(x), {1e38, 0});
  EXPECT_EQ(to_vector(grad({sum(hardswish(x))}, {x})[0]), (Values{1, 0}));
  expect_ratio(smooth_l1_loss(row({1e20}), zeros({1}), {.beta = 1e21}), {5e18});
  const Tensor a = row({3e25, 3e-25, 0, 1e-30, 0, inf}).set_requires_grad(),
               b = row({4e25, 4e-25, 1e-30, 0, 0, 1}).set_requires_grad();
  const auto g = grad({sum(atan2(a, b))}, {a, b});
  expect_ratio(g[0], {0.16e-25, 0.16e25, 1e30, 0, 0, 0});
  expect_ratio(g[1], {-0.12e-25, -0.12e25, 0, -1e30, 0, 0});
}

TEST(InF32, LossesOfLargeDifferences) {
  const Tensor zero = zeros({4}), x = row({2e19, 0, 0, 0}).set_requires_grad();
  expect_ratio(mse_loss(x, zero), {1e38});
  expect_ratio(grad({mse_loss(x, zero)}, {x})[0], {1e19, 0, 0, 0});
  expect_ratio(mse_loss(x.to(bf16), zero.to(bf16)), {1e38}, 0x1p-8);
  expect_ratio(gaussian_nll_loss(row({3e19}), zeros({1}), row({10})), {4.5e37});
  expect_ratio(gaussian_nll_loss(row({3e-21}), zeros({1}), row({1e-20}), {.eps = 1e-30}),
               {0.5 * std::log(1e-20)});
  expect_ratio(lerp(row({-3e38}), row({3e38}), 0.5), {0}, 0);
  expect_ratio(lerp(row({-3e38}), row({3e38}), 0.25), {-1.5e38});
  expect_ratio(lerp(row({-1.5e308}, f64), row({1.5e308}, f64), 0.75), {0.75e308});
}

// Pairs further apart than the largest number, and losses that are larger than that before the
// mean.
TEST(InF32, LossesBeyondItOfOnePair) {
  for (const bool recorded : {false, true})
    for (const auto& [dtype, end] : {std::pair{f32, 3e38}, std::pair{f64, 1.5e308}}) {
      const Tensor x = row({-end, 0, 0, 1}, dtype).set_requires_grad(),
                   t = row({end, 0, 0, 0}, dtype).set_requires_grad();
      const auto expect = [&](const Tensor& y, double want, const Values& dx) {
        expect_ratio(y, {want});
        const auto g = grad({y}, {x, t}, {.create_graph = recorded});
        expect_ratio(g[0], dx);
        expect_ratio(-g[1], dx);
      };
      expect(l1_loss(x, t), end / 2, {-0.25, 0, 0, 0.25});
      expect(smooth_l1_loss(x, t), end / 2, {-0.25, 0, 0, 0.25});
      expect(smooth_l1_loss(x, t, {.beta = end}), end / 4 * 1.5, {-0.25, 0, 0, 0.25 / end});
      expect(huber_loss(x, t), end / 2, {-0.25, 0, 0, 0.25});
      expect(huber_loss(x, t, {.delta = 1.5}), 1.5 * (end / 2), {-0.375, 0, 0, 0.25});
      const Tensor dx = grad({mse_loss(x, t)}, {x}, {.create_graph = recorded})[0];
      expect_ratio(dx, {-end, 0, 0, 0.5});
      EXPECT_EQ(l1_loss(x, t, Sum).item(), inf);
    }
  const auto lone = [](double x) { return cat({row({x}), zeros({3})}).set_requires_grad(); };
  const Tensor x = lone(3e19), far = lone(3e25), zero = zeros({4});
  for (const double delta : {1e20, 1e30, 1e39, inf})
    expect_ratio(huber_loss(x, zero, {.delta = delta}), {4.5e38 / 4});
  expect_ratio(huber_loss(far, zero, {.delta = 2e13}), {1.5e38});
  expect_ratio(grad({huber_loss(far, zero, {.delta = 2e13})}, {far})[0], {5e12, 0, 0, 0});
  expect_ratio(smooth_l1_loss(x, zero, {.beta = 2e38}), {4.5e38 / 2e38 / 4});
  const Tensor narrow = row({-3e38, 0, 0, 0}, bf16), other = row({3e38, 0, 0, 0}, bf16);
  expect_ratio(l1_loss(narrow, other), {1.5e38}, 0x1p-8);
}

TEST(InF32, ClassLossesWhoseSumIsBeyondIt) {
  const Tensor x = from({3e38, 0, 3e38, 0}, {2, 2}).set_requires_grad(), t = ones({2}, i64);
  for (const Tensor& weights : {Tensor(), ones({2})}) {
    const Tensor y = cross_entropy(x, t, {.class_weights = weights});
    expect_ratio(y, {3e38});
    expect_ratio(grad({y}, {x})[0], {0.5, -0.5, 0.5, -0.5});
    expect_ratio(nll_loss(-x, zeros({2}, i64), {.class_weights = weights}), {3e38});
  }
}

// Losses that are composed of ops: differences, exponentials and quotients beyond f32.
TEST(InF32, ComposedLossesBeyondIt) {
  const auto lone = [](double x) { return row({x, 0, 0, 0}).set_requires_grad(); };
  const Tensor x = lone(-3e38), y = lone(3e38);
  const auto expect = [&](const Tensor& loss, double want, const Values& dx) {
    EXPECT_EQ(loss.dtype(), f32);
    expect_ratio(loss, {want});
    expect_ratio(grad({loss}, {x})[0], dx);
  };
  const Values even(4, -0.25);
  expect(margin_ranking_loss(x, y, ones({4})), 1.5e38, even);
  expect(hinge_embedding_loss(x, full({4}, -1), {.margin = 2e38}), 2.75e38, even);
  expect(soft_margin_loss(x, full({4}, 2)), 1.5e38, {-0.5, -0.25, -0.25, -0.25});
  expect(gaussian_nll_loss(x, y, full({4}, 3e38)), 1.5e38, {-0.5, 0, 0, 0});
  expect(multi_margin_loss(reshape(x, {2, 2}), from({1, 1}, {2}, i64), {.margin = 0}), 0,
         {0, 0, 0, 0});
  expect(multi_margin_loss(reshape(x, {2, 2}), from({0, 0}, {2}, i64)), 0.75e38,
         {-0.25, 0.25, -0.25, 0.25});
  const Tensor a = row({89, -200, -200, -200}).set_requires_grad();
  const Tensor counts = poisson_nll_loss(a, zeros({4}));
  expect_ratio(counts, {std::exp(89) / 4});
  expect_ratio(grad({counts}, {a})[0], {std::exp(89) / 4, 0, 0, 0});
  const Tensor u = unsqueeze(x, 0), v = unsqueeze(y, 0);
  EXPECT_EQ(pairwise_distance(u, v).item(), inf);
  expect_ratio(pairwise_distance(u, v / 16), {3e38 * (1 + 1.0 / 16)});
  expect_ratio(triplet_margin_loss(u, v, v), {1});
  const Tensor whole = ones({4}, i64);  // refused, not computed and cut
  EXPECT_THROW(hinge_embedding_loss(whole, whole), Error);
  EXPECT_THROW(soft_margin_loss(whole, whole), Error);
  EXPECT_THROW(poisson_nll_loss(whole, whole), Error);
}

TEST(InF32, ProductsAndQuotientsBeyondIt) {
  const Tensor x = row({1, -3e38, 1}), a = row({1e30, 2e38, 1e-30}), b = row({1e20, 2, 1e-20});
  expect_ratio(addcmul(x, a, b, 1e-20), {1e30, -3e38, 1});
  expect_ratio(addcmul(x, a, b), {inf, 1e38, 1});
  expect_ratio(addcmul(zeros({3}), a, b, 1e45), {inf, inf, 1e-5});
  expect_ratio(addcdiv(x, a, 1 / b, 1e-20), {1e30, -3e38, 1});
  expect_ratio(addcdiv(row({-3e38}), row({2e38}), row({0.5})), {1e38});
  const Tensor half = row({-0x1.8p127}, bf16), whole = row({0x1p127}, bf16);
  expect_ratio(addcmul(half, whole, row({2}, bf16)), {0x1p126});
}

TEST(InF32, LogarithmsOfTinyNumbers) {  // 1 / p is beyond f32, and 1 / p^2 from 2^-64 on
  const Tensor p = row({0x1p-130, 0x1p-70}).set_requires_grad();
  const auto expect_entropy = [&](Tensor (*f)(const Tensor&), double unit) {
    const auto slope = [&](bool again) {
      return grad({sum(p * f(p))}, {p}, {.create_graph = again})[0];
    };
    for (const bool again : {false, true})
      expect_ratio(slope(again), {(1 - 130 * std::log(2)) / unit, (1 - 70 * std::log(2)) / unit});
    expect_ratio(narrow(grad({sum(slope(true))}, {p})[0], 0, 1, 1), {0x1p70 / unit});
  };
  expect_entropy(log, 1);
  expect_entropy(log2, std::log(2));
  expect_entropy(log10, std::log(10));
  const Tensor among = p.detach();  // a divergence
  for (const bool again : {false, true})
    expect_ratio(grad({sum(p * log(p / among))}, {p}, {.create_graph = again})[0], {1, 1});
}

TEST(InF32, SlopesBeyondItOfTinyNumbers) {  // 1 / x^2, times gradients as tiny as x
  const Tensor x = row({0x1p-70, 0x1p-100}).set_requires_grad(), ones = row({1, 1});
  const double tiny = 0x1p-130;
  for (const bool again : {false, true}) {
    const auto expect = [&](const Tensor& y, double of_reciprocal) {
      expect_ratio(grad({sum(y)}, {x}, {.create_graph = again})[0],
                   {of_reciprocal * 0x1p70, of_reciprocal * 0x1p100});
    };
    expect(log(reciprocal(x)), -1);
    expect(log(rsqrt(x)), -0.5);
    expect(log(3 / x), -1);
    expect(log(ones / x), -1);
    const auto expect_30 = [&](const Tensor& y) {
      expect_ratio(grad({sum(y * 0x1p-100)}, {x}, {.create_graph = again})[0], {0x1p30, 0x1p30});
    };
    expect_30(x / tiny);
    expect_30(x / row({tiny, tiny}));
    expect_30(addcdiv(ones, x, row({tiny, tiny})));
  }
}

// All triples of the numbers, as three tensors.
std::array<Tensor, 3> triples(const Values& xs, const Values& ys, const Values& zs, DType dtype) {
  Values x, y, z;
  for (const double i : xs)
    for (const double j : ys)
      for (const double k : zs) x.push_back(i), y.push_back(j), z.push_back(k);
  return {row(x, dtype), row(y, dtype).set_requires_grad(), row(z, dtype).set_requires_grad()};
}
using Number = long double;
using Slope = std::function<Number(Number dy, Number a, Number b)>;
// Wherever result and slope are in the range of the dtype.
void expect_slopes(const std::array<Tensor, 3>& inputs,
                   const std::function<Tensor(const Tensor&, const Tensor&)>& f,
                   const std::vector<Slope>& want) {
  const auto& [dy, a, b] = inputs;
  const bool narrow = a.dtype() == f32;
  const Number least = narrow ? 0x1p-120L : 0x1p-1016L, tolerance = narrow ? 5e-7L : 1e-15L;
  const auto in_range = [&](Number x) { return std::abs(x) > least && std::abs(x) < 1 / least; };
  const Values ys = to_vector(f(a, b)), dys = to_vector(dy), as = to_vector(a), bs = to_vector(b);
  for (const bool again : {false, true}) {
    const std::vector<Tensor> slopes =
        grad({f(a, b)}, {a, b},
             {.gradients = {dy}, .create_graph = again, .allow_unused = want.size() == 1});
    for (size_t k = 0; k < want.size(); ++k) {
      const Values got = to_vector(slopes[k]);
      int compared = 0;
      for (size_t i = 0; i < ys.size(); ++i) {
        const Number w = want[k](dys[i], as[i], bs[i]);
        if (!in_range(w) || !in_range(ys[i])) continue;
        ++compared;
        EXPECT_LE(std::abs(got[i] / w - 1), tolerance)
            << "of operand " << k << " at " << as[i] << ", " << bs[i] << " under " << dys[i] << ": "
            << got[i] << ", not " << w << (again ? ", recorded" : "");
      }
      EXPECT_GT(compared, 5);
    }
  }
}

TEST(Range, SlopesInItWhoseTermsAreNot) {
  for (const auto& [dtype, unit] : {std::pair{f32, 1}, {f64, 8}}) {
    Values powers;
    for (const int i : {-36, -25, -12, 0, 12, 25, 36})
      powers.push_back(1.1 * std::pow(10, i * unit));
    Values signs = powers;
    for (double& x : signs) x = -x;
    const auto any = triples(signs, powers, powers, dtype);
    expect_slopes(any, [](const Tensor& a, const Tensor& b) { return a / b; },
                  {[](Number dy, Number, Number b) { return dy / b; },
                   [](Number dy, Number a, Number b) { return -dy * a / (b * b); }});
    expect_slopes(any, [](const Tensor& a, const Tensor& b) { return atan2(a, b); },
                  {[](Number dy, Number a, Number b) { return dy * b / (a * a + b * b); },
                   [](Number dy, Number a, Number b) { return -dy * a / (a * a + b * b); }});
    expect_slopes(any, [](const Tensor& a, const Tensor&) { return atan(a); },
                  {[](Number dy, Number a, Number) { return dy / (1 + a * a); }});
    const Values exponents = {-3, -2, -1, -0.5, 0.5, 1.5, 2, 3, 4};
    const Slope of_power = [](Number dy, Number a, Number b) {
      return dy * b * std::pow(a, b - 1);
    };
    expect_slopes(triples(signs, powers, exponents, dtype),
                  [](const Tensor& a, const Tensor& b) { return pow(a, b); },
                  {of_power, [](Number dy, Number a, Number b) {
                     return dy * std::pow(a, b) * std::log(a);
                   }});
    for (const double n : exponents)
      expect_slopes(triples(signs, powers, {n}, dtype),
                    [n](const Tensor& a, const Tensor&) { return pow(a, n); }, {of_power});
  }
}

// Means of numbers with the same index, or in one bag.
TEST(InF32, MeansWhoseSumsAreBeyondItByIndex) {
  const Tensor x = row({3e38, 1}).set_requires_grad(), at = from({0, 0, 1}, {3}, i64),
               source = row({3e38, 1.5e38, 3}).set_requires_grad();
  const Tensor y = scatter_reduce(x, 0, at, source, ScatterMode::Mean);
  expect_ratio(y, {2.5e38, 2});
  const auto g = grad({sum(y)}, {x, source});
  expect_ratio(g[0], {1 / 3., 0.5});
  expect_ratio(g[1], {1 / 3., 1 / 3., 0.5});
  for (const DType dtype : {f32, bf16}) {
    const Tensor table = from({3e38, 1.5e38, 1}, {3, 1}, dtype).set_requires_grad();
    const Tensor words = from({0, 1, 2, 0, 1, 1}, {6}, i64), starts = from({0, 2, 3}, {3}, i64);
    const double tolerance = dtype == f32 ? 1e-6 : 0x1p-7;
    const Tensor bags = embedding_bag(table, words, starts);
    expect_ratio(bags, {2.25e38, 1, 2e38}, tolerance);
    expect_ratio(grad({sum(bags)}, {table})[0], {0.5 + 1 / 3., 0.5 + 2 / 3., 1}, tolerance);
    expect_ratio(embedding_bag(table, reshape(words, {2, 3}), {}, {.padding_idx = 2}),
                 {2.25e38, 2e38}, tolerance);
  }
}

// Sums and products into one place that leave it on the way: by few indices and by many, of rows
// and of single elements.
TEST(InF32, SumsAndProductsThatComeBack) {
  for (const int64_t n : {1, 12})
    for (const int64_t width : {1, 3, 64}) {
      std::vector<Tensor> parts;
      for (const double x : {3e38, 2e38, -2e38, -3e38}) parts.push_back(full({n, width}, x));
      parts.push_back(full({1, width}, 7));
      const Tensor source = cat(parts), index = cat({ones({4 * n}, i64), zeros({1}, i64)});
      const Tensor start = cat({zeros({1, width}), full({1, width}, 1e38), ones({6, width})});
      const Values want = to_vector(slice_scatter(start, full({1, width}, 7), 0, 0, 1));
      expect_ratio(index_add(start, 0, index, source), want, 1e-5);
      const Tensor at = expand(unsqueeze(index, 1), source.shape());
      for (const Tensor& s : {source, source.t().contiguous().t()})
        expect_ratio(scatter_add(start, 0, at, s), want, 1e-5);
    }
  const Tensor infinite = full({4}, inf);
  EXPECT_EQ(index_add(ones({1}), 0, zeros({4}, i64), infinite).item(), inf);
  EXPECT_EQ(index_add(ones({1}), 0, zeros({3}, i64), full({3}, 3e38)).item(), inf);
  EXPECT_TRUE(std::isnan(index_add(-infinite, 0, arange(4), infinite).at(0)));
  const Tensor x = row({2, 1}).set_requires_grad(), to = zeros({4}, i64),
               factors = row({1e30, 1e30, 1e-30, 1e-30});
  const Tensor product = scatter_reduce(x, 0, to, factors, ScatterMode::Prod);
  expect_ratio(product, {2, 1});
  expect_ratio(grad({sum(product)}, {x})[0], {1, 1});
}

// Squares beyond it, in their place or times alpha.
TEST(InF32, ResponsesOfLargeNumbers) {
  for (const bool recorded : {false, true}) {
    const Tensor x = from({1e20, 1e20, 3e38}, {3, 1, 1}).set_requires_grad();
    const Tensor y = local_response_norm(x, 1);
    const auto size = [](double v) { return v * std::pow(1 + 1e-4 * v * v, -0.75); };
    expect_ratio(y, {size(1e20), size(1e20), size(3e38)});
    // y = v (1e-4 v^2)^-0.75 = 1e3 v^-0.5
    expect_ratio(
        grad({y}, {x}, {.gradients = {full({3, 1, 1}, 1e30)}, .create_graph = recorded})[0],
        {-5e32 * 1e-30, -5e32 * 1e-30, -5e32 * std::pow(3e38, -1.5)}, 1e-5);
  }
}

// Sums of rows, or of columns, that cancel in those of planes.
TEST(InF32, PlanesOfTransformsWhoseLinesAreBeyondIt) {
  if (!DefaultDevice::current().is_host()) return;  // transforms are of the CPU alone
  const Tensor x = from({3e38, 3e38, -3e38, -3e38}, {2, 2}), y = transpose(x);
  const auto complex = [](const Tensor& t) { return stack({t, zeros_like(t)}, -1); };
  const Values plane{0, 0, 0, 0, inf, 0, 0, 0};
  EXPECT_EQ(to_vector(fft2(complex(x))), plane);
  EXPECT_EQ(to_vector(rfft2(x)), plane);
  EXPECT_EQ(to_vector(ifft2(complex(x), {.norm = FftNorm::Forward})), plane);
  EXPECT_EQ(to_vector(irfft2(complex(y), {.norm = FftNorm::Forward})), (Values{0, inf, 0, 0}));
}

// --- long sums ---

TEST(LongSums, IntoOnePlace) {
  const int64_t n = DefaultDevice::current().is_host() ? 20'000'000 : 70'000;
  const Tensor each = expand(ones({1}), {n}), place = expand(zeros({1}, i64), {n});
  EXPECT_EQ(scatter_add(zeros({1}), 0, place, each).item(), double(n));
  const Tensor table = ones({1, 1}).set_requires_grad();
  EXPECT_EQ(grad({sum(embedding(table, place))}, {table})[0].item(), double(n));

  const int64_t m = 70'000;  // in f32, 1 does not count beside 2^24
  const Tensor many = full({1}, 0x1p24), where = zeros({m}, i64), more = ones({m}, f16);
  const double all = 0x1p24 + double(m);
  EXPECT_EQ(scatter_add(many, 0, where, cast(more, f32)).item(), all);
  EXPECT_EQ(index_add(many, 0, where, cast(more, f32)).item(), all);
  EXPECT_EQ(index_put(many, {where}, ones({m}), true).item(), all);
  EXPECT_EQ(bincount(zeros({m + 1}, i64), cat({many, ones({m})})).item(), all);
  const Tensor x = ones({2, 1}).set_requires_grad(), dy = cat({many, ones({m})});
  const Tensor at = zeros({m + 1}, i64);
  EXPECT_EQ(grad({index_select(x, 0, at)}, {x}, {.gradients = {unsqueeze(dy, 1)}})[0].at(0), all);
  EXPECT_EQ(grad({gather(x, 0, unsqueeze(at, 1))}, {x}, {.gradients = {unsqueeze(dy, 1)}})[0].at(0),
            all);
}

// Gradients that one pixel, one weight or one channel gets from a long line.
TEST(LongSums, OfImages) {
  const int64_t m = DefaultDevice::current().is_host() ? 70'000 : 10'000;
  const Tensor line = cat({full({1}, 0x1p24), ones({m})});
  const auto gradient = [&](const Tensor& y, const Tensor& x) {
    return grad({y}, {x}, {.gradients = {reshape(line, y.shape())}})[0].item();
  };
  const double all = 0x1p24 + double(m), apart = double(m) / 3;  // the first of several sums
  const Tensor pixel = ones({1, 1, 1, 1}).set_requires_grad();
  for (const auto mode :
       {Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic}) {
    EXPECT_NEAR(gradient(interpolate(pixel, {1, m + 1}, {.mode = mode}), pixel), all, apart);
    EXPECT_NEAR(gradient(interpolate(pixel, {m + 1, 1}, {.mode = mode}), pixel), all, apart);
  }
  const Tensor weight = ones({1, 1, 1}).set_requires_grad();
  EXPECT_NEAR(gradient(conv1d(ones({1, 1, m + 1}), weight), weight), all, apart);
  const Tensor bias = ones({1}).set_requires_grad();
  EXPECT_NEAR(gradient(group_norm(ones({m + 1, 1, 1}), 1, ones({1}), bias), bias), all, apart);
}

// Equal terms are rounded the same way at each addition: no error hides another.
TEST(LongSums, OfEqualTermsOfImages) {
  const int64_t n = DefaultDevice::current().is_host() ? 9000 : 1500;
  for (const auto mode : {Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic})
    for (const auto order : {MemoryFormat::Contiguous, MemoryFormat::ChannelsLast})
      for (const Size2 size : {Size2(1, n), Size2(n, 1), Size2(200)}) {
        const Tensor pixel = ones({1, 3, 1, 1}).set_requires_grad();
        const Tensor dy = full({1, 3, size.h, size.w}, 1.1).to(order);
        const Tensor dx =
            grad({interpolate(pixel, size, {.mode = mode})}, {pixel}, {.gradients = {dy}})[0];
        expect_ratio(dx, Values(3, double(size.h * size.w) * dy.at(0)), 8 * 0x1p-24);
      }
}

// Each lane of a sum in f32 would lose the small terms beside a large one.
TEST(LongSums, OfExponentials) {
  const int64_t n = DefaultDevice::current().is_host() ? 1 << 22 : 1 << 19;
  const Tensor x = cat({zeros({16}), full({n}, -18)});
  const double total = 16 + double(n) * std::exp(-18.0);
  EXPECT_NEAR(logsumexp(x).item(), std::log(total), 1e-4);
  EXPECT_NEAR(softmax(x, 0).at(0) * total, 1, 1e-4);
  EXPECT_NEAR(log_softmax(x, 0).at(0), -std::log(total), 1e-4);
  EXPECT_NEAR(cross_entropy(unsqueeze(x, 0), zeros({1}, i64)).item(), std::log(total), 1e-4);
}

}  // namespace range_test
}  // namespace mixtape
