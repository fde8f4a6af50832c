// Microkernels for AVX-512: thirty-two registers hold a tile of 14 x 2 vectors.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Microkernels avx512_microkernels =
    make_microkernels<LaneFma<float, 16, 14>, LaneFma<double, 8, 14>>();

}  // namespace mixtape::kernels::cpu
