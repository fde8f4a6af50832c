#pragma once
// x + s f(a, b) for an op f of two tensors, from which addcmul, addcdiv and lerp are made. f32
// numbers are computed in f64, whose range holds every step.

#include "kernels/common/elementwise.h"
#include "kernels/common/special.h"

namespace mixtape::kernels {

// (The difference of numbers at both ends of the range overflows, that of their halves does not.)
template <class F, class T>
MIXTAPE_HD T plus_scaled_of(T x, double s, T a, T b) {
  if constexpr (std::is_same_v<T, Whole>)
    return x + number<Whole>(s) * F::f(a, b);
  else
    return in_double(
        [s]<class W>(W u, W v, W w) {
          if constexpr (std::is_same_v<F, Sub>)
            return u + W(s + s) * (W(0.5) * v - W(0.5) * w);
          else
            return u + W(s) * F::f(v, w);
        },
        x, a, b);
}

}  // namespace mixtape::kernels
