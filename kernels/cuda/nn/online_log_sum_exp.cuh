#pragma once
// Log-sum-exp of a row in one pass: the sum is relative to the running maximum, so that nothing
// overflows (Milakov and Gimelshein 2018). NaN counts as the maximum and propagates. The maximum's
// own term, which is 1, is apart from the rest, whose log1p is exact where it outweighs all others.

#include "kernels/common/scalar.h"
#include "kernels/cuda/rows.cuh"

namespace mixtape::kernels::cuda {

template <class T>
struct OnlineLogSumExp {
  T top = T(-std::numeric_limits<float>::infinity()), rest = T(0);  // sum of exp(x - top), less 1

  __device__ T sum() const { return T(1) + rest; }
  __device__ T log_sum() const { return log1p(rest); }

  __device__ static OnlineLogSumExp joined(const OnlineLogSumExp& a, const OnlineLogSumExp& b) {
    const T top = a.top > b.top || a.top != a.top ? a.top : b.top, shift = finite(top);
    const bool is_a = a.top == top;
    const T lower = is_a ? b.top : a.top, below = is_a ? b.rest : a.rest;
    return {top, (is_a ? a.rest : b.rest) + (T(1) + below) * exp(lower - shift)};
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
    const bool moves = now != top;
    T tops = moves ? T(-1) : T(0);  // elements that equal the maximum, but for one
    if (moves) rest = (T(1) + rest) * exp(top - shift);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const T d = gpu::widen(x[i]) - shift;
      rest += d == T(0) ? T(0) : exp(d);
      tops += d == T(0) ? T(1) : T(0);
    }
    rest += tops;
    top = now;
  }

 private:
  // Replaces a maximum of -inf, so that the exponentials of a row of -inf are 0, not NaN.
  __device__ static T finite(T top) { return top < std::numeric_limits<T>::lowest() ? T(0) : top; }
};

}  // namespace mixtape::kernels::cuda
