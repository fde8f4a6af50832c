#pragma once
// PaddedImage: an image as microkernels read it in pixel_offset: channels last, in k_groups, with
// zeros around it. Packing copies channels that lie side by side; of planes, it transposes squares
// of channels and pixels in registers.

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/gemm/microkernel.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/transpose_tiles.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Strides of the channels, pixels and images of x [n, c, h, w], in elements. It is row-major or has
// its channels last: one of the first two is 1.
struct ImageStrides {
  int64_t channel, pixel, image;

  explicit ImageStrides(In x) {
    const int64_t channels = x.shape()[1], plane = x.shape()[2] * x.shape()[3];
    const bool last = channels > 1 && x.layout.is_channels_last();
    channel = last ? 1 : plane;
    pixel = last ? channels : 1;
    image = channels * plane;
  }
  bool channels_last() const { return channel == 1; }
};

// A pair of bf16 from widened ones: the first in the lower half, and that joined with the second.
MIXTAPE_ALWAYS_INLINE Vec<float> lowered(Vec<float> x) {
  return reinterpret_cast<Vec<float>::Vector>(reinterpret_cast<detail::Words>(x.v) >> 16);
}
MIXTAPE_ALWAYS_INLINE Vec<float> joined(Vec<float> first, Vec<float> second) {
  return reinterpret_cast<Vec<float>::Vector>(reinterpret_cast<detail::Words>(first.v) |
                                              reinterpret_cast<detail::Words>(second.v));
}

// Channels that become k_groups: group g of a pixel is element `even + g * stride` or, for pairs of
// bf16, that and element `odd + g * stride`; from group `odds` on, the second one is zero. Pixels
// are `pixel` apart.
template <class S>
struct ChannelSource {
  const S *even, *odd;
  int64_t stride, pixel, odds;
  bool pairs;

  // k_group g of pixels at, at + 1, ... or, with channels last, k_groups g, g + 1, ... at `at`.
  template <class T>
  MIXTAPE_ALWAYS_INLINE Vec<T> get(int64_t g, int64_t at, int64_t n) const {
    // (There are more planes than the hardware prefetcher can follow.)
    __builtin_prefetch(even + g * stride + at + 4 * vec_width<T>);
    const Vec<T> x = read<T>(even + g * stride + at, n);
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (!pairs) return x;
      if (pixel > 1 && stride == 2) {  // both halves lie side by side
        const int64_t halves = std::min(2 * n, 2 * (odds - g) + 1);
        const S* const from = even + 2 * g + at;
        if (halves == 2 * Vec<T>::width) return load_vector<typename Vec<T>::Vector>(from);
        detail::Words words{};
        std::memcpy(&words, from, static_cast<size_t>(halves) * sizeof(S));
        return reinterpret_cast<typename Vec<T>::Vector>(words);
      }
      const Vec<T> first = lowered(x);
      return g < odds ? joined(first, read<T>(odd + g * stride + at, n)) : first;
    }
    return x;
  }
};

// An image of x[0] rows and x[1] columns, padded to `size` rows and columns of pixels. A pixel has
// `k_groups` k_groups and is `pitch` of them apart from the next one. `low`: rows and columns of
// zeros before the image.
struct PaddedImage {
  int64_t x[2], low[2], size[2], k_groups, pitch;
  bool in_place;                      // read from memory, not packed; there are no zeros
  std::vector<int64_t> pixel_offset;  // of each pixel of the image

  PaddedImage(const int64_t (&x_)[2], const int64_t (&low_)[2], const int64_t (&size_)[2],
              int64_t k_groups_, int64_t pitch_, bool in_place_)
      : x{x_[0], x_[1]},
        low{low_[0], low_[1]},
        size{size_[0], size_[1]},
        k_groups(k_groups_),
        pitch(pitch_),
        in_place(in_place_) {
    if (in_place) return;
    pixel_offset.reserve(static_cast<size_t>(x[0] * x[1]));
    for (int64_t r = low[0]; r < low[0] + x[0]; ++r)
      for (int64_t q = low[1]; q < low[1] + x[1]; ++q)
        pixel_offset.push_back(r * row() + q * pitch);
  }
  int64_t row() const { return size[1] * pitch; }
  int64_t area() const { return size[0] * row(); }

  // Packs the first `count` k_groups of rows [begin, end) to `out`, which holds only those rows.
  template <class S, class T>
  void pack_nhwc(const ChannelSource<S>& from, int64_t count, int64_t begin, int64_t end,
                 T* out) const {
    const int64_t first = std::clamp<int64_t>(begin - low[0], 0, x[0]) * x[1];
    const int64_t last = std::clamp<int64_t>(end - low[0], 0, x[0]) * x[1];
    const int64_t* const at = pixel_offset.data();
    out -= begin * row();
    // Zeros between the rows of the image, or everywhere if its pixels have gaps.
    T* gap = out + begin * row();
    for (int64_t r = first; r < last && count == pitch; r += x[1]) {
      std::fill(gap, out + at[r], T(0));
      gap = out + at[r] + x[1] * pitch;
    }
    std::fill(gap, out + end * row(), T(0));
    if (from.pixel > 1) {
      // A row of pixels that adjoin, here and there, is one run; not if a pair has a gap.
      const bool whole = from.stride == 1 || from.odds == count;
      const int64_t pixels =
          whole && pitch == count && from.pixel == count * from.stride ? x[1] : 1;
      ChannelSource<S> run = from;
      if (pixels > 1) run.odds *= pixels;
      for (int64_t p = first; p < last; p += pixels)
        for_each_vec<T>(count * pixels, [&](int64_t g, int64_t n) {
          write(out + at[p] + g, run.template get<T>(g, p * from.pixel, n), n);
        });
      return;
    }
    if (pitch == 1) {
      for (int64_t r = first; r < last; r += x[1])
        for_each_vec<T>(x[1], [&](int64_t q, int64_t n) {
          write(out + at[r] + q, from.template get<T>(0, r + q, n), n);
        });
      return;
    }
    for (int64_t g = 0; g < count; g += vec_width<T>)  // few planes at a time
      transpose_tiles<T>(
          std::min<int64_t>(vec_width<T>, count - g), last - first,
          [&](int64_t i, int64_t q, int64_t n)
              MIXTAPE_INLINE_LAMBDA { return from.template get<T>(g + i, first + q, n); },
          [to = out + g, at = at + first](int64_t q, int64_t i, Vec<T> v, int64_t n)
              MIXTAPE_INLINE_LAMBDA { write(to + at[q] + i, v, n); });
  }
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
