// Rung 7: the same kernel with two other numbers. Warps compute 64 x 64 elements, so that a
// fragment serves four products instead of two; and lines in shared memory are 16 bytes longer, so
// that the eight lines that a warp reads at once lie in different banks.
#pragma once

#include "bench/lab/gemm/06_ring.cuh"

namespace mixtape::lab {

inline constexpr Run run_padding = run_wmma_ring<128, 8>;

}  // namespace mixtape::lab
