#pragma once
// Transposes matrices of any size as squares of lanes in registers.

#include <algorithm>

#include "kernels/cpu/simd/simd.h"
#include "kernels/cpu/simd/transpose.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

template <class T>
inline constexpr int vec_width = Vec<T>::width;

// Calls put(c, r, values, count) with rows r, r + 1, ... of column c, from get(r, c, count), which
// returns columns c, c + 1, ... of row r.
template <class T, class Get, class Put>
MIXTAPE_ALWAYS_INLINE void transpose_tiles(int64_t rows, int64_t columns, Get get, Put put) {
  constexpr int64_t n = vec_width<T>;
  const auto square = [&](int64_t r, int64_t c, int64_t height, int64_t width)
                          MIXTAPE_INLINE_LAMBDA {
                            typename Vec<T>::Vector v[n];
#pragma GCC unroll 16
                            for (int64_t i = 0; i < n; ++i)
                              v[i] = (i < height ? get(r + i, c, width) : Vec<T>(T(0))).v;
                            transpose(v);
#pragma GCC unroll 16
                            for (int64_t i = 0; i < n; ++i)
                              if (i < width) put(c + i, r, Vec<T>(v[i]), height);
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

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
