// Products of bf16 with its dot product: a lane takes two steps of k at once. vdpbf16ps rounds
// after each of the two products to nearest, whatever the rounding mode, and takes subnormals for
// zero.

#include "kernels/cpu/engine_kernel.h"

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
    using Halves = typename Pack<uint16_t, 16>::type;
    const auto get = [&](const BFloat16* q) __attribute__((always_inline)) {
      return __builtin_convertvector(
          count >= lanes ? load<Halves>(q) : load_first<Halves>(q, 2 * count), Units);
    };
    return left > 1 ? get(p) | get(p + step) << 16 : get(p);
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
