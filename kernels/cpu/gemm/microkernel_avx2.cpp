// Microkernels for AVX2 and FMA: sixteen registers hold a tile of 6 x 2 vectors.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Microkernels avx2_microkernels =
    make_microkernels<LaneFma<float, 8, 6>, LaneFma<double, 4, 6>>();

}  // namespace mixtape::kernels::cpu
