#pragma once
// AVX-512's instructions, made of AVX2's and of loops, for tests of the CPU kernels on processors
// that lack them. Included before all else (by -include, with -march for AVX2): its macros replace
// the intrinsics that kernels use, and an intrinsic that is not here does not compile. A mask that
// a macro drops is always one of all lanes. Semantics: Intel's Software Developer's Manual.

#include <immintrin.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#pragma GCC diagnostic ignored "-Wignored-attributes"  // halves as template arguments

namespace avx512 {
namespace {

template <class T>
using Lanes [[gnu::vector_size(64)]] = T;
template <class Half>
struct Halves {
  Half low, high;
};
// The vector whose halves are f(halves of v...).
template <class V, class Half, class F, class... More>
[[gnu::always_inline]] inline V by_halves(F f, V v, More... more) {
  const auto of = [](auto x) { return std::bit_cast<Halves<Half>>(x); };
  return std::bit_cast<V>(
      Halves<Half>{f(of(v).low, of(more).low...), f(of(v).high, of(more).high...)});
}
template <class T, class V>
T lane(const V& v, unsigned i) {
  T x;
  std::memcpy(&x, reinterpret_cast<const char*>(&v) + i * sizeof x, sizeof x);
  return x;
}
// The vector of f(i) for each lane i.
template <class T, class V, class F>
V each_lane(F f) {
  V v;
  for (unsigned i = 0; i < sizeof v / sizeof(T); ++i) {
    const T x = f(i);
    std::memcpy(reinterpret_cast<char*>(&v) + i * sizeof x, &x, sizeof x);
  }
  return v;
}

// --- memory: elements whose bit is not set are not touched ---
template <class T, class V>
[[gnu::noinline]] V load_or(V other, uint64_t mask, const void* p) {
  for (unsigned i = 0; i < sizeof other / sizeof(T); ++i)
    if (mask >> i & 1)
      std::memcpy(reinterpret_cast<char*>(&other) + i * sizeof(T),
                  static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return other;
}
template <class T, class V>
V load(uint64_t mask, const void* p) {
  return load_or<T>(V{}, mask, p);
}
template <class T, class V>
[[gnu::noinline]] void store(void* p, uint64_t mask, V v) {
  for (unsigned i = 0; i < sizeof v / sizeof(T); ++i)
    if (mask >> i & 1)
      std::memcpy(static_cast<char*>(p) + i * sizeof(T),
                  reinterpret_cast<const char*>(&v) + i * sizeof(T), sizeof(T));
}

// --- arithmetic ---
[[gnu::always_inline]] inline __m512 fma(__m512 a, __m512 b, __m512 c) {
  return by_halves<__m512, __m256>([](auto... x) { return _mm256_fmadd_ps(x...); }, a, b, c);
}
[[gnu::always_inline]] inline __m512d fma(__m512d a, __m512d b, __m512d c) {
  return by_halves<__m512d, __m256d>([](auto... x) { return _mm256_fmadd_pd(x...); }, a, b, c);
}
template <class T, class V>
[[gnu::noinline]] V fma_where(V a, V b, V c, unsigned mask) {  // c in the other lanes
  const V y = fma(a, b, c);
  return each_lane<T, V>([&](unsigned i) { return lane<T>(mask >> i & 1 ? y : c, i); });
}
inline __m512 max(__m512 a, __m512 b) {
  return by_halves<__m512, __m256>([](auto... x) { return _mm256_max_ps(x...); }, a, b);
}
inline __m512 min(__m512 a, __m512 b) {
  return by_halves<__m512, __m256>([](auto... x) { return _mm256_min_ps(x...); }, a, b);
}
inline __m512 sqrt(__m512 a) {
  return by_halves<__m512, __m256>([](auto x) { return _mm256_sqrt_ps(x); }, a);
}
inline __m512d sqrt(__m512d a) {
  return by_halves<__m512d, __m256d>([](auto x) { return _mm256_sqrt_pd(x); }, a);
}
// a 2^floor(b), rounded once; 0 if b is -inf, even of NaN.
[[gnu::noinline]] inline __m512 scalef(__m512 a, __m512 b) {
  return each_lane<float, __m512>([&](unsigned i) {
    const double e = lane<float>(b, i);
    return e == -INFINITY ? 0 : float(lane<float>(a, i) * std::exp2(std::floor(e)));
  });
}
inline __m512i max_epu32(__m512i a, __m512i b) {
  return by_halves<__m512i, __m256i>([](auto... x) { return _mm256_max_epu32(x...); }, a, b);
}
inline __m512i sllv_epi32(__m512i a, __m512i n) {  // 0 from n = 32 on
  return by_halves<__m512i, __m256i>([](auto... x) { return _mm256_sllv_epi32(x...); }, a, n);
}
inline __m512i mul_epu32(__m512i a, __m512i b) {
  return by_halves<__m512i, __m256i>([](auto... x) { return _mm256_mul_epu32(x...); }, a, b);
}
// Each bit is bit abc of the table, where a is the highest.
[[gnu::noinline]] inline __m512i ternarylogic(__m512i a, __m512i b, __m512i c, int table) {
  return each_lane<uint64_t, __m512i>([&](unsigned i) {
    const uint64_t x = lane<uint64_t>(a, i), y = lane<uint64_t>(b, i), z = lane<uint64_t>(c, i);
    uint64_t bits = 0;
    for (int row = 0; row < 8; ++row)
      if (table >> row & 1) bits |= (row & 4 ? x : ~x) & (row & 2 ? y : ~y) & (row & 1 ? z : ~z);
    return bits;
  });
}
inline __mmask8 test_epi64(__m512i a, __m512i b) {
  unsigned mask = 0;
  for (unsigned i = 0; i < 8; ++i)
    mask |= unsigned((lane<uint64_t>(a, i) & lane<uint64_t>(b, i)) != 0) << i;
  return static_cast<__mmask8>(mask);
}

// --- conversion ---
template <class From, class To, class V, class Wide>
V converted(Wide x) {
  return each_lane<To, V>([&](unsigned i) { return static_cast<To>(lane<From>(x, i)); });
}
inline __m512 cvtph_ps(__m256i x) {
  const auto halves = std::bit_cast<Halves<__m128i>>(x);
  return std::bit_cast<__m512>(
      Halves<__m256>{_mm256_cvtph_ps(halves.low), _mm256_cvtph_ps(halves.high)});
}
inline __m256i cvtps_ph(__m512 x) {  // to nearest even
  const auto halves = std::bit_cast<Halves<__m256>>(x);
  return std::bit_cast<__m256i>(
      Halves<__m128i>{_mm256_cvtps_ph(halves.low, 0), _mm256_cvtps_ph(halves.high, 0)});
}

// --- bf16: reads and gives subnormals as zeros, and rounds to nearest even ---
inline bool is_subnormal(float x) { return x != 0 && std::abs(x) < 0x1p-126f; }
inline float flushed(float x) { return is_subnormal(x) ? std::copysign(0.0f, x) : x; }
inline __mmask16 subnormal_lanes(__m512 x) {
  unsigned mask = 0;
  for (unsigned i = 0; i < 16; ++i) mask |= unsigned(is_subnormal(lane<float>(x, i))) << i;
  return static_cast<__mmask16>(mask);
}
[[gnu::noinline]] inline __m256bh cvtneps_pbh(__m512 x) {
  return each_lane<uint16_t, __m256bh>([&](unsigned i) {
    const auto f = std::bit_cast<uint32_t>(flushed(lane<float>(x, i)));
    const bool is_nan = (f & 0x7fffffffu) > 0x7f800000u;
    return static_cast<uint16_t>((is_nan ? f | 0x400000u : f + 0x7fffu + (f >> 16 & 1)) >> 16);
  });
}
// The sum and the odd product, then the even one, each time rounded.
[[gnu::noinline]] inline __m512 dpbf16(__m512 sum, __m512bh a, __m512bh b) {
  const auto number = [](const __m512bh& v, unsigned i) {
    return flushed(std::bit_cast<float>(uint32_t(lane<uint16_t>(v, i)) << 16));
  };
  return each_lane<float, __m512>([&](unsigned i) {
    float y = flushed(lane<float>(sum, i));
    for (const unsigned k : {2 * i + 1, 2 * i})
      y = flushed(std::fma(number(a, k), number(b, k), y));
    return y;
  });
}

}  // namespace
}  // namespace avx512

#define _mm_maskz_loadu_epi8 ::avx512::load<uint8_t, __m128i>
#define _mm256_maskz_loadu_epi8 ::avx512::load<uint8_t, __m256i>
#define _mm256_maskz_loadu_epi16 ::avx512::load<uint16_t, __m256i>
#define _mm256_mask_loadu_epi16 ::avx512::load_or<uint16_t>
#define _mm256_mask_storeu_epi16 ::avx512::store<uint16_t>
#define _mm512_maskz_loadu_epi8 ::avx512::load<uint8_t, __m512i>
#define _mm512_maskz_loadu_ps ::avx512::load<float, __m512>
#define _mm512_maskz_loadu_pd ::avx512::load<double, __m512d>
#define _mm512_mask_loadu_epi32 ::avx512::load_or<uint32_t>
#define _mm512_mask_storeu_epi8 ::avx512::store<uint8_t>
#define _mm512_mask_storeu_epi32 ::avx512::store<uint32_t>
#define _mm512_loadu_si512(p) ::avx512::load<uint32_t, __m512i>(0xffff, p)
#define _mm512_storeu_si512(p, v) ::avx512::store<uint32_t>(p, 0xffff, v)
#define _mm512_fmadd_ps ::avx512::fma
#define _mm512_fmadd_pd ::avx512::fma
#define _mm512_mask3_fmadd_ps ::avx512::fma_where<float>
#define _mm512_mask3_fmadd_pd ::avx512::fma_where<double>
#define _mm512_maskz_max_ps(mask, a, b) ::avx512::max(a, b)
#define _mm512_maskz_min_ps(mask, a, b) ::avx512::min(a, b)
#define _mm512_maskz_sqrt_ps(mask, a) ::avx512::sqrt(__m512(a))
#define _mm512_maskz_sqrt_pd(mask, a) ::avx512::sqrt(__m512d(a))
#define _mm512_maskz_scalef_ps(mask, a, b) ::avx512::scalef(a, b)
#define _mm512_maskz_max_epu32(mask, a, b) ::avx512::max_epu32(a, b)
#define _mm512_maskz_sllv_epi32(mask, a, b) ::avx512::sllv_epi32(a, b)
#define _mm512_slli_epi32(a, n) __m512i(::avx512::Lanes<uint32_t>(a) << n)
#define _mm512_maskz_mul_epu32(mask, a, b) ::avx512::mul_epu32(a, b)
#define _mm512_ternarylogic_epi32 ::avx512::ternarylogic
#define _mm512_test_epi64_mask ::avx512::test_epi64
#define _mm512_set1_epi32(x) __m512i(::avx512::Lanes<int32_t>{} + int32_t(x))
#define _mm512_set1_epi64(x) __m512i(::avx512::Lanes<int64_t>{} + int64_t(x))
#define _mm512_castsi512_ps (__m512)
#define _mm512_maskz_cvtepu16_epi32(mask, x) ::avx512::converted<uint16_t, uint32_t, __m512i>(x)
#define _mm512_maskz_cvtepi32_epi16(mask, x) ::avx512::converted<uint32_t, uint16_t, __m256i>(x)
#define _mm512_maskz_cvtph_ps(mask, x) ::avx512::cvtph_ps(x)
#define _mm512_maskz_cvtps_ph(mask, x, rounding) ::avx512::cvtps_ph(x)
#define _mm512_cvtneps_pbh ::avx512::cvtneps_pbh
#define _mm512_maskz_cvtneps_pbh(mask, x) ::avx512::cvtneps_pbh(x)
#define _mm512_dpbf16_ps ::avx512::dpbf16
#define _mm512_fpclass_ps_mask(x, classes) ::avx512::subnormal_lanes(x)

// The instruction sets, by the names that kernels ask for.
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#ifdef MIXTAPE_EMULATED_BF16
#define __AVX512BF16__ 1
#endif
