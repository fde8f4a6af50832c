#pragma once
// Rounding to the 8-bit and 4-bit formats that products read, and their scales. A rounded number
// stays an f32 or bf16: its code times its scale, which bf16 holds exactly, since scales are powers
// of two (those of NVFP4 have four digits). So products of such numbers are those of the format.

#include <bit>
#include <cstdint>

#include "kernels/common/scalar.h"

namespace mixtape::kernels {

enum class Grid : int { E4M3, E5M2, E2M1 };

// The numbers of a format: the largest, the spacing of the smallest ones, and the spacing of all
// others relative to their power of two.
struct GridInfo {
  float largest, unit, spacing;
};
MIXTAPE_HD constexpr GridInfo info_of(Grid g) {
  return g == Grid::E4M3   ? GridInfo{448, 0x1p-9f, 0x1p-3f}
         : g == Grid::E5M2 ? GridInfo{57344, 0x1p-16f, 0x1p-2f}
                           : GridInfo{6, 0x1p-1f, 0x1p-1f};
}

// x rounded to a grid, ties to even; beyond the largest number, that number. Adding a number whose
// last digit is the spacing does the rounding.
MIXTAPE_HD inline float on_grid(float x, const GridInfo& g) {
  const float most = x > g.largest ? g.largest : x, r = most < -g.largest ? -g.largest : most;
  const float power = std::bit_cast<float>(std::bit_cast<uint32_t>(r) & 0x7f800000u) * g.spacing;
  const float shift = (power > g.unit ? power : g.unit) * 0x1.8p23f;
  return (r + shift) - shift;
}
// x rounded to the grid times a scale, which is a power of two except for NVFP4. An infinity and a
// scale that is not finite give NaN, so that an overflow stays visible; a scale of 0 gives 0.
MIXTAPE_HD inline float quantised(float x, float scale, const GridInfo& g) {
  return on_grid(x / (scale == 0 ? 1.0f : scale), g) * scale + (x - x);
}

// The smallest power of two that is not below x >= 0; 1 for 0, NaN for numbers that are not finite.
MIXTAPE_HD inline float power_of_two_above(float x) {
  const uint32_t up = (std::bit_cast<uint32_t>(x) + 0x7fffffu) & 0x7f800000u;
  return x == 0 ? 1.0f : std::bit_cast<float>(up) + (x - x);
}

// The scale that brings the largest of some |x| into a grid. With f8 it is NVFP4's: an e4m3 code,
// whose own scale follows from the largest |x| of the whole tensor.
struct ScaleOf {
  float largest, room;  // room: the headroom, 2^margin
  bool f8;

  MIXTAPE_HD float operator()(float most, float most_of_tensor) const {
    if (!f8) return power_of_two_above(most / largest) * room;
    const GridInfo codes = info_of(Grid::E4M3);
    const float of_tensor = power_of_two_above(most_of_tensor / (largest * codes.largest));
    return on_grid(most / largest / of_tensor, codes) * of_tensor;
  }
};

inline ScaleOf scale_of(Grid grid, int margin, bool f8) {
  return {info_of(grid).largest, std::bit_cast<float>(uint32_t(127 + margin) << 23), f8};
}

}  // namespace mixtape::kernels
