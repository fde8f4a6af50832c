#pragma once
// Transposes a square of numbers in registers.

#include <cstddef>
#include <utility>

#include "kernels/common/always_inline.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Interleaves groups of g elements within each 128 bits of a and b: the lower halves to a, the
// upper ones to b.
template <int g, int part, class V, size_t... i>
MIXTAPE_ALWAYS_INLINE void interleave(V& a, V& b, std::index_sequence<i...>) {
  constexpr int n = sizeof...(i);
  constexpr auto from = [](int at) {
    return at / part * part + at % part / (2 * g) * g + at % g + (at / g % 2 ? n : 0);
  };
  const V low = a, high = b;
  a = __builtin_shufflevector(low, high, from(i)...);
  b = __builtin_shufflevector(low, high, (from(i) + part / 2)...);
}

// Moves the even 128-bit parts of a and then b to a, the odd ones to b.
template <int part, class V, size_t... i>
MIXTAPE_ALWAYS_INLINE void split_even_odd(V& a, V& b, std::index_sequence<i...>) {
  constexpr auto from = [](int at) { return at / part * 2 * part + at % part; };
  const V low = a, high = b;
  a = __builtin_shufflevector(low, high, from(i)...);
  b = __builtin_shufflevector(low, high, (from(i) + part)...);
}

// Rows become columns. Every round is one shuffle of two registers, without an index vector.
template <int n, class V>
MIXTAPE_ALWAYS_INLINE void transpose(V (&v)[n]) {
  constexpr int part = 16 * n / sizeof(V);
  constexpr std::make_index_sequence<n> lanes;
  const auto round = [&]<int d>(std::integral_constant<int, d>) MIXTAPE_INLINE_LAMBDA {
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) {
      if (r & d) continue;
      if constexpr (d < part)
        interleave<d, part>(v[r], v[r + d], lanes);
      else
        split_even_odd<part>(v[r], v[r + d], lanes);
    }
  };
  round(std::integral_constant<int, 1>());
  if constexpr (n > 2) round(std::integral_constant<int, 2>());
  if constexpr (n > 4) round(std::integral_constant<int, 4>());
  if constexpr (n > 8) round(std::integral_constant<int, 8>());
  // The first rounds separated the halves of a part before its quarters.
  if constexpr (part == 4) {
#pragma GCC unroll 16
    for (int r = 0; r < n; r += 4) std::swap(v[r + 1], v[r + 2]);
  }
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
