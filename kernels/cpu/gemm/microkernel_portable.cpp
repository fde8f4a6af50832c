// The engine in vectors of 16 bytes, which every processor has or can do without: for convolutions
// where there is no better one. (Products are Eigen's there.)

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Engines portable_engines = make_engines<Plain<float, 4, 6>, Plain<double, 2, 6>>();

}  // namespace mixtape::kernels::cpu
