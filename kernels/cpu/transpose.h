#pragma once
// A square of lanes transposed in registers.

#include <utility>

#include "kernels/cpu/simd.h"

namespace mixtape::kernels::cpu {

template <class T>
inline constexpr int wide = Lanes<T>::width;

// Rows become columns: log2(lanes) rounds in which blocks of d x d swap places.
template <class T>
[[gnu::always_inline]] inline void transpose(Lanes<T> (&v)[wide<T>]) {
  const auto round = [&]<int d, size_t... i>(
      std::integral_constant<int, d>, std::index_sequence<i...>) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < wide<T>; ++r) {
      if (r & d) continue;
      const typename Lanes<T>::Vector a = v[r].v, b = v[r + d].v;
      v[r].v = __builtin_shufflevector(a, b, int(i & d ? wide<T> + i - d : i)...);
      v[r + d].v = __builtin_shufflevector(a, b, int(i & d ? wide<T> + i : i + d)...);
    }
  };
  constexpr std::make_index_sequence<wide<T>> lanes;
  round(std::integral_constant<int, 1>(), lanes);
  round(std::integral_constant<int, 2>(), lanes);
  round(std::integral_constant<int, 4>(), lanes);
  if constexpr (wide<T> == 16) round(std::integral_constant<int, 8>(), lanes);
}

}  // namespace mixtape::kernels::cpu
