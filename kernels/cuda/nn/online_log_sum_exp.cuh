#pragma once
// Log-sum-exp of a row in one pass: the sum is relative to the running maximum, so that nothing
// overflows (Milakov and Gimelshein 2018). NaN counts as the maximum and propagates.

#include "kernels/common/scalar.h"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

template <class T>
struct OnlineLogSumExp {
  T top = T(-std::numeric_limits<float>::infinity()), sum = T(0);  // of exp(x - top)

  __device__ static OnlineLogSumExp joined(const OnlineLogSumExp& a, const OnlineLogSumExp& b) {
    const T top = a.top > b.top || a.top != a.top ? a.top : b.top, shift = finite(top);
    return {top, a.sum * exp(a.top - shift) + b.sum * exp(b.top - shift)};
  }
  template <class V, int n>
  __device__ void add(const V (&x)[n]) {
    T now = top;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const T v = gpu::widen(x[i]);
      now = v > now || v != v ? v : now;
    }
    const T shift = finite(now);
    sum *= exp(top - shift);
#pragma unroll
    for (int i = 0; i < n; ++i) sum += exp(gpu::widen(x[i]) - shift);
    top = now;
  }

 private:
  // Replaces a maximum of -inf, so that the exponentials of a row of -inf are 0, not NaN.
  __device__ static T finite(T top) { return top < std::numeric_limits<T>::lowest() ? T(0) : top; }
};

}  // namespace mixtape::kernels::cuda
