#pragma once
// Short names for the samplings in tests of pools and interpolation.

#include <string>
#include <utility>

#include "core/layout.h"
#include "kernels/common/sampling.h"

namespace mixtape::kernels {

using Kind = Sampling::Kind;

inline Sampling windows(int64_t from, int64_t size, int64_t stride, int64_t padding = 0,
                        bool count_padding = false, int64_t hanging_over = 0) {
  return {.from = from,
          .to = (from + 2 * padding - size) / stride + 1 + hanging_over,
          .size = size,
          .stride = stride,
          .padding = padding,
          .count_padding = count_padding};
}
inline Sampling of_kind(Kind kind, int64_t from, int64_t to) {
  return {.kind = kind, .from = from, .to = to};
}
inline Sampling corners(Kind kind, int64_t from, int64_t to) {
  return {.kind = kind, .from = from, .to = to, .align_corners = true};
}
inline Sampling stepping(Kind kind, int64_t from, int64_t to, double step) {
  return {.kind = kind, .from = from, .to = to, .step = step};
}
inline std::string text(const Sampling& s) {
  return std::to_string(static_cast<int>(s.kind)) + ": " +
         Shape{s.from,          s.to,           s.size, s.stride, s.padding, s.count_padding,
               s.align_corners, s.fixed_divisor}
             .to_string() +
         " by " + std::to_string(s.step);
}

// The samplings of rows and columns.
inline const std::pair<Sampling, Sampling> resamplings[] = {
    {windows(26, 2, 2), windows(26, 2, 2)},
    {windows(1, 1, 1), windows(1, 1, 1)},
    {windows(7, 3, 2, 1), windows(9, 3, 2, 1, true)},
    {windows(6, 3, 2, 1, true, 1), windows(8, 4, 3, 2, true, 1)},
    {windows(9, 2, 4), windows(40, 5, 1, 2)},
    {windows(20, 7, 1, 3), windows(33, 8, 1, 4)},
    {windows(40, 40, 1), windows(37, 37, 1)},
    {of_kind(Kind::Adaptive, 7, 3), of_kind(Kind::Adaptive, 5, 8)},
    {of_kind(Kind::Adaptive, 7, 1), of_kind(Kind::Adaptive, 7, 1)},
    {windows(37, 37, 1), windows(70, 70, 70)},
    {windows(5, 7, 7, 1), windows(6, 8, 8, 1, true)},  // all elements; padding counts
    {of_kind(Kind::Adaptive, 50, 3), of_kind(Kind::Adaptive, 35, 2)},
    {of_kind(Kind::Nearest, 3, 8), of_kind(Kind::Nearest, 37, 16)},
    {of_kind(Kind::Nearest, 5, 10), of_kind(Kind::Nearest, 19, 57)},  // repeated
    {of_kind(Kind::Nearest, 3, 3), of_kind(Kind::Nearest, 1, 20)},
    {of_kind(Kind::Linear, 3, 8), of_kind(Kind::Linear, 37, 16)},
    {of_kind(Kind::Linear, 3, 25), of_kind(Kind::Linear, 4, 33)},
    {corners(Kind::Linear, 3, 8), corners(Kind::Linear, 37, 16)},
    {corners(Kind::Linear, 4, 1), of_kind(Kind::Linear, 1, 20)},
    {of_kind(Kind::Cubic, 3, 8), of_kind(Kind::Cubic, 37, 16)},
    {corners(Kind::Cubic, 6, 40), corners(Kind::Cubic, 5, 33)},
    {of_kind(Kind::Cubic, 2, 3), corners(Kind::Linear, 1, 20)},
    {stepping(Kind::Nearest, 5, 6, 1 / 1.3), stepping(Kind::Nearest, 37, 18, 2)},
    {stepping(Kind::Linear, 7, 3, 2), stepping(Kind::Linear, 37, 62, 1 / 1.7)},
    {stepping(Kind::Cubic, 5, 8, 1 / 1.7), stepping(Kind::Cubic, 41, 28, 1 / 0.7)},
};

}  // namespace mixtape::kernels
