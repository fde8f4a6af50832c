#pragma once
// x + s f(a, b) of an op f of two tensors: what addcmul, addcdiv and lerp are made of.

#include "kernels/common/binary.h"

namespace mixtape::kernels {

// (Numbers at both ends of their range have no difference, but halves of them do.)
template <class F, class T>
MIXTAPE_HD T plus_scaled_of(T x, T s, T a, T b) {
  if constexpr (std::is_same_v<F, Sub> && !std::is_same_v<T, Whole>)
    return x + (s + s) * (T(0.5) * a - T(0.5) * b);
  else
    return x + s * F::f(a, b);
}

}  // namespace mixtape::kernels
