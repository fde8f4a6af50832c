#pragma once
// Numbers as unsigned integer keys of the same order, for sorting, top-k, argmax and argmin.

#include <bit>
#include <limits>

#include "core/dtype.h"
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {

template <int bytes>
using Bits = std::conditional_t<
    bytes == 8, uint64_t,
    std::conditional_t<bytes == 4, uint32_t, std::conditional_t<bytes == 2, uint16_t, uint8_t>>>;
template <class T>
using Key = Bits<sizeof(T)>;

// The key of a number: both zeros have the same, NaN the largest. Branchless, to vectorise.
template <class T>
MIXTAPE_ALWAYS_INLINE MIXTAPE_HD Key<T> key(T x) {
  using K = Key<T>;
  constexpr K sign = K(K(1) << (8 * sizeof(K) - 1));
  const K bits = std::bit_cast<K>(x);
  if constexpr (is_float(dtype_of<T>())) {
    constexpr K infinity = std::is_same_v<T, double>     ? K(0x7ff0000000000000)
                           : std::is_same_v<T, float>    ? K(0x7f800000)
                           : std::is_same_v<T, BFloat16> ? K(0x7f80)
                                                         : K(0x7c00);
    // The bits of positive numbers are in order; negative ones are negated and come below.
    const K magnitude = K(bits & K(~sign)), negative = K(0 - (bits >> (8 * sizeof(K) - 1)));
    const K ordered = K(K((bits ^ negative) - negative) + K(sign & ~negative));
    return K(ordered | K(0 - K(magnitude > infinity)));
  } else {
    return std::is_signed_v<T> ? K(bits ^ sign) : bits;
  }
}

// The key by which a row is sorted stably: descending order inverts it.
template <class T>
MIXTAPE_ALWAYS_INLINE MIXTAPE_HD Key<T> ranked(T x, bool descending) {
  return descending ? Key<T>(~key(x)) : key(x);
}

// A key that is largest for the maximum, or for the minimum; NaN wins in both cases.
template <bool largest, class T>
MIXTAPE_ALWAYS_INLINE MIXTAPE_HD Key<T> merit(T x) {
  using K = Key<T>;
  const K k = key(x);
  if constexpr (largest)
    return k;
  else if constexpr (is_float(dtype_of<T>()))
    return K(K(~k) | K(0 - K(k == std::numeric_limits<K>::max())));
  else
    return K(~k);
}

}  // namespace mixtape::kernels
