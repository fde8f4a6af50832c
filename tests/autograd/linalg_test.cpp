// Linear algebra beyond rows: large matrices, identities, singular and broken inputs, threads.

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "kernels/cpu/loops/parallel.h"
#include "tests/support/errors.h"
#include "tests/support/values.h"

namespace mixtape {
namespace linalg_test {

double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  return a.numel() == 0 ? 0 : max(abs(a - b)).item();
}
Tensor identity(int64_t n, int64_t batch) { return expand(eye(n, f64), {batch, n, n}); }

TEST(Linalg, SolvesLargeSystems) {
  for (const int64_t n : {1, 2, 17, 64, 150}) {
    const Tensor a = drawn({3, n, n}), b = drawn({3, n, 5}, 2);
    EXPECT_LT(distance(matmul(a, solve(a, b)), b), 1e-9) << n;
    EXPECT_LT(distance(matmul(a, inv(a)), identity(n, 3)), 1e-9) << n;
    const Tensor lower = tril(a, -1) * (1 / double(n)) + identity(n, 3);
    EXPECT_LT(
        distance(matmul(lower, solve_triangular(a * (1 / double(n)), b, {.unitriangular = true})),
                 b),
        1e-11);
  }
}

TEST(Linalg, SolvesByTheFactorsOfCholesky) {
  const Tensor m = drawn({2, 5, 5}), b = drawn({2, 5, 3}, 2);
  const Tensor a = matmul(m, transpose(m)) + identity(5, 2);
  for (const bool upper : {false, true})
    EXPECT_LT(distance(cholesky_solve(b, cholesky(a, upper), upper), solve(a, b)), 1e-11) << upper;
}

TEST(Linalg, DecomposesLargeMatrices) {
  for (const auto& [m, n] :
       {std::pair<int64_t, int64_t>{1, 1}, {40, 40}, {150, 60}, {60, 150}, {129, 128}}) {
    const Tensor a = drawn({2, m, n});
    const int64_t k = std::min(m, n);
    const Qr x = qr(a);
    EXPECT_LT(distance(matmul(x.q, x.r), a), 1e-12) << m << " x " << n;
    EXPECT_LT(distance(matmul(transpose(x.q), x.q), identity(k, 2)), 1e-12);
    EXPECT_EQ(distance(x.r, triu(x.r)), 0);
    const Svd y = svd(a);
    EXPECT_LT(distance(matmul(y.u * unsqueeze(y.s, -2), y.vh), a), 1e-12) << m << " x " << n;
    EXPECT_LT(distance(matmul(transpose(y.u), y.u), identity(k, 2)), 1e-12);
    EXPECT_LT(distance(matmul(y.vh, transpose(y.vh)), identity(k, 2)), 1e-12);
    EXPECT_EQ(distance(y.s, sort(y.s, -1, true).values), 0);
    const Qr complete = qr(a, {.complete = true});
    EXPECT_LT(distance(matmul(complete.q, complete.r), a), 1e-12) << m << " x " << n;
    EXPECT_LT(distance(matmul(complete.q, transpose(complete.q)), identity(m, 2)), 1e-12);
    EXPECT_EQ(distance(complete.r, triu(complete.r)), 0);
    EXPECT_TRUE(equal(narrow(complete.q, -1, 0, k), x.q));
    const Svd full = svd(a, {.full_matrices = true});
    EXPECT_EQ(full.u.shape(), (Shape{2, m, m}));
    EXPECT_LT(distance(matmul(full.u, transpose(full.u)), identity(m, 2)), 1e-12);
    EXPECT_LT(distance(matmul(full.vh, transpose(full.vh)), identity(n, 2)), 1e-12);
    EXPECT_LT(
        distance(
            matmul(narrow(full.u, -1, 0, k) * unsqueeze(full.s, -2), narrow(full.vh, -2, 0, k)), a),
        1e-12);
    const Tensor p = pinv(a);
    EXPECT_LT(distance(matmul(matmul(a, p), a), a), 1e-10);
    EXPECT_LT(distance(matmul(matmul(p, a), p), p), 1e-10);
    const Tensor square = matmul(a, transpose(a));
    const Eigh e = eigh(square);
    EXPECT_LT(distance(matmul(e.vectors * unsqueeze(e.values, -2), transpose(e.vectors)), square),
              1e-11 * double(n));
    EXPECT_EQ(distance(e.values, sort(e.values).values), 0);
    const Tensor positive = square + identity(m, 2);
    EXPECT_LT(distance(matmul(cholesky(positive), cholesky(positive, true)), positive),
              1e-11 * double(n));
  }
}

// Where squares and sums would leave the range of f64.
TEST(Linalg, DecomposesHugeAndTinyMatrices) {
  for (const int exponent : {-1000, -600, 600, 1000}) {
    const double scale = std::ldexp(1, exponent);
    const Tensor a = drawn({2, 4, 3}), square = matmul(transpose(a), a) + identity(3, 2);
    const Qr x = qr(a), y = qr(a * scale);
    EXPECT_TRUE(equal(y.q, x.q)) << exponent;
    EXPECT_TRUE(equal(y.r, x.r * scale)) << exponent;
    EXPECT_LT(distance(svdvals(a * scale) * (1 / scale), svdvals(a)), 1e-14) << exponent;
    EXPECT_LT(distance(eigvalsh(square * scale) * (1 / scale), eigvalsh(square)), 1e-13);
    EXPECT_TRUE(equal(cholesky(square * scale), cholesky(square) * std::sqrt(scale))) << exponent;
  }
  const Tensor largest = eye(2, f64) * 1.7e308;
  EXPECT_EQ(eigvalsh(largest).at(0), 1.7e308);
  EXPECT_EQ(cholesky(largest).at(0), std::sqrt(1.7e308));
}

TEST(Linalg, ADeterminantIsTheProductOfEigenvalues) {
  const Tensor a = drawn({4, 30, 30}), s = a + transpose(a), w = eigvalsh(s);
  const Slogdet y = slogdet(s);
  EXPECT_LT(distance(y.logabsdet, sum(log(abs(w)), {-1})), 1e-9);
  EXPECT_EQ(distance(y.sign, prod(sign(w), {-1})), 0);
  EXPECT_LT(distance(det(s) / (y.sign * exp(y.logabsdet)), ones({4}, f64)), 1e-10);
  EXPECT_NEAR(slogdet(eye(400, f64) * 1e-3).logabsdet.item(), 400 * std::log(1e-3), 1e-9);
  EXPECT_EQ(det(eye(400, f64) * 1e-3).item(), 0) << "beyond f64";
}

TEST(Linalg, AMatrixExponentialIsThatOfItsEigenvalues) {
  for (const double size : {0.0, 1e-3, 1.0, 30.0}) {
    const Tensor a = drawn({2, 20, 20}) * size, s = (a + transpose(a)) * 0.1;
    const Eigh e = eigh(s);
    const Tensor want = matmul(e.vectors * unsqueeze(exp(e.values), -2), transpose(e.vectors));
    EXPECT_LT(distance(matrix_exp(s), want), 1e-12 * max(abs(want)).item()) << size;
  }
  EXPECT_TRUE(all(isnan(matrix_exp(full({2, 2}, nan)))).item<bool>());
  const Tensor none = full({1, 1}, -INFINITY).set_requires_grad();
  EXPECT_EQ(matrix_exp(none).item(), 0) << "of a number";
  EXPECT_EQ(grad({matrix_exp(none)}, {none})[0].item(), 0);
}

TEST(Linalg, LeastSquaresOfRankDeficientMatricesAreShortest) {
  const Tensor thin = drawn({5, 2}), a = matmul(thin, drawn({2, 4}, 2)), b = drawn({5, 3}, 3);
  const Tensor x = lstsq(a, b);
  EXPECT_LT(distance(matmul(transpose(a), matmul(a, x) - b), zeros({4, 3}, f64)), 1e-12);
  EXPECT_LT(distance(matmul(matmul(pinv(a), a), x), x), 1e-12) << "in the span of the rows";
  const Tensor y = from({3, 0, 0, 1e-3}, {2, 2}, f64);
  EXPECT_NEAR(pinv(y).at(3), 1000, 1e-9);
  EXPECT_EQ(pinv(y, {.rtol = 1e-2}).at(3), 0);
}

TEST(Linalg, ASingularMatrixHasADeterminantWithGradients) {
  const Tensor a = from({1, 2, 3, 2, 4, 6, 1, 0, 1, 1, 2, 0, 0, 3, 1, 1, 1, 1}, {2, 3, 3}, f64);
  a.set_requires_grad();
  EXPECT_EQ(det(a).at(0), 0);
  const auto f = [](const std::vector<Tensor>& in) { return det(in[0]); };
  EXPECT_EQ(gradcheck(f, {a}, {.second_order = true}), "");
  const Slogdet y = slogdet(a);
  EXPECT_EQ(y.sign.at(0), 0);
  EXPECT_EQ(y.logabsdet.at(0), -INFINITY);
}

// Repeated singular values, zeros as well, of which bases are arbitrary.
TEST(Linalg, ASingularDeterminantHasSecondDerivatives) {
  const auto f = [](const std::vector<Tensor>& in) { return det(in[0]); };
  for (const std::vector<double>& values : {std::vector<double>{1, 0, 0}, {1, 1, 0}, {0, 0, 0}}) {
    const Tensor a = eye(3, f64) * from(values, {3}, f64);
    a.set_requires_grad();
    EXPECT_EQ(gradcheck(f, {a}, {.second_order = true}), "") << values[0] << values[1];
  }
}

// With pivots or singular values that are rounding errors, or that these nearly are.
TEST(Linalg, ANearlySingularDeterminantHasSecondDerivatives) {
  const std::vector<double> wanted{-414, -36, 342, -108, 0, 108, 198, 36, -126};
  for (const double off : {0., 1e-12, 1e-7}) {
    const Tensor a = from({1, 2, 3, 4, 5, 6, 7, 8, 9 + off}, {3, 3}, f64).set_requires_grad();
    const Tensor slope = grad({det(a)}, {a}, {.create_graph = true})[0];
    const Tensor found = grad({sum(square(slope))}, {a})[0];
    EXPECT_LT(distance(found, from(wanted, {3, 3}, f64)), 1e3 * off + 1e-10) << off;
  }
  const auto slope = [](const std::vector<Tensor>& in) {  // of third order, where values repeat
    return grad({det(in[0])}, {in[0]}, {.create_graph = true})[0];
  };
  EXPECT_EQ(gradcheck(slope, {eye(3, f64).set_requires_grad()}, {.second_order = true}), "");
}

// By torch.linalg.svd(a, full_matrices=True).
TEST(Linalg, FullMatricesHaveTheGradientsOfPyTorch) {
  const std::vector<double> wanted[] = {
      {1.5137878012465862, 5.3433165387938333, -0.90071225047272119, -3.6978346808830085,
       4.152092101525712, 0.82056934023660766},
      {1.1093632595375513, 5.9333865046724927, 1.5589104813923162, -2.0999100840792999,
       4.9642940821767967, -0.21619400264808408}};
  for (const int64_t m : {3, 2}) {
    const int64_t n = 5 - m;
    const Tensor a = from({0.5, 1.25, 0.25, -0.75, 1.0, 0.0}, {m, n}, f64).set_requires_grad();
    const Svd x = svd(a, {.full_matrices = true});
    const auto weighted = [](const Tensor& t) {
      return sum(square(t) * reshape(arange(1, double(t.numel() + 1), 1, f64), t.shape()));
    };
    const Tensor y =
        weighted(narrow(x.u, -1, 0, 2)) + weighted(narrow(x.vh, -2, 0, 2)) + sum(pow(x.s, 3.0));
    const Tensor g = grad({y}, {a})[0];
    EXPECT_LT(distance(g, from(wanted[3 - m], {m, n}, f64)), 1e-13);
  }
}

// Functions of the further vectors that do not tell them apart: of what they span.
TEST(Linalg, FullMatricesSpanAll) {
  for (const int64_t m : {4, 3, 2}) {
    const int64_t n = 6 - m, k = std::min(m, n);
    const Tensor a = drawn({2, m, n}).set_requires_grad(), c = drawn({m, m}, 2),
                 d = drawn({n, n}, 3);
    const auto f = [&](const std::vector<Tensor>& in) {
      const Svd x = svd(in[0], {.full_matrices = true});
      const Tensor u = narrow(x.u, -1, k, m - k), vh = narrow(x.vh, -2, k, n - k);
      return sum(matmul(u, transpose(u)) * c) + sum(matmul(transpose(vh), vh) * d) +
             sum(square(x.u) * c) * double(m == k) + sum(x.s);
    };
    EXPECT_EQ(gradcheck(f, {a}, {.second_order = true}), "") << m << " x " << n;
  }
  const Tensor wide = drawn({2, 3}).set_requires_grad();
  EXPECT_EQ(gradcheck(
                [](const std::vector<Tensor>& in) {
                  const Qr x = qr(in[0], {.complete = true});
                  return sum(pow(x.q, 3.0)) + sum(pow(x.r, 3.0));
                },
                {wide}),
            "");
}

TEST(Linalg, CompletesMatricesWithoutElements) {
  EXPECT_TRUE(equal(svd(zeros({2, 3, 0}), {.full_matrices = true}).u, expand(eye(3), {2, 3, 3})));
  EXPECT_TRUE(equal(svd(zeros({0, 3}), {.full_matrices = true}).vh, eye(3)));
  EXPECT_TRUE(equal(qr(zeros({3, 0}), {.complete = true}).q, eye(3)));
  EXPECT_EQ(qr(zeros({0, 3}), {.complete = true}).r.shape(), (Shape{0, 3}));
}

TEST(Linalg, ValuesAloneAreThoseBesideVectors) {
  for (const int64_t n : {3, 20, 40}) {
    const Tensor a = drawn({2, n + 5, n}), square = drawn({2, n, n}), wide = transpose(a);
    EXPECT_LT(distance(svdvals(a), svd(a).s), 1e-13) << n;
    EXPECT_LT(distance(svdvals(wide), svd(wide).s), 1e-13) << n;
    EXPECT_LT(distance(eigvalsh(square), eigh(square).values), 1e-13) << n;
    EXPECT_TRUE(equal(svdvals(a.detach().set_requires_grad()), svd(a).s)) << n;
    EXPECT_TRUE(equal(eigvalsh(square.detach().set_requires_grad()), eigh(square).values)) << n;
  }
}

// A function of repeated eigenvalues that does not tell their vectors apart.
TEST(Linalg, RepeatedEigenvaluesHaveGradients) {
  const Tensor a = from({2, 0, 0, 0, 2, 0, 0, 0, 5}, {3, 3}, f64).set_requires_grad();
  EXPECT_LT(distance(grad({sum(eigvalsh(a))}, {a})[0], eye(3, f64)), 1e-15);
  EXPECT_LT(distance(grad({sum(svdvals(a))}, {a})[0], eye(3, f64)), 1e-15);
}

TEST(Linalg, HasTheSameBitsForAnyNumberOfThreads) {
  const Tensor a = drawn({64, 24, 24});
  const auto all = [&] {
    const Svd s = svd(a);
    return std::vector{solve(a, a * 2), inv(a), det(a), qr(a).q,
                       eigh(a).vectors, s.u,    s.vh,   matrix_exp(a)};
  };
  std::vector<Tensor> one;
  {
    const kernels::cpu::ThreadLimit limit(1);
    one = all();
  }
  const kernels::cpu::ThreadLimit limit(3);
  const std::vector<Tensor> three = all();
  for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(equal(one[i], three[i])) << i;
}

TEST(Linalg, RoundsOnceFromF64) {
  const Tensor a = drawn({8, 5, 5}).to(f32);
  EXPECT_TRUE(equal(inv(a), inv(a.to(f64)).to(f32)));
  EXPECT_TRUE(equal(svdvals(a.to(bf16)), svdvals(a.to(bf16).to(f64)).to(bf16)));
}

TEST(Linalg, NormsAndRanks) {
  const Tensor flat = from({1, 2, 2, 4}, {2, 2}), both = stack({eye(2), flat, zeros({2, 2})});
  EXPECT_EQ(to_vector(matrix_rank(both)), (Values{2, 1, 0}));
  EXPECT_EQ(matrix_rank(diag(tensor({1, 1e-3}).to(f16)), {.rtol = 0.01}).item<int64_t>(), 1);
  EXPECT_EQ(matrix_rank(zeros({3, 2, 0})).shape(), Shape{3});
  EXPECT_EQ(cond(diag(tensor({1e-30, 1e5}))).item(), float(1e35));
  EXPECT_EQ(cond(diag(tensor({2, 0}))).item(), INFINITY);
  EXPECT_EQ(matrix_norm(flat).item(), 5);
  EXPECT_NEAR(matrix_norm(flat, "nuc").item(), 5, 1e-6);
  EXPECT_NEAR(matrix_norm(flat, 2).item(), 5, 1e-6);
  EXPECT_EQ(matrix_norm(flat, -1).item(), 3);
  EXPECT_EQ(matrix_norm(flat, INFINITY).item(), 6);
  EXPECT_EQ(matrix_norm(full({2, 2}, 40000, f16), 1).item(), INFINITY);
  EXPECT_ERROR(matrix_norm(flat, 3), "matrix_norm: ord must be 1, 2 or infinity, or minus it");
  EXPECT_ERROR(matrix_norm(flat, "max"), "ord is \"max\", not \"fro\" or \"nuc\"");
  EXPECT_ERROR(matrix_norm(ones({2})), "matrices of shape [2], not [..., m, n]");
  EXPECT_ERROR(cond(ones({2})), "cond: svdvals: matrices of shape [2], not [..., m, n]");
  EXPECT_ERROR(matrix_rank(arange(4)), "matrix_rank: elements must be floats, got i64");
}

TEST(Linalg, SaysWhatIsWrong) {
  const Tensor good = eye(2), singular = from({1, 2, 2, 4}, {2, 2}), both = stack({good, singular});
  EXPECT_ERROR(solve(both, ones({2, 2, 1})),
               "solve: matrix 1 of 2 is singular: pivot 2 of its LU factorization is 0");
  EXPECT_ERROR(solve(both, ones({2, 2, 0})), "solve: matrix 1 of 2 is singular");
  EXPECT_ERROR(inv(singular),
               "inv: matrix 0 of 1 is singular: pivot 2 of its LU factorization is 0");
  EXPECT_ERROR(
      cholesky(stack({good, -good})),
      "matrix 1 of 2 is not positive definite: its leading minor of order 1 is not positive");
  EXPECT_ERROR(cholesky(from({1, 0, 0, nan}, {2, 2})),
               "its leading minor of order 2 is not positive");
  EXPECT_ERROR(eigh(full({2, 2}, nan)), "eigh: matrix 0 of 1 has an element that is not finite");
  EXPECT_ERROR(svd(full({3, 2}, INFINITY)), "svd: matrix 0 of 1 has an element that is not finite");
  EXPECT_ERROR(det(ones({2, 3})), "matrices of shape [2, 3] are not square");
  EXPECT_ERROR(solve(ones({2, 3}), ones({2, 1})), "matrices of shape [2, 3] are not square");
  EXPECT_ERROR(qr(ones({3})), "matrices of shape [3], not [..., m, n]");
  EXPECT_ERROR(solve(good, ones({3, 1})),
               "matrices of shape [2, 2] and right-hand sides of shape [3, 1], not [..., m, n] and "
               "[..., m, k]");
  EXPECT_ERROR(lstsq(ones({3, 2}), ones({2, 2})),
               "matrices of shape [3, 2] and right-hand sides of shape [2, 2]");
  EXPECT_ERROR(svd(ones({2, 2}, i64)), "i64");
  const Tensor tall = drawn({3, 2}).set_requires_grad();
  EXPECT_ERROR(sum(qr(tall, {.complete = true}).r).backward(),
               "matrices of 3 rows and 2 columns have no gradient with .complete: the last columns "
               "of q are arbitrary");
}

}  // namespace linalg_test
}  // namespace mixtape
