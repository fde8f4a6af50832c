#pragma once
// Means and variances of rows.

#include <array>
#include <cmath>
#include <numeric>

#include "kernels/common/scalar.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Mean and biased variance of several rows.
template <int rows>
struct Moments {
  std::array<double, rows> mean, var;

  std::array<double, rows> rstd(double eps) const {
    std::array<double, rows> all;
    for (int r = 0; r < rows; ++r) all[r] = 1 / std::sqrt(var[r] + eps);
    return all;
  }
};

// Moments of one row in f64, around a value near its mean.
template <class S>
void widen(const S* x, int64_t n, bool centered, double& mean, double& var) {
  constexpr int64_t lanes = 8;
  double sum[lanes] = {}, squares[lanes] = {};
  for (int64_t start = 0; start < n; start += lanes)
    for (int64_t i = 0; i < std::min(lanes, n - start); ++i) {
      const double d = static_cast<double>(x[start + i]) - mean;
      sum[i] += d;
      squares[i] += d * d;
    }
  const double per = 1 / static_cast<double>(n);
  const double off = centered ? std::accumulate(sum, sum + lanes, 0.0) * per : 0;
  mean += off;
  var = std::accumulate(squares, squares + lanes, 0.0) * per - off * off;
}

// Sets mean and var from the sums of n differences from a center, which is 0 if there is none, and
// of their squares. If the center is so far from the mean that the variance loses digits, or if
// squares left f32 and eps does not hide it, again() sums in f64.
template <class F>
void finish_moments(double sum, double squares, double center, int64_t n, bool centered, double eps,
                    double& mean, double& var, F again) {
  const double per = 1 / static_cast<double>(n), off = centered ? sum * per : 0;
  mean = center + off;
  var = squares * per - off * off;
  if (!(off * off <= 8 * var) || !squares_in_range(var + eps)) {
    if (!std::isfinite(mean)) mean = center;
    again();
  }
  if (var < 0) var = 0;  // (NaN stays)
}

// Moments of several rows at once, so that no sum waits for another; around zero if not centered.
// Sums differences from the first element of each row.
template <class T, int rows, class S>
MIXTAPE_ALWAYS_INLINE Moments<rows> moments_of(const S* x, int64_t n, double eps,
                                               bool centered = true) {
  std::array<T, rows> center = {};
  if (centered && n > 0)
    for (int r = 0; r < rows; ++r) center[r] = static_cast<T>(x[r * n]);
  const auto about = sums_over<T, 2 * rows>(n, [&](int64_t i, int64_t count, auto& sums) {
    for (int r = 0; r < rows; ++r) {
      const Vec<T> d = keep(read<T>(x + r * n + i, count) - Vec<T>(center[r]), count);
      sums[r] += d;
      sums[rows + r] += d * d;
    }
  });
  Moments<rows> result;
  for (int r = 0; r < rows; ++r) {
    double &mean = result.mean[r], &var = result.var[r];
    finish_moments(about[r], about[rows + r], center[r], n, centered, eps, mean, var,
                   [&] { widen(x + r * n, n, centered, mean, var); });
  }
  return result;
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
