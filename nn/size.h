#pragma once
// Size2: how windows over images are given.

#include <array>
#include <cstdint>

namespace mixtape::nn {

// Rows and columns: {3, 5}, or 3 for both.
struct Size2 {
  int64_t h, w;
  Size2(int64_t both) : h(both), w(both) {}
  Size2(int64_t h, int64_t w) : h(h), w(w) {}
  operator std::array<int64_t, 2>() const { return {h, w}; }
};

}  // namespace mixtape::nn
