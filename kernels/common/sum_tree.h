#pragma once
// The order in which a sum over chunks of a step is added: always the same tree, however the chunks
// are spread over ranks, so that results have the same bits.

#include <cstdint>

#include "core/dtype.h"

namespace mixtape::kernels {

// sum(0, n), where sum(first, 1) = part(first) and sum(first, n) = sum(first, h) + sum(first + h,
// n - h), with h the largest power of two below n < 2^20. Adds like a binary counter. (The loops
// end at a constant, so that nvcc unrolls them and keeps the sums in registers.)
template <class T, class Part>
MIXTAPE_HD T sum_tree(int64_t n, Part part) {
  constexpr int levels = 20;
  T complete[levels];  // complete[l]: the sum of 2^l parts, valid while bit l of their number is
                       // set
  for (int64_t i = 0; i < n; ++i) {
    T sum = part(i);
    for (int l = 0; l < levels; ++l) {
      const int64_t below = (int64_t(1) << l) - 1;
      if ((i & below) != below) {  // the sum has its place
#ifdef __CUDA_ARCH__
        continue;
#else
        break;
#endif
      }
      if (i >> l & 1)
        sum = complete[l] + sum;
      else
        complete[l] = sum;
    }
  }
  T sum{};
  bool has_any = false;
  for (int l = 0; l < levels && n >> l; ++l) {
    if (!(n >> l & 1)) continue;
    sum = has_any ? complete[l] + sum : complete[l];
    has_any = true;
  }
  return sum;
}

}  // namespace mixtape::kernels
