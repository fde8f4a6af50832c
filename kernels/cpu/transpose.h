#pragma once
// A square of lanes transposed in registers, and what is larger as such squares.

#include <algorithm>
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
  if constexpr (wide < T >> 4) round(std::integral_constant<int, 4>(), lanes);
  if constexpr (wide < T >> 8) round(std::integral_constant<int, 8>(), lanes);
}

// put(c, r, values, count) of rows r, r + 1, ... in column c, where get(r, c, count) has the values
// of columns c, c + 1, ... in row r.
template <class T, class Get, class Put>
[[gnu::always_inline]] inline void turn(int64_t rows, int64_t columns, Get get, Put put) {
  constexpr int64_t n = wide<T>;
  const auto square = [&](int64_t r, int64_t c, int64_t height, int64_t width)
      __attribute__((always_inline)) {
    Lanes<T> v[n];
#pragma GCC unroll 16
    for (int64_t i = 0; i < n; ++i) v[i] = i < height ? get(r + i, c, width) : Lanes<T>(T(0));
    transpose<T>(v);
#pragma GCC unroll 16
    for (int64_t i = 0; i < n; ++i)
      if (i < width) put(c + i, r, v[i], height);
  };
  for (int64_t c = 0; c < columns; c += n)
    for (int64_t r = 0; r < rows; r += n) {
      const int64_t height = std::min(n, rows - r), width = std::min(n, columns - c);
      if (height == n && width == n)
        square(r, c, n, n);
      else
        square(r, c, height, width);
    }
}

}  // namespace mixtape::kernels::cpu
