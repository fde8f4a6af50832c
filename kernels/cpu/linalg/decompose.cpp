// Linear algebra by Eigen, in f64. Threads share the matrices of a batch and none is cut into
// parts, so every number of threads gives the same bits.

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12, in its own AVX-512 intrinsics
#endif
#define EIGEN_NO_DEBUG
#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#include <cmath>

#include "kernels/cpu/loops/parallel.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Number i of a batch [batch, m, n].
Eigen::Map<RowMajor> matrix(const View& x, int64_t i) {
  return {x.as<double>() + i * x.strides()[0], x.shape()[1], x.shape()[2]};
}
// Number i of a batch [batch, n].
Eigen::Map<Eigen::VectorXd> row(const View& x, int64_t i) {
  return {x.as<double>() + i * x.strides()[0], x.shape()[1]};
}
Matrix symmetric_part(const View& x, int64_t i) {
  const auto a = matrix(x, i);
  return 0.5 * a + 0.5 * a.transpose();  // (whose sum could leave the range)
}
// a 2^exponent, in two steps since the power itself may leave the range.
Matrix times_power(const Matrix& a, int exponent) {
  const int half = exponent / 2;
  return a * std::ldexp(1, half) * std::ldexp(1, exponent - half);
}

// Calls f(i) for each matrix of x.
template <class F>
void for_each_matrix(const View& x, F&& f) {
  const int64_t m = x.shape()[1], n = x.shape()[2];
  parallel_ranges(x.shape()[0], grain_of(m * n * std::min(m, n)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// The number of the first diagonal element for which `bad` holds, from 1; 0 if there is none.
template <class F>
int64_t first_on_diagonal(const Matrix& a, F&& bad) {
  for (int64_t i = 0; i < a.rows(); ++i)
    if (bad(a(i, i))) return i + 1;
  return 0;
}

template <unsigned triangle>
void solve_triangle(const View& a, const View& b, const View& x) {
  for_each_matrix(a, [&](int64_t i) {
    matrix(x, i) = matrix(a, i).template triangularView<triangle>().solve(matrix(b, i));
  });
}

// exp(a) by scaling, the [13/13] Pade approximant and squaring (Higham 2005).
Matrix exponential(Matrix a) {
  constexpr double c[] = {64764752532480000,
                          32382376266240000,
                          7771770303897600,
                          1187353796428800,
                          129060195264000,
                          10559470521600,
                          670442572800,
                          33522128640,
                          1323241920,
                          40840800,
                          960960,
                          16380,
                          182,
                          1};
  constexpr double accurate_below = 5.371920351148152;
  const double norm = a.cwiseAbs().colwise().sum().maxCoeff();
  if (!std::isfinite(norm)) return Matrix::Constant(a.rows(), a.cols(), std::nan(""));
  const int squarings = std::max(0, norm == 0 ? 0 : std::ilogb(norm / accurate_below) + 1);
  a *= std::ldexp(1, -squarings);
  const Matrix one = Matrix::Identity(a.rows(), a.cols()), a2 = a * a, a4 = a2 * a2, a6 = a4 * a2;
  const Matrix high_odd = c[13] * a6 + c[11] * a4 + c[9] * a2,
               high_even = c[12] * a6 + c[10] * a4 + c[8] * a2;
  const Matrix odd = a * (a6 * high_odd + c[7] * a6 + c[5] * a4 + c[3] * a2 + c[1] * one).eval();
  const Matrix even = a6 * high_even + c[6] * a6 + c[4] * a4 + c[2] * a2 + c[0] * one;
  Matrix y = Eigen::PartialPivLU<Matrix>(even - odd).solve(even + odd);
  for (int i = 0; i < squarings; ++i) y = (y * y).eval();
  return y;
}

}  // namespace

void solve(Launch&, Triangular part, In a, In b, Out x, Out zero_pivot) {
  switch (part) {
    case Triangular::Lower:
      return solve_triangle<Eigen::Lower>(a, b, x);
    case Triangular::Upper:
      return solve_triangle<Eigen::Upper>(a, b, x);
    case Triangular::UnitLower:
      return solve_triangle<Eigen::UnitLower>(a, b, x);
    case Triangular::UnitUpper:
      return solve_triangle<Eigen::UnitUpper>(a, b, x);
    case Triangular::None:
      break;
  }
  for_each_matrix(a, [&](int64_t i) {
    const Eigen::PartialPivLU<Matrix> lu(matrix(a, i));
    matrix(x, i) = lu.solve(matrix(b, i));
    zero_pivot.as<int64_t>()[i] =
        first_on_diagonal(lu.matrixLU(), [](double pivot) { return pivot == 0; });
  });
}

void determinant(Launch&, In a, Out y) {
  for_each_matrix(a, [&](int64_t i) {
    const Eigen::PartialPivLU<Matrix> lu(matrix(a, i));
    double sign = double(lu.permutationP().determinant()), det = sign, log_size = 0;
    for (const double pivot : lu.matrixLU().diagonal()) {
      det *= pivot;
      sign *= pivot > 0 ? 1 : pivot < 0 ? -1 : pivot;
      log_size += std::log(std::abs(pivot));
    }
    row(y, i) << det, sign, log_size;
  });
}

void cholesky(Launch&, In a, Out l, Out bad_minor) {
  for_each_matrix(a, [&](int64_t i) {
    Matrix s = symmetric_part(a, i);
    const int64_t failed = Eigen::internal::llt_inplace<double, Eigen::Lower>::blocked(s);
    bad_minor.as<int64_t>()[i] =
        failed >= 0 ? failed + 1 : first_on_diagonal(s, [](double x) { return std::isnan(x); });
    matrix(l, i) = s.triangularView<Eigen::Lower>();
  });
}

void qr(Launch&, In a, Out q, Out r) {
  for_each_matrix(a, [&](int64_t i) {
    // Eigen squares elements: near 1, no square leaves the range.
    const double largest = matrix(a, i).cwiseAbs().maxCoeff();
    const int exponent = largest > 0 && std::isfinite(largest) ? std::ilogb(largest) : 0;
    const Eigen::HouseholderQR<Matrix> qr(times_power(matrix(a, i), -exponent));
    const int64_t m = a.shape()[1], k = q.shape()[2];
    const Matrix triangle = qr.matrixQR().topRows(k).template triangularView<Eigen::Upper>();
    matrix(q, i) = qr.householderQ() * Matrix::Identity(m, k);
    matrix(r, i) = times_power(triangle, exponent);
  });
}

void eigh(Launch&, In a, Out vectors, Out values, Out failure) {
  for_each_matrix(a, [&](int64_t i) {
    const Matrix s = symmetric_part(a, i);
    int64_t& failed = failure.as<int64_t>()[i];
    if ((failed = !s.allFinite())) return;
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(
        s, vectors ? Eigen::ComputeEigenvectors : Eigen::EigenvaluesOnly);
    if (solver.info() != Eigen::Success) failed = 2;
    if (vectors) matrix(vectors, i) = solver.eigenvectors();
    row(values, i) = solver.eigenvalues();
  });
}

void svd(Launch&, In a, Out u, Out s, Out vt, Out failure) {
  for_each_matrix(a, [&](int64_t i) {
    const Matrix x = matrix(a, i);
    int64_t& failed = failure.as<int64_t>()[i];
    if ((failed = !x.allFinite())) return;
    const bool is_full = u && std::max(u.shape()[2], vt.shape()[1]) > s.shape()[1];
    const Eigen::BDCSVD<Matrix> solver(x, !u        ? 0
                                          : is_full ? Eigen::ComputeFullU | Eigen::ComputeFullV
                                                    : Eigen::ComputeThinU | Eigen::ComputeThinV);
    if (solver.info() != Eigen::Success) failed = 2;
    row(s, i) = solver.singularValues();
    if (!u) return;
    matrix(u, i) = solver.matrixU();
    matrix(vt, i) = solver.matrixV().transpose();
  });
}

void matrix_exp(Launch&, In a, Out y) {
  for_each_matrix(a, [&](int64_t i) { matrix(y, i) = exponential(matrix(a, i)); });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
