// The microkernel in vectors of 16 bytes, which every compiler can emulate: for convolutions
// without a better one. (Products use Eigen then.)

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Microkernels portable_microkernels =
    make_microkernels<LaneFma<float, 4, 6>, LaneFma<double, 2, 6>>();

}  // namespace mixtape::kernels::cpu
