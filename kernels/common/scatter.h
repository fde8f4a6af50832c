#pragma once
// The ops that combine elements scattered to the same place, and the dtype of their sums. CPU and
// CUDA share both, so that their results have the same bits (except where an f32 sum went on in
// f64).

#include "kernels/common/binary.h"
#include "kernels/kernels.h"

namespace mixtape::kernels {

// Calls run.operator()<F>() with the op of two elements that meet.
template <class Run>
void visit_meeting(Reduce op, Run run) {
  if (op == Reduce::Max)
    run.template operator()<Maximum>();
  else if (op == Reduce::Prod)
    run.template operator()<Mul>();
  else if (op == Reduce::Min)
    run.template operator()<Minimum>();
  else
    run.template operator()<Add>();
}
template <class F, class T, class S>
MIXTAPE_HD T met(T first, S then) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(F::f(Whole(first), Whole(then)));
  else
    return F::f(first, static_cast<T>(then));
}

// True if a sum in T may leave its range on the way to a result within it: then it goes on in f64.
template <class F, class T>
inline constexpr bool leaves_f32 = std::is_same_v<F, Add> && std::is_same_v<T, float>;

inline constexpr int64_t few_indices = 32;  // along a line: their order is kept without sorting

// True if f32 sums are computed in f64: if many elements may go to one sum, or if there are so few
// sums that it costs nothing. (In f32, 1 no longer counts beside 2^24, and the sum of a million
// equal terms is off by one percent.)
inline bool sums_in_f64(int dim, const internal::View& index, const internal::View& y) {
  const int64_t along = index.shape()[dim];
  return y.dtype == f32 &&
         (along >= 65536 || (along > few_indices && index.size() >= 16 * y.size()));
}

}  // namespace mixtape::kernels
