// Microkernel of bf16 with vdpbf16ps: each lane takes two steps of k at once. The instruction
// rounds after each of the two products, to nearest whatever the rounding mode, and reads
// subnormals as zero.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {
namespace {

struct Bf16Dot : Bf16Pairs<16, 14> {
  MIXTAPE_ALWAYS_INLINE static Vector multiply_add(Vector sum, Group a, Groups b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
  }
};

}  // namespace

constinit const Microkernel<float> avx512_bf16_microkernel = make_microkernel<Bf16Dot, BFloat16>();

}  // namespace mixtape::kernels::cpu
