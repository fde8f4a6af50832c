// Microkernels for AArch64: thirty-two registers hold a tile of 12 x 2 vectors.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Microkernels neon_microkernels =
    make_microkernels<LaneFma<float, 4, 12>, LaneFma<double, 2, 12>>();

}  // namespace mixtape::kernels::cpu
