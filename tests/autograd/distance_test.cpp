// Norms, distances and their losses. Numbers are PyTorch's in f64.

#include <gtest/gtest.h>

#include <cmath>

#include "amp/autocast.h"
#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace distance_test {

[[maybe_unused]] constexpr auto Mean = Reduction::Mean, Sum = Reduction::Sum,
                                None = Reduction::None;

// The values of y, and the gradients of its sum.
void expect_all(const Tensor& y, const Values& want, const std::vector<Tensor>& inputs,
                const std::vector<Values>& gradients) {
  expect_near(y, want, 1e-9);
  const std::vector<Tensor> got = grad({sum(y)}, inputs);
  for (size_t i = 0; i < got.size(); ++i) expect_near(got[i], gradients[i], 1e-9);
}

struct Distances : testing::Test {  // three rows of each; the last anchor is 0
  const Tensor a = leaf({1, 2, -1, 0.5, 0, 3, 0, 0, 0}), p = leaf({1.5, 1, 0, 0, 1, 1, 1, 0, 0}),
               n = leaf({0, 2, 1, 1, 1, -1, 0, 0.2, 0});

  static Tensor leaf(std::initializer_list<double> values) {
    return from(values, {3, 3}, f64).set_requires_grad();
  }
};

TEST_F(Distances, Normalize) {
  expect_all(normalize(a) * from({1, 2, 3}, {3}, f64),
             {0.4082482904638631, 1.6329931618554523, -1.2247448713915892, 0.1643989873053573, 0,
              2.9591817714964312, 0, 0, 0},
             {a},
             {{0.2721655269759087, 0.5443310539518174, 1.3608276348795436, 0.1599557714322395,
               0.6575959492214292, -0.0266592952387068, 1e12, 2e12, 3e12}});
  expect_all(normalize(a, 1, 0) * from({1, 2, 3}, {3, 1}, f64),
             {2. / 3, 1, -0.25, 2. / 3, 0, 1.5, 0, 0, 0}, {a},
             {{-2. / 9, 0, 0.5625, 4. / 9, 1, 0.1875, 2, 1.5, 0.75}});
  EXPECT_ERROR(normalize(a, 2, 2), "normalize: dimension 2 is out of range for rank 2");
}

TEST_F(Distances, NormalizeOfZerosIsZeroInEveryDtype) {
  for (const DType dtype : {f64, f32, f16, bf16}) {
    const Tensor y = normalize(from({0, 0, 3, 4}, {2, 2}, dtype));
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(to_vector(y), to_vector(from({0, 0, 0.6, 0.8}, {2, 2}, dtype)));
  }
}

TEST_F(Distances, Pairwise) {
  const Values da{-0.3333327407403951, 0.6666674814812346,  -0.6666661481476049,
                  0.21821826432364388, -0.4364352193403204, 0.8728717479876082,
                  -0.999999999999,     1.000001e-06,        1.000001e-06};
  Values dp = da;
  for (double& d : dp) d = -d;
  expect_all(pairwise_distance(a, p), {1.4999996666676296, 2.291288502132152, 0.999999000001},
             {a, p}, {da, dp});
  EXPECT_EQ(pairwise_distance(a, p, 1, 0, true).shape(), Shape({3, 1}));
  EXPECT_EQ(pairwise_distance(a, select(p, 0, 0)).shape(), Shape{3});
}

// rows_reference_test has values, gradients and batches.
TEST_F(Distances, AllPairs) {
  const Tensor x = leaf({0, 3, 4, 1, 0, 0, 0, 0, 0}), origin = select(x, 0, 2);
  expect_near(cdist(x, unsqueeze(origin, 0)), {5, 1, 0}, 1e-9);
  expect_near(cdist(x, unsqueeze(origin, 0), 1), {7, 1, 0}, 1e-9);
  expect_near(cdist(x, unsqueeze(origin, 0), 0), {2, 1, 0}, 1e-9);
  const auto all = [](const std::vector<Tensor>& in) { return cdist(in[0], in[1], 1.5); };
  EXPECT_EQ(gradcheck(all, {a, p}), "");
  EXPECT_EQ(cdist(zeros({0, 3}), zeros({4, 3})).shape(), (Shape{0, 4}));
  EXPECT_EQ(cdist(zeros({2, 0, 3}), zeros({40, 3})).shape(), (Shape{2, 0, 40}));
  EXPECT_ERROR(cdist(zeros({2, 3}), zeros({2, 4})),
               "cdist: points must be [..., n, size] and [..., m, size], got [2, 3] and [2, 4]");
  EXPECT_ERROR(cdist(zeros({3}), zeros({2, 3})),
               "cdist: points must be [..., n, size] and [..., m, size], got [3] and [2, 3]");
  EXPECT_ERROR(cdist(a, p, -1), "cdist: the order must be >= 0, got -1");
  EXPECT_ERROR(cdist(zeros({2, 3}, i64), zeros({2, 3})), "cdist: elements must be floats, got i64");
}

// So many points that their differences are taken in parts.
TEST(Pdist, IsThePartOfCdistAboveTheDiagonal) {
  const Tensor x = randn({7, 3}, f64);
  for (const double p : {0.0, 1.0, 2.0, 3.5, HUGE_VAL}) {
    const Tensor all = cdist(x, x, p), i = triu_indices(7, 7, 1);
    EXPECT_TRUE(allclose(pdist(x, p), index(all, {i[0], i[1]}), 1e-12)) << p;
  }
  EXPECT_EQ(pdist(ones({1, 3})).shape(), Shape{0});
  EXPECT_EQ(pdist(ones({0, 3})).shape(), Shape{0});
  EXPECT_EQ(to_vector(pdist(zeros({3, 0}))), (Values{0, 0, 0}));
  EXPECT_EQ(pdist(from({3e38, -3e38}, {2, 1}) / 2).item(), 3e38f);
  EXPECT_EQ(pdist(from({60000, 0}, {2, 1}, f16)).item(), 60000);
  const Tensor same = ones({2, 3}).set_requires_grad();
  EXPECT_EQ(to_vector(grad({pdist(same)}, {same})[0]), Values(6, 0));
  EXPECT_ERROR(pdist(ones({3})), "pdist: points must be [n, size], got [3]");
  EXPECT_ERROR(pdist(x, -1), "pdist: the order must be >= 0, got -1");
  EXPECT_ERROR(pdist(ones({2, 2}, i64)), "pdist: elements must be floats, got i64");
}

TEST(Renorm, ShortensSlicesThatAreTooLong) {
  const Tensor x = from({3, 4, 0.3, 0.4, 0, 0}, {3, 2});
  expect_near(renorm(x, 2, 0, 1), {0.6, 0.8, 0.3, 0.4, 0, 0}, 1e-6);
  EXPECT_EQ(to_vector(renorm(x, 2, -2, 0)), Values(6, 0));
  EXPECT_EQ(to_vector(renorm(x, INFINITY, 0, 4)), to_vector(x));
  expect_near(renorm(from({3e38, 3e38}, {1, 2}), 2, 0, 1), {std::sqrt(0.5), std::sqrt(0.5)}, 1e-6);
  EXPECT_EQ(renorm(ones({2, 2}, f16), 1, 0, 1).dtype(), f16);
  EXPECT_ERROR(renorm(ones({3}), 2, 0, 1),
               "renorm: the input must have at least 2 dimensions, got shape [3]");
  EXPECT_ERROR(renorm(x, 0, 0, 1), "renorm: p must be > 0 and maxnorm >= 0, got 0 and 1");
  EXPECT_ERROR(renorm(x, 2, 2, 1), "renorm: dimension 2 is out of range for rank 2");
}

TEST(Cdist, InPartsIsAsInOne) {
  const Tensor x = randn({2, 300, 40}, f64).set_requires_grad(),
               y = randn({2, 50, 40}, f64).set_requires_grad(), dy = randn({2, 300, 50}, f64);
  for (const double p : {1.0, 3.0}) {
    const Tensor whole = cdist(x, y, p);
    std::vector<Tensor> few;
    for (int64_t i = 0; i < 300; i += 20) few.push_back(cdist(narrow(x, 1, i, 20), y, p));
    const Tensor each = cat(few, 1);
    EXPECT_TRUE(equal(whole, each)) << p;
    const auto all = grad({sum(whole * dy)}, {x, y}), parts = grad({sum(each * dy)}, {x, y});
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LT(max(abs(all[i] - parts[i])).item(), 1e-12) << p << " input " << i;
  }
}

TEST_F(Distances, AllPairsOfAnyRank) {
  const Tensor x = randn({1, 2, 1, 1, 2, 1, 3, 4}, f64), y = randn({1, 1, 1, 3, 2, 1, 5, 4}, f64),
               all = cdist(x, y);
  ASSERT_EQ(all.shape(), (Shape{1, 2, 1, 3, 2, 1, 3, 5}));
  const auto part = [](const Tensor& t, int a, int b, int c) {
    return reshape(narrow(narrow(narrow(t, 1, a, 1), 3, b, 1), 4, c, 1), {t.size(-2), t.size(-1)});
  };
  EXPECT_TRUE(allclose(part(all, 1, 2, 1), cdist(part(x, 1, 0, 1), part(y, 0, 2, 1))));
}

TEST_F(Distances, AllPairsOfManyAreByAProduct) {
  const Tensor few = sin(reshape(arange(0, 60, 1, f64), {20, 3})).set_requires_grad();
  const Tensor many = cos(reshape(arange(0, 90, 1, f64), {30, 3})).set_requires_grad();
  const auto d = [](const std::vector<Tensor>& in) { return cdist(in[0], in[1]); };
  EXPECT_EQ(gradcheck(d, {few, many}), "");
  const Tensor halves = cat({d({few, slice(many, 0, 0, 15)}), d({few, slice(many, 0, 15, 30)})}, 1);
  expect_near(d({few, many}), to_vector(halves), 1e-9);
  const Tensor own = cdist(many.to(f32), many.to(f32));  // 0 on the diagonal, but for rounding
  EXPECT_LT(max(diagonal(own)).item(), 2e-3);
  for (const Tensor& g : grad({sum(own)}, {many})) EXPECT_TRUE(all(isfinite(g)).item());
  const Tensor same = ones({30, 3}, f64).set_requires_grad();
  EXPECT_EQ(sum(abs(grad({sum(cdist(same, same))}, {same})[0])).item(), 0);
}

TEST_F(Distances, TripletMarginLoss) {
  const auto loss = [](const std::vector<Tensor>& in) {
    return triplet_margin_loss(in[0], in[1], in[2], {.reduction = None});
  };
  const std::vector<Tensor> all{a, p, n};
  expect_near(loss(all), {0.2639321363808089, 0, 1.799999999996}, 1e-9);
  EXPECT_EQ(gradcheck(loss, all), "");
  EXPECT_NEAR(triplet_margin_loss(a, p, n).item(), 2.0639321363768089 / 3, 1e-12);
  expect_all(triplet_margin_loss(a, p, n, {.reduction = None, .margin = 2, .p = 1, .swap = true}),
             {1.499998, 2.5, 2.8}, all,
             {{-2, 0, 0, 1, -1, 1, -2, 2, 0},
              {1, -1, 1, 0, 0, -2, 1, -1, -1},
              {1, 1, -1, -1, 1, 1, 1, -1, 1}});
  EXPECT_ERROR(triplet_margin_loss(a, p, select(n, 0, 0)),
               "triplet_margin_loss: anchor, positive and negative must have one shape, got [3, "
               "3], [3, 3] and [3]");
}

TEST_F(Distances, CosineEmbeddingLoss) {
  const Tensor x = slice(a, 0, 0, 2), y = slice(n, 0, 0, 2), alike = from({1, -1}, {2}, i64);
  expect_all(cosine_embedding_loss(x, y, alike, {.reduction = None, .margin = -0.5}),
             {0.4522774424949343, 0.02542100212385523}, {x, y},
             {{0.09128709291749572, -0.18257418583505233, -0.2738612787525176, 0.21548451795457108,
               0.1898315991504579, -0.03591408632577894},
              {-0.18257418583502188, -0.14605934866806133, 0.2921186973360131, 0.2531087988672245,
               0.15819299929199554, 0.41130179815937823}});
  EXPECT_ERROR(
      cosine_embedding_loss(x, y, zeros({3})),
      "cosine_embedding_loss: pairs of shape [2] need a target of the same shape, got [3]");
}

TEST_F(Distances, MarginRankingLoss) {
  const Tensor x = from({1, 2, 3}, {3}, f64).set_requires_grad(),
               y = from({2, 2, 1}, {3}, f64).set_requires_grad(), t = from({1, -1, 1}, {3}, i64);
  expect_all(margin_ranking_loss(x, y, t, {.reduction = None, .margin = 0.5}), {1.5, 0.5, 0},
             {x, y}, {{-1, 1, 0}, {1, -1, 0}});
  EXPECT_NEAR(margin_ranking_loss(x, y, t, {.margin = 0.5}).item(), 2. / 3, 1e-12);
  EXPECT_ERROR(
      margin_ranking_loss(x, y, zeros({2})),
      "margin_ranking_loss: both inputs and the target must have one shape, got [3], [3] and [2]");
}

// Gradients flow where a margin is just kept, as between equal points with a margin of 0.
TEST_F(Distances, LossesMoveWhatIsAtTheMargin) {
  const Tensor x = from({1, 0}, {1, 2}, f64).set_requires_grad(), t = ones({1, 2}, f64);
  expect_all(margin_ranking_loss(x, x.detach(), t, {.reduction = None, .margin = 0}), {0, 0}, {x},
             {{-1, -1}});
  const Tensor y = from({0, 1}, {1, 2}, f64);
  expect_all(cosine_embedding_loss(x, y, -ones({1}, f64), {.reduction = None, .margin = 0}), {0},
             {x}, {{0, 1}});
  expect_all(triplet_margin_loss(x, y, from({1, 2}, {1, 2}, f64), {.margin = 0, .p = 1, .eps = 0}),
             {0}, {x}, {{1, 0}});
}

TEST_F(Distances, AreWideInARegion) {
  const amp::Autocast on({.low = f16});
  const Tensor x = full({2, 100}, 300, f16), y = zeros({2, 100}, f16);  // sums of squares of 9e6
  EXPECT_EQ(normalize(x).dtype(), f32);
  EXPECT_EQ(to_vector(cdist(x, y)), Values(4, 3000));
  const Tensor most = cdist(expand(slice(x, 0, 0, 1), {30, 100}), y);  // by a product
  EXPECT_EQ(most.dtype(), f32);
  EXPECT_EQ(to_vector(most), Values(60, 3000));
  EXPECT_EQ(triplet_margin_loss(x, y, x).item(), 3001);
  EXPECT_EQ(cosine_embedding_loss(x, x, ones({2})).dtype(), f32);
}

}  // namespace distance_test
}  // namespace mixtape
