#pragma once
// A place in a ring of buffers in shared memory, as producers and consumers count through it.

#include <cstdint>

#include "core/half.h"

namespace mixtape::kernels::cuda {

// The buffer in turn, and the parity of the turns that it has had. Each buffer has two barriers:
// a consumer waits for `full` of this parity, a producer for `empty` of the other one, which a new
// barrier has passed already. Nobody starts again at 0 with another tile.
template <int stages>
struct Ring {
  int slot = 0;
  uint32_t phase = 0;
  MIXTAPE_HD void next() {
    if (++slot == stages) {
      slot = 0;
      phase ^= 1;
    }
  }
};

}  // namespace mixtape::kernels::cuda
