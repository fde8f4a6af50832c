#pragma once
// Loads and stores of Vec: from and to any element type, whole vectors, the first lanes, or lanes
// that a mask selects.

#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/vec.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {
namespace detail {

// As many 16-bit numbers as a register has doubles: the first half of those that it has floats.
using HalfOfHalves = HalfVector<Vec<double>::width>;
template <int... i>
MIXTAPE_ALWAYS_INLINE Halves with_zeros(HalfOfHalves x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x, HalfOfHalves{}, i...);
}
MIXTAPE_ALWAYS_INLINE Halves with_zeros(HalfOfHalves x) {
  return with_zeros(x, std::make_integer_sequence<int, Vec<float>::width>());
}
template <int... i>
MIXTAPE_ALWAYS_INLINE HalfOfHalves first_half(Halves x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x, x, i...);
}

// As floats, for a conversion to 16 bits that rounds once: of 52 bits 15 are left, the last one set
// if any after it was (rounding to odd). Floats hold them, subnormals of bf16 too.
MIXTAPE_ALWAYS_INLINE HalfFloats rounded_to_odd(Doubles x) {
  using Bits = Vector<double>::integer;
  constexpr int64_t rest = (int64_t{1} << 37) - 1;
  const Bits bits = reinterpret_cast<Bits>(x);
  const Bits odd = (bits | ((bits & rest) + rest)) & ~rest;
  return __builtin_convertvector(reinterpret_cast<Doubles>(odd), HalfFloats);
}

}  // namespace detail

// Loads `width` elements of type S at p, unaligned; exact, except for double to float.
template <class S, class T = math_t<S>>
MIXTAPE_ALWAYS_INLINE Vec<T> load(const S* p) {
  Vec<T> x;
  if constexpr (std::is_same_v<S, T>) {
    std::memcpy(&x.v, p, sizeof x.v);
  } else if constexpr (std::is_same_v<S, Half> && std::is_same_v<T, float>) {
    x.v = float_from_half<x.width>(load_vector<detail::Halves>(p));
  } else if constexpr (std::is_same_v<S, BFloat16> && std::is_same_v<T, float>) {
    x.v = float_from_bf16<x.width>(load_vector<detail::Halves>(p));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
    detail::HalfFloats f;
    std::memcpy(&f, p, sizeof f);
    x.v = __builtin_convertvector(f, typename Vec<T>::Vector);
  } else if constexpr ((std::is_same_v<S, Half> || std::is_same_v<S, BFloat16>) &&
                       std::is_same_v<T, double>) {
    const auto all = detail::with_zeros(load_vector<detail::HalfOfHalves>(p));
    Vec<float> f;
    if constexpr (std::is_same_v<S, Half>)
      f.v = float_from_half<f.width>(all);
    else
      f.v = float_from_bf16<f.width>(all);
    x.v = __builtin_convertvector(detail::low(f), typename Vec<T>::Vector);
  } else {
    for (int i = 0; i < x.width; ++i) x.v[i] = static_cast<T>(p[i]);
  }
  return x;
}

namespace detail {
// Stores a vector of numbers of type E to memory of that type. (memcpy might alias anything, so
// loops would reload all their pointers after each store.)
template <class E, class V>
MIXTAPE_ALWAYS_INLINE void put(void* p, const V& x) {
  using Unaligned __attribute__((vector_size(sizeof(V)), aligned(alignof(E)))) = E;
  *static_cast<Unaligned*>(p) = x;
}
}  // namespace detail

// Rounds to nearest even; NaN stays NaN and subnormals stay themselves.
template <class S, class T>
MIXTAPE_ALWAYS_INLINE void store(S* p, Vec<T> x) {
  if constexpr (std::is_same_v<S, T>) {
    detail::put<T>(p, x.v);
  } else if constexpr (std::is_same_v<S, Half> && std::is_same_v<T, float>) {
    detail::put<uint16_t>(p, half_from_float<x.width>(x.v));
  } else if constexpr (std::is_same_v<S, BFloat16> && std::is_same_v<T, float>) {
#ifdef __AVX512BF16__
    // The instruction would flush subnormals, which are rare: they take the integer path below.
    // (The test is in a general register: one of the mask itself would take a port of
    // multiply-adds.)
    uint32_t subnormal = _mm512_fpclass_ps_mask(x.v, 0x20);
    asm("" : "+r"(subnormal));
    if (subnormal == 0) [[likely]] {
      const __m256bh h = _mm512_maskz_cvtneps_pbh(detail::all_lanes, x.v);
      return detail::put<uint16_t>(p, reinterpret_cast<detail::Halves>(h));
    }
#endif
    detail::put<uint16_t>(p, bf16_from_float<x.width>(x.v));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
    detail::put<float>(p, __builtin_convertvector(x.v, detail::HalfFloats));
  } else if constexpr (std::is_same_v<T, double>) {
    const auto f = detail::joined(detail::rounded_to_odd(x.v), detail::HalfFloats{});
    detail::Halves h;
    if constexpr (std::is_same_v<S, Half>)
      h = half_from_float<f.width>(f.v);
    else
      h = bf16_from_float<f.width>(f.v);
    detail::put<uint16_t>(p, detail::first_half(h, detail::half_lanes));
  } else {
    for (int i = 0; i < x.width; ++i) p[i] = S(T(x.v[i]));
  }
}

// One bool for each lane.
template <class T>
MIXTAPE_ALWAYS_INLINE void store(bool* p, Mask<T> m) {
#if defined(__AVX2__) && !defined(__AVX512F__)  // g++ 12 would move them one by one
  const auto all = reinterpret_cast<__m256i>(m.v);
  const __m128i low = _mm256_castsi256_si128(all), high = _mm256_extracti128_si256(all, 1);
  __m128i b = _mm_packs_epi32(low, high);
  if constexpr (sizeof(T) == 8) b = _mm_packs_epi32(b, b);  // each mask was two words
  b = _mm_and_si128(_mm_packs_epi16(b, b), _mm_set1_epi8(1));
#else
  using Bytes __attribute__((vector_size(Vec<T>::width))) = int8_t;
  const Bytes b = __builtin_convertvector(m.v, Bytes) & 1;
#endif
  std::memcpy(p, &b, Vec<T>::width);
}

namespace detail {

// Copies the first n elements of a dense vector over those of `rest`, and back to memory. With
// masks if the processor has them: vector loads would stall after copies in several parts.
#if defined(__AVX2__) && !defined(__AVX512BW__)
MIXTAPE_ALWAYS_INLINE __m256i first_words(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
#endif
template <class S, int width>
MIXTAPE_ALWAYS_INLINE void read_first(S* rest, const S* p, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const uint32_t first = (1u << n) - 1;
  if constexpr (width * sizeof(S) == 64 && sizeof(S) == 4)
    _mm512_storeu_si512(
        rest, _mm512_mask_loadu_epi32(_mm512_loadu_si512(rest), static_cast<__mmask16>(first), p));
  else if constexpr (width * sizeof(S) == 32 && sizeof(S) == 2)
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(rest),
        _mm256_mask_loadu_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rest)),
                                static_cast<__mmask16>(first), p));
  else
#elif defined(__AVX2__)
  if constexpr (width * sizeof(S) == 32 && sizeof(S) == 4) {
    const __m256i first = first_words(n);
    const __m256 old = _mm256_loadu_ps(reinterpret_cast<const float*>(rest)),
                 read = _mm256_maskload_ps(reinterpret_cast<const float*>(p), first);
    _mm256_storeu_ps(reinterpret_cast<float*>(rest),
                     _mm256_blendv_ps(old, read, _mm256_castsi256_ps(first)));
  } else if constexpr (width * sizeof(S) == 16 && sizeof(S) == 2) {  // masks are of pairs
    const auto* const from = reinterpret_cast<const int16_t*>(p);
    auto* const to = reinterpret_cast<__m128i*>(rest);
    const __m128i lane = _mm_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7),
                  last = _mm_set1_epi16(static_cast<int16_t>(n - 1));
    const __m128i pairs = _mm_maskload_epi32(reinterpret_cast<const int*>(from),
                                             _mm256_castsi256_si128(first_words(n / 2)));
    const __m128i read =
        _mm_blendv_epi8(pairs, _mm_set1_epi16(from[n - 1]), _mm_cmpeq_epi16(lane, last));
    _mm_storeu_si128(to, _mm_blendv_epi8(read, _mm_loadu_si128(to), _mm_cmpgt_epi16(lane, last)));
  } else
#endif
    std::memcpy(static_cast<void*>(rest), p, static_cast<size_t>(n) * sizeof(S));
}
template <class S, int width>
MIXTAPE_ALWAYS_INLINE void write_first(S* p, const S* x, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const uint32_t first = (1u << n) - 1;
  if constexpr (width * sizeof(S) == 64 && sizeof(S) == 4)
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>(first), _mm512_loadu_si512(x));
  else if constexpr (width * sizeof(S) == 32 && sizeof(S) == 2)
    _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(first),
                             _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
  else
#elif defined(__AVX2__)
  if constexpr (width * sizeof(S) == 32 && sizeof(S) == 4)
    _mm256_maskstore_ps(reinterpret_cast<float*>(p), first_words(n),
                        _mm256_loadu_ps(reinterpret_cast<const float*>(x)));
  else if constexpr (width * sizeof(S) == 16 && sizeof(S) == 2) {
    _mm_maskstore_epi32(reinterpret_cast<int*>(p), _mm256_castsi256_si128(first_words(n / 2)),
                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    p[n - 1] = x[n - 1];
  } else
#endif
    std::memcpy(static_cast<void*>(p), x, static_cast<size_t>(n) * sizeof(S));
}

}  // namespace detail

// Loads or stores the first n < width elements, n >= 1; other lanes read as `rest`.
template <class S, class T = math_t<S>>
MIXTAPE_ALWAYS_INLINE Vec<T> load_first(const S* p, int64_t n, S rest = S(0.0f)) {
  if (n >= Vec<T>::width) __builtin_unreachable();  // or g++ 13 warns of what would happen then
  S buffer[Vec<T>::width];
  for (int i = 0; i < Vec<T>::width; ++i) buffer[i] = rest;
  detail::read_first<S, Vec<T>::width>(buffer, p, n);
  return load<S, T>(buffer);
}
template <class S, class T>
MIXTAPE_ALWAYS_INLINE void store_first(S* p, Vec<T> x, int64_t n) {
  S buffer[Vec<T>::width];
  store(buffer, x);
  detail::write_first<S, Vec<T>::width>(p, buffer, n);
}

// Loads the lanes whose bits are set in `which`, lowest first; the others are zero, and their
// memory is not touched. (One by one if the processor has no such masks.)
using LaneBits = uint16_t;
#if defined(__AVX512BW__) && defined(__AVX512VL__)
inline constexpr bool has_lane_bits = true;
#else
inline constexpr bool has_lane_bits = false;
#endif
template <class S, class T = math_t<S>>
MIXTAPE_ALWAYS_INLINE Vec<T> load_where(LaneBits which, const S* p) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  using V = typename Vec<T>::Vector;
  if constexpr (std::is_same_v<S, float> && std::is_same_v<T, float>)
    return V(_mm512_maskz_loadu_ps(which, p));
  if constexpr (std::is_same_v<S, double> && std::is_same_v<T, double>)
    return V(_mm512_maskz_loadu_pd(static_cast<__mmask8>(which), p));
  if constexpr (sizeof(S) == 2 && std::is_same_v<T, float>) {
    const __m256i x = _mm256_maskz_loadu_epi16(which, p);
    if constexpr (std::is_same_v<S, Half>)
      return V(_mm512_maskz_cvtph_ps(detail::all_lanes, x));
    else
      return V(_mm512_castsi512_ps(
          _mm512_slli_epi32(_mm512_maskz_cvtepu16_epi32(detail::all_lanes, x), 16)));
  }
#endif
  Vec<T> x(T(0));
  for (int i = 0; i < x.width; ++i)
    if (which >> i & 1) x.v[i] = static_cast<T>(p[i]);
  return x;
}
// a * b + c in those lanes, c in the others.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> fma_where(LaneBits which, Vec<T> a, Vec<T> b, Vec<T> c) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  using V = typename Vec<T>::Vector;
  if constexpr (std::is_same_v<T, float>) return V(_mm512_mask3_fmadd_ps(a.v, b.v, c.v, which));
  if constexpr (std::is_same_v<T, double>)
    return V(_mm512_mask3_fmadd_pd(a.v, b.v, c.v, static_cast<__mmask8>(which)));
#endif
  for (int i = 0; i < c.width; ++i)
    if (which >> i & 1) c.v[i] = a.v[i] * b.v[i] + c.v[i];
  return c;
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
