#pragma once
// Short names for the samplings that tests of pools and interpolation use.

#include <string>

#include "core/layout.h"
#include "kernels/sampling.h"

namespace mixtape::kernels {

inline Sampling windows(int64_t from, int64_t size, int64_t stride, int64_t padding = 0,
                        bool count_padding = false, int64_t hanging_over = 0) {
  return {.from = from,
          .to = (from + 2 * padding - size) / stride + 1 + hanging_over,
          .size = size,
          .stride = stride,
          .padding = padding,
          .count_padding = count_padding};
}
inline Sampling of_kind(Sampling::Kind kind, int64_t from, int64_t to) {
  return {.kind = kind, .from = from, .to = to};
}
inline Sampling corners(Sampling::Kind kind, int64_t from, int64_t to) {
  return {.kind = kind, .from = from, .to = to, .align_corners = true};
}
// Whether no element is in two windows.
inline bool apart(const Sampling& s) {
  return s.kind == Sampling::Kind::Windows && s.stride >= s.size;
}
inline std::string text(const Sampling& s) {
  return std::to_string(static_cast<int>(s.kind)) + ": " +
         Shape{s.from, s.to, s.size, s.stride, s.padding, s.count_padding, s.align_corners}
             .to_string();
}

}  // namespace mixtape::kernels
