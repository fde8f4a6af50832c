#pragma once
// Sampling: the input elements, with their weights, that make up each output element of pooling and
// interpolation, along rows or columns. Plain data, so it can be passed to a kernel.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/half.h"  // MIXTAPE_HD
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {

struct Sampling {
  enum class Kind : int {
    Windows,   // of `size` elements, `stride` apart; padding is left out
    Adaptive,  // window i runs from floor(i from / to) to ceil((i + 1) from / to)
    Nearest,   // element floor(i from / to), in f32 as in PyTorch, where it may fall one short
    Linear,    // between the two neighbours of (i + 1/2) from / to - 1/2
    Cubic,     // a cubic convolution of the four around it; those outside repeat the edge
  };
  Kind kind = Kind::Windows;
  int64_t from = 1, to = 1;  // lengths of the lines
  int64_t size = 1, stride = 1, padding = 0;
  bool count_padding = false;  // in the divisor of a mean
  int64_t fixed_divisor = 0;   // the divisor instead, if not 0
  bool align_corners = false;  // Linear and Cubic: around i (from - 1) / (to - 1) instead
  double step = 0;             // in place of from / to, unless corners are aligned

  // Output i is made of inputs [begin(i), end(i)); both ascend with i.
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t begin(int64_t i) const {
    switch (kind) {
      case Kind::Windows:
        return std::max<int64_t>(0, start(i));
      case Kind::Adaptive:
        return i * from / to;
      case Kind::Cubic:
        return within(left(i) - 1);
      default:
        return within(left(i));
    }
  }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t end(int64_t i) const {
    switch (kind) {
      case Kind::Windows:
        return std::min(from, start(i) + size);
      case Kind::Adaptive:
        return ((i + 1) * from + to - 1) / to;
      case Kind::Cubic:
        return within(left(i) + 2) + 1;
      default:
        return begin(i) + (begin(i) + 1 < from && fraction(i) > 0 ? 2 : 1);
    }
  }
  // True if windows do not overlap.
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD bool apart() const {
    return kind == Kind::Adaptive ? from % to == 0 : stride >= size;
  }
  // True if windows have n elements each and adjoin; a remainder belongs to no window.
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD bool abut(int64_t n) const {
    if (kind == Kind::Adaptive) return from == n * to;
    return kind == Kind::Windows && size == n && stride == n && padding == 0 && to == from / n;
  }
  // The weight of input j in output i.
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD double weight(int64_t i, int64_t j) const {
    switch (kind) {
      case Kind::Windows:
      case Kind::Adaptive:
        return 1 / static_cast<double>(divisor(i));
      case Kind::Cubic: {
        double sum = 0;
        for (int k = -1; k <= 2; ++k)
          if (within(left(i) + k) == j) sum += cubic(std::abs(fraction(i) - k));
        return sum;
      }
      default:
        if (end(i) - begin(i) == 1) return 1;
        return j == begin(i) ? 1 - fraction(i) : fraction(i);
    }
  }

 private:
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t start(int64_t i) const { return i * stride - padding; }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t divisor(int64_t i) const {
    if (fixed_divisor != 0) return fixed_divisor;
    if (!count_padding) return end(i) - begin(i);
    return std::min(from + padding, start(i) + size) - start(i);
  }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t within(int64_t j) const {
    return std::max<int64_t>(0, std::min(from - 1, j));
  }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD double position(int64_t i) const {
    const double n = double(from), m = double(to), at = double(i);
    if (kind == Kind::Nearest)
      return std::floor(float(i) * (step > 0 ? float(step) : float(from) / float(to)));
    if (align_corners) return to > 1 ? at * (n - 1) / (m - 1) : 0;
    const double place = (step > 0 ? (at + 0.5) * step : (at + 0.5) * n / m) - 0.5;
    return kind == Kind::Linear ? std::max(0.0, place) : place;
  }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD int64_t left(int64_t i) const {
    return static_cast<int64_t>(std::floor(position(i)));
  }
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD double fraction(int64_t i) const {
    return position(i) - std::floor(position(i));
  }
  // The weight at a distance below 2: Keys' cubic convolution kernel with slope -3/4 at 1.
  MIXTAPE_ALWAYS_INLINE MIXTAPE_HD static double cubic(double d) {
    return d <= 1 ? (1.25 * d - 2.25) * d * d + 1 : ((-0.75 * d + 3.75) * d - 6) * d + 3;
  }
};

}  // namespace mixtape::kernels
