// Matrix products with AVX-512: thirty-two registers hold a tile of 14 x 2 vectors.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {

constinit const Engines avx512_engines = make_engines<Plain<float, 16, 14>, Plain<double, 8, 14>>();

}  // namespace mixtape::kernels::cpu
