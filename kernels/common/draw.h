#pragma once
// Random integers from random bits, the same on all devices.

#include <cstdint>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::kernels {

// An integer in [low, high): the upper half of the product of random bits and the range. With one
// word of bits some integers are up to range / 2^32 more likely than others: ranges from 2^16 on
// use a second word.
struct RandomInteger {
  uint64_t low, range;

  MIXTAPE_HD RandomInteger(int64_t from, int64_t to)
      : low(static_cast<uint64_t>(from)), range(static_cast<uint64_t>(to) - low) {}
  MIXTAPE_HD bool is_wide() const { return range >> 16 != 0; }
  // The Philox blocks for n first words; second words follow them.
  static uint64_t blocks(int64_t n) { return (static_cast<uint64_t>(n) + 3) / 4; }

  MIXTAPE_HD int64_t operator()(uint32_t word, uint32_t second) const {
    const uint64_t half = 0xffffffffu, r1 = range >> 32, r0 = range & half;
    const uint64_t middle = word * r0 + (second * r0 >> 32), other = second * r1 + (middle & half);
    return static_cast<int64_t>(low + word * r1 + (middle >> 32) + (other >> 32));
  }
};

}  // namespace mixtape::kernels
