// Rounding to formats of 8 and 4 bits, and their scales.

#include "kernels/common/quantise.h"

#include "kernels/cpu/loops/elements.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {

// Sixteen at a time, widened and rounded as vectors: the loop between is plain, so that the
// compiler makes one of it.
template <class S, class O>
void quantise_loop(void* const* p, int64_t n, const void* context) {
  const S* const x = static_cast<const S*>(p[0]);
  const float* const scale = static_cast<const float*>(p[1]);
  O* const y = static_cast<O*>(p[2]);
  const GridInfo grid = *static_cast<const GridInfo*>(context);
  constexpr int width = Vec<float>::width;
  for (int64_t i = 0; i < n; i += 16) {
    alignas(64) float v[16];
    for (int j = 0; j < 16; j += width) store(v + j, load<S, float>(x + i + j));
    for (int j = 0; j < 16; ++j) v[j] = quantised(v[j], scale[i + j], grid);
    for (int j = 0; j < 16; j += width) store(y + i + j, load<float, float>(v + j));
  }
}

void scale_loop(void* const* p, int64_t n, const void* context) {
  const float* const most = static_cast<const float*>(p[0]);
  const float* const whole = static_cast<const float*>(p[1]);
  float* const scale = static_cast<float*>(p[2]);
  const ScaleOf of = *static_cast<const ScaleOf*>(context);
  for (int64_t i = 0; i < n; ++i) scale[i] = of(most[i], whole ? whole[i] : 0);
}

}  // namespace

void quantise_scale(Launch& launch, Grid grid, int margin, In most, In whole, Out scale) {
  const ScaleOf of = scale_of(grid, margin, whole.data != nullptr);
  for_each_contiguous(launch, {&most, &whole, &scale}, &scale_loop, &of);
}

void quantise(Launch& launch, Grid grid, In x, In scale, Out y) {
  const GridInfo info = info_of(grid);
  const ContiguousLoop loop = visit_float(x.dtype, [&]<class S>() -> ContiguousLoop {
    return y.dtype == bf16 ? &quantise_loop<S, BFloat16> : &quantise_loop<S, float>;
  });
  for_each_contiguous(launch, {&x, &scale, &y}, loop, &info);
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
