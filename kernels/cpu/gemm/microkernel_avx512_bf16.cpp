// Products of bf16 with its dot product: a lane takes two steps of k at once. vdpbf16ps rounds
// after each of the two products to nearest, whatever the rounding mode, and takes subnormals for
// zero.

#include <array>

#include "kernels/cpu/gemm/microkernel_impl.h"

namespace mixtape::kernels::cpu {
namespace {

struct Pairs {
  using T = float;
  using Unit = uint32_t;
  static constexpr int lanes = 16, rows = 14, vectors = 2, unit = 2;
  using Vector = typename Pack<float, 16>::type;
  using Units = typename Pack<uint32_t, 16>::type;

  [[gnu::always_inline]] static Vector multiply_add(Vector sum, Unit a, Units b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)b);
  }
  // Two steps, if `left` has as many.
  [[gnu::always_inline]] static Units across(const BFloat16* p, int64_t step, int64_t count,
                                             int64_t left) {
    const auto get = [&](const BFloat16* q) __attribute__((always_inline)) {
      return count >= lanes ? load<__m256i>(q) : load_first<__m256i>(q, 2 * count);
    };
    constexpr auto turns = [] {  // 0, 16, 1, 17, ...
      std::array<uint16_t, 32> order{};
      for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
      return order;
    }();
    const __m256i odd = left > 1 ? get(p + step) : __m256i{};
    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(get(p)), odd, 1);
    return reinterpret_cast<Units>(
        _mm512_maskz_permutexvar_epi16(~0u, load<__m512i>(turns.data()), both));
  }
  [[gnu::always_inline]] static Units along(const BFloat16* p, int64_t count) {
    return count >= 2 * lanes ? load<Units>(p) : load_first<Units>(p, 2 * count);
  }
  [[gnu::always_inline]] static Unit one(const BFloat16* p, int64_t step, int64_t left) {
    return p->bits | (left > 1 ? uint32_t(p[step].bits) << 16 : 0);
  }
};

}  // namespace

constinit const Engine<float> avx512_bf16_engine = make_engine<Pairs, BFloat16>();

}  // namespace mixtape::kernels::cpu
