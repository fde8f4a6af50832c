// Microkernel of bf16 with bfdot: each lane takes two steps of k at once. The instruction rounds
// the products, their sum and the sum in the lane "to odd", whatever the rounding mode, and reads
// subnormals as zero.

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {
namespace {

struct Bf16Dot : Bf16Pairs<4, 12> {
  MIXTAPE_ALWAYS_INLINE static Vector multiply_add(Vector sum, Group a, Groups b) {
    return Vector(vbfdotq_lane_f32(sum, vreinterpretq_bf16_u32(b),
                                   vreinterpret_bf16_u32(uint32x2_t{a, 0}), 0));
  }
};

}  // namespace

constinit const Microkernel<float> neon_bf16_microkernel = make_microkernel<Bf16Dot, BFloat16>();

}  // namespace mixtape::kernels::cpu
