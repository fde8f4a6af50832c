#pragma once
// Draw: which random numbers a kernel takes.

#include <cstdint>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape {

// Blocks of a stream from `offset` on. If `place` is not null, it holds a position {seed, offset}
// when the kernel runs, and the blocks begin `offset` after that.
struct Draw {
  uint64_t seed = 0, offset = 0;
  const uint64_t* place = nullptr;

  MIXTAPE_HD Draw now() const { return place ? Draw{place[0], place[1] + offset} : *this; }
  MIXTAPE_HD Draw after(uint64_t blocks) const { return {seed, offset + blocks, place}; }
};

}  // namespace mixtape
