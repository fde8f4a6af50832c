#pragma once
// Effects: counts of what this thread did with tensors besides computing new ones. vmap() reads
// them to learn whether it may run a function's ops in another way.

#include <cstdint>

namespace mixtape::internal {

struct Effects {        // counts, which only grow
  uint64_t reads = 0;   // the host looked at or checked elements, or asked for their address
  uint64_t writes = 0;  // a tensor was changed in place
};
inline thread_local constinit Effects effects;

}  // namespace mixtape::internal
