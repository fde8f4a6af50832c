#pragma once
// The ladder: the same product by one kernel after another, each faster than the one before by one
// idea. docs/tensor-cores.md tells its story.

#include <span>

#include "core/half.h"

namespace mixtape::lab {

// c = a b, all row-major: a [m, k] and b [k, n] of bf16, c [m, n] of f32, aligned to 256 bytes.
// Sizes are multiples of the rung's tile.
using Run = void (*)(const BFloat16* a, const BFloat16* b, float* c, int m, int n, int k,
                     void* stream);

struct Rung {
  const char* idea;
  const char* kernel;  // its name, under which its instructions are counted
  struct {
    int m, n, k;
  } tile;
  Run run;
  bool hopper = false;  // needs compute capability 9.0
};
std::span<const Rung> rungs();  // rung 0 first

}  // namespace mixtape::lab
