// Microkernel of bf16 with vdpbf16ps: each lane takes two steps of k at once. The instruction
// rounds after each of the two products, to nearest whatever the rounding mode, and reads
// subnormals as zero.

#include <array>

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {
namespace {

struct Bf16Dot {
  using T = float;
  using Group = uint32_t;
  static constexpr int lanes = 16, rows = 14, vectors = 2, k_group = 2;
  using Vector = typename SimdVector<float, 16>::type;
  using Groups = typename SimdVector<uint32_t, 16>::type;

  MIXTAPE_ALWAYS_INLINE static Vector multiply_add(Vector sum, Group a, Groups b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
  }
  // Interleaves step k with step k + 1, or with zeros if only one is left.
  MIXTAPE_ALWAYS_INLINE static Groups load_across(const BFloat16* p, int64_t k_stride,
                                                  int64_t count, int64_t left) {
    const auto get = [&](const BFloat16* q) MIXTAPE_INLINE_LAMBDA {
      return count >= lanes ? load_vector<__m256i>(q) : load_bytes<__m256i>(q, 2 * count);
    };
    constexpr auto interleaved = [] {  // 0, 16, 1, 17, ...
      std::array<uint16_t, 32> order{};
      for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
      return order;
    }();
    const __m256i odd = left > 1 ? get(p + k_stride) : __m256i{};
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(get(p)), odd, 1);
    return reinterpret_cast<Groups>(
        _mm512_maskz_permutexvar_epi16(~0u, load_vector<__m512i>(interleaved.data()), both));
  }
  MIXTAPE_ALWAYS_INLINE static Groups load_along(const BFloat16* p, int64_t count) {
    return count >= 2 * lanes ? load_vector<Groups>(p) : load_bytes<Groups>(p, 2 * count);
  }
  MIXTAPE_ALWAYS_INLINE static Group load_one(const BFloat16* p, int64_t k_stride, int64_t left) {
    return p->bits | (left > 1 ? uint32_t(p[k_stride].bits) << 16 : 0);
  }
};

}  // namespace

constinit const Microkernel<float> avx512_bf16_microkernel = make_microkernel<Bf16Dot, BFloat16>();

}  // namespace mixtape::kernels::cpu
