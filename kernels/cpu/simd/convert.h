#pragma once
// Plain vectors of any length: loads and stores, whole or in part, and conversions between f32 and
// the 16-bit types. Vec and the microkernels are made of these.

#include <cstdint>
#include <cstring>

#include "core/half.h"
#include "kernels/common/always_inline.h"

#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// A vector of `n` numbers of type E.
template <class E, int n>
struct SimdVector {
  using type __attribute__((vector_size(sizeof(E) * n))) = E;
};
template <int n>
using FloatVector = typename SimdVector<float, n>::type;
template <int n>
using WordVector = typename SimdVector<uint32_t, n>::type;
template <int n>
using HalfVector = typename SimdVector<uint16_t, n>::type;

template <class V>
MIXTAPE_ALWAYS_INLINE V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
MIXTAPE_ALWAYS_INLINE void store_vector(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}
// Loads the first `bytes` of a vector, the others as zero.
template <class V>
MIXTAPE_ALWAYS_INLINE V load_bytes(const void* p, int64_t bytes) {
#ifdef __AVX512BW__
  if constexpr (sizeof(V) == 64)
    return reinterpret_cast<V>(_mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, p));
  if constexpr (sizeof(V) == 32)
    return reinterpret_cast<V>(_mm256_maskz_loadu_epi8((uint32_t{1} << bytes) - 1, p));
  if constexpr (sizeof(V) == 16)
    return reinterpret_cast<V>(_mm_maskz_loadu_epi8(static_cast<__mmask16>((1u << bytes) - 1), p));
#endif
  V v = {};
  std::memcpy(&v, p, static_cast<size_t>(bytes));
  return v;
}
// Stores the first `bytes` of a vector.
template <class V>
MIXTAPE_ALWAYS_INLINE void store_bytes(void* p, V v, int64_t bytes) {
#ifdef __AVX512BW__
  if constexpr (sizeof(V) == 64)
    return _mm512_mask_storeu_epi8(p, (uint64_t{1} << bytes) - 1, reinterpret_cast<__m512i>(v));
#endif
  std::memcpy(p, &v, static_cast<size_t>(bytes));
}

namespace detail {
// Without an instruction. (Out of line: much code, of which each loop would have copies.)
template <int n>
[[gnu::noinline]] FloatVector<n> float_one_by_one(HalfVector<n> x) {
  FloatVector<n> y;
  for (int i = 0; i < n; ++i) y[i] = float(Half::from_bits(x[i]));
  return y;
}
template <int n>
[[gnu::noinline]] HalfVector<n> half_one_by_one(FloatVector<n> x) {
  HalfVector<n> y;
  for (int i = 0; i < n; ++i) y[i] = Half(float(x[i])).bits;
  return y;
}
}  // namespace detail

// (The masks of all lanes: g++ 12 warns about uninitialised memory inside the unmasked intrinsics.)
template <int n>
MIXTAPE_ALWAYS_INLINE FloatVector<n> float_from_half(HalfVector<n> x) {
#ifdef __AVX512F__
  if constexpr (n == 16) return _mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(x));
#endif
#if defined(__AVX2__) && defined(__F16C__)
  if constexpr (n == 8) return _mm256_cvtph_ps(reinterpret_cast<__m128i>(x));
#endif
#ifdef __aarch64__
  if constexpr (n == 4) return FloatVector<n>(vcvt_f32_f16(reinterpret_cast<float16x4_t>(x)));
#endif
  return detail::float_one_by_one<n>(x);
}
template <int n>
MIXTAPE_ALWAYS_INLINE FloatVector<n> float_from_bf16(HalfVector<n> x) {
#ifdef __AVX512F__
  if constexpr (n == 16)
    return reinterpret_cast<FloatVector<n>>(
        reinterpret_cast<WordVector<n>>(
            _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(x)))
        << 16);
#endif
#ifdef __AVX2__
  if constexpr (n == 8)
    return reinterpret_cast<FloatVector<n>>(
        reinterpret_cast<WordVector<n>>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(x))) << 16);
#endif
  return reinterpret_cast<FloatVector<n>>(__builtin_convertvector(x, WordVector<n>) << 16);
}

// Rounds to nearest even; NaN stays NaN and subnormals are kept.
template <int n>
MIXTAPE_ALWAYS_INLINE HalfVector<n> half_from_float(FloatVector<n> x) {
#ifdef __AVX512F__
  if constexpr (n == 16)
    return reinterpret_cast<HalfVector<n>>(
        _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
#if defined(__AVX2__) && defined(__F16C__)
  if constexpr (n == 8)
    return reinterpret_cast<HalfVector<n>>(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
#ifdef __aarch64__
  if constexpr (n == 4) return reinterpret_cast<HalfVector<n>>(vcvt_f16_f32(x));
#endif
  return detail::half_one_by_one<n>(x);
}
template <int n>
MIXTAPE_ALWAYS_INLINE HalfVector<n> bf16_from_float(FloatVector<n> x) {
  const WordVector<n> f = reinterpret_cast<WordVector<n>>(x);
  const WordVector<n> even = f + 0x7fffu + ((f >> 16) & 1u), quiet = f | 0x400000u;
  const WordVector<n> r = (x == x ? even : quiet) >> 16;
#if defined(__AVX512F__)
  if constexpr (n == 16)
    return reinterpret_cast<HalfVector<n>>(
        _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(r)));
#elif defined(__AVX2__)
  if constexpr (n == 8) {
    const __m256i both = reinterpret_cast<__m256i>(r);
    return reinterpret_cast<HalfVector<n>>(
        _mm_packus_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1)));
  }
#endif
  return __builtin_convertvector(r, HalfVector<n>);
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
