#pragma once
// Counts of a tensor's unusual elements, as the kernel tensor_stats writes them on both devices.

#include <cstdint>

#include "core/dtype.h"

namespace mixtape::kernels {

struct TensorStats {
  double largest = 0;  // finite |x|
  double infinities = 0, nans = 0, zeros = 0;
  double subnormals = 0;  // held with fewer bits of precision than the dtype has

  bool is_finite() const { return infinities + nans == 0; }
  MIXTAPE_HD void join(const TensorStats& other) {
    largest = largest < other.largest ? other.largest : largest;
    infinities += other.infinities;
    nans += other.nans;
    zeros += other.zeros;
    subnormals += other.subnormals;
  }
};
inline constexpr int64_t stats_size = 5;  // of TensorStats, in doubles

// The smallest magnitude with all bits of precision.
MIXTAPE_HD constexpr double smallest_normal(DType t) {
  return t == f16 ? 0x1p-14 : t == f64 ? 0x1p-1022 : 0x1p-126;
}

// Accumulates the counts, for numbers of type T.
template <class T>
struct StatsAccumulator {
  T largest = 0;
  int64_t infinities = 0, nans = 0, zeros = 0, subnormals = 0;

  MIXTAPE_HD void add(T x, T smallest) {
    const T size = x < T(0) ? -x : x;
    const bool nan = x != x, finite = x - x == T(0);
    nans += nan;
    infinities += !nan && !finite;
    zeros += x == T(0);
    subnormals += size > T(0) && size < smallest;
    largest = finite && size > largest ? size : largest;
  }
};

}  // namespace mixtape::kernels
