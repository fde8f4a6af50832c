#pragma once
// The order in which the parts of a sum over chunks of a step are added: the same tree however the
// chunks are spread over ranks, so that the bits are the same.

#include <cstdint>

#include "core/dtype.h"

namespace mixtape::kernels {

// sum(0, n), where sum(first, 1) = part(first) and sum(first, n) = sum(first, h) + sum(first + h,
// n - h), h the largest power of two below n. Adds as a binary counter counts: n < 2^20.
template <class T, class Part>
MIXTAPE_HD T sum_tree(int64_t n, Part part) {
  T complete[20];  // complete[l]: of 2^l parts, while bit l of their number is set
  for (int64_t i = 0; i < n; ++i) {
    T sum = part(i);
    int l = 0;
    for (; i >> l & 1; ++l) sum = complete[l] + sum;
    complete[l] = sum;
  }
  int l = 0;
  while (!(n >> l & 1)) ++l;
  T sum = complete[l];
  for (++l; n >> l; ++l)
    if (n >> l & 1) sum = complete[l] + sum;
  return sum;
}

}  // namespace mixtape::kernels
