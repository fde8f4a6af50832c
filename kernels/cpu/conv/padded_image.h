#pragma once
// Images as tiles of an engine read them in place: channels last, with zeros around them, in units
// of the engine. And back: a square of planes and pixels is transposed in registers.

#include <algorithm>
#include <vector>

#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"

namespace mixtape::kernels::cpu {

// Planes that become units: number u is plane `even + u * stride` or, where a unit is a pair of
// bf16, that and `odd + u * stride`; from `odds` on the second one is zero.
template <class S>
struct Planes {
  const S *even, *odd;
  int64_t stride, odds;
  bool pairs;

  template <class T>
  [[gnu::always_inline]] Vec<T> get(int64_t u, int64_t at, int64_t n) const {
    // (Planes are more streams than the processor foresees.)
    __builtin_prefetch(even + u * stride + at + 4 * vec_width<T>);
    const Vec<T> x = read<T>(even + u * stride + at, n);
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (!pairs) return x;
      using Words = detail::Words;
      Words both = reinterpret_cast<Words>(x.v) >> 16;
      if (u < odds) both |= reinterpret_cast<Words>(read<T>(odd + u * stride + at, n).v);
      return reinterpret_cast<typename Vec<T>::Vector>(both);
    }
    return x;
  }
};

// An image of x[0] rows and x[1] columns within `size` rows and columns of pixels, each of `units`
// units, the next one after `pitch`. `low` rows and columns of zeros stand before it.
struct PaddedImage {
  int64_t x[2], low[2], size[2], units, pitch;
  std::vector<int64_t> place;  // of each pixel of the image

  PaddedImage(const int64_t (&x_)[2], const int64_t (&low_)[2], const int64_t (&size_)[2],
              int64_t units_, int64_t pitch_)
      : x{x_[0], x_[1]},
        low{low_[0], low_[1]},
        size{size_[0], size_[1]},
        units(units_),
        pitch(pitch_) {
    place.reserve(static_cast<size_t>(x[0] * x[1]));
    for (int64_t r = low[0]; r < low[0] + x[0]; ++r)
      for (int64_t q = low[1]; q < low[1] + x[1]; ++q) place.push_back(r * row() + q * pitch);
  }
  int64_t row() const { return size[1] * pitch; }
  int64_t area() const { return size[0] * row(); }

  // Rows [begin, end), which are all that `room` has, from the first `count` units.
  template <class S, class T>
  void draw(const Planes<S>& from, int64_t count, int64_t begin, int64_t end, T* room) const {
    const int64_t first = std::clamp<int64_t>(begin - low[0], 0, x[0]) * x[1];
    const int64_t last = std::clamp<int64_t>(end - low[0], 0, x[0]) * x[1];
    const int64_t area = (end - begin) * row();
    const int64_t* const at = place.data();
    if ((last - first) * count < area) std::fill_n(room, area, T(0));
    room -= begin * row();
    if (pitch == 1) {
      for (int64_t r = first; r < last; r += x[1])
        for_each_vec<T>(x[1], [&](int64_t q, int64_t n) {
          write(room + at[r] + q, from.template get<T>(0, r + q, n), n);
        });
      return;
    }
    for (int64_t u = 0; u < count; u += vec_width<T>)  // few planes at a time
      turn<T>(
          std::min<int64_t>(vec_width<T>, count - u), last - first,
          [&](int64_t i, int64_t q, int64_t n)
              __attribute__((always_inline)) { return from.template get<T>(u + i, first + q, n); },
          [to = room + u, at = at + first](int64_t q, int64_t i, Vec<T> v, int64_t n)
              __attribute__((always_inline)) { write(to + at[q] + i, v, n); });
  }
};

}  // namespace mixtape::kernels::cpu
