#pragma once
// BlockBuffers: a block of a parameter and its states in f32, for a step between two conversions
// (kernels/common/update.h: LowMemory). The step itself is the one of f32 memory.

#include "kernels/common/update.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

struct Writes {  // what a pass over a parameter stores
  bool param = true, states = true;
};

struct BlockBuffers {
  alignas(64) float param[code_block];
  alignas(64) float state[Update::max_states][code_block];

  // Elements [begin, begin + n): returns the parameter's, and sets states[k] to the states', which
  // are in these buffers or, if they are f32, where they were.
  float* load(const Update& u, int64_t begin, int64_t n, float** states);
  void store(const Update& u, int64_t begin, int64_t n, double steps, Writes writes) const;
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
