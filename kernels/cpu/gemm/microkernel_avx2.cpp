// Matrix products with AVX2 and FMA: sixteen registers hold a tile of 6 x 2 vectors.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Engines avx2_engines = make_engines<Plain<float, 8, 6>, Plain<double, 4, 6>>();

}  // namespace mixtape::kernels::cpu
