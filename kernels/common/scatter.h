#pragma once
// The form of sums in scatter_add, the same on both devices, so that their bits are the same.

#include "core/view.h"

namespace mixtape::kernels {

inline constexpr int64_t few_indices = 32;  // along a line: their order is kept without sorting

// True if sums of f32 are formed in f64: if many elements may meet in one of them, or if there are
// so few sums that it costs nothing. (In f32, 1 no longer counts beside 2^24, and of a million
// equal terms the sum is off by a hundredth.)
inline bool sums_in_f64(int dim, const internal::View& index, const internal::View& y) {
  const int64_t along = index.shape()[dim];
  return y.dtype == f32 &&
         (along >= 65536 || (along > few_indices && index.size() >= 16 * y.size()));
}

}  // namespace mixtape::kernels
