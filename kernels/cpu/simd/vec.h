#pragma once
// Vec<float>, Vec<double> and Vec<int64_t>: a register of numbers that behave like one number. The
// result of an element never depends on its lane; a sum over many does depend on the width.
// Everything is forced inline, so that vectors stay in registers.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/dtype.h"
#include "kernels/common/always_inline.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace mixtape::kernels::cpu {

// Bytes of a register. (g++ splits longer vectors, and choices and shuffles into single numbers.)
#ifdef __AVX512F__
inline constexpr int vector_bytes = 64;
#else
inline constexpr int vector_bytes = 32;
#endif

namespace detail {
template <class T>
struct Vector;
template <>
struct Vector<float> {
  using type __attribute__((vector_size(vector_bytes))) = float;
  using wrapping = type;  // for sums and products: unsigned for signed integers
  using integer __attribute__((vector_size(vector_bytes))) = int32_t;
};
template <>
struct Vector<double> {
  using type __attribute__((vector_size(vector_bytes))) = double;
  using wrapping = type;
  using integer __attribute__((vector_size(vector_bytes))) = int64_t;
};
template <>
struct Vector<int64_t> {
  using type __attribute__((vector_size(vector_bytes))) = int64_t;
  using wrapping __attribute__((vector_size(vector_bytes))) = uint64_t;
  using integer = type;
};
// Types with as many lanes as doubles or floats have.
using HalfFloats __attribute__((vector_size(vector_bytes / 2))) = float;
using Doubles = Vector<double>::type;
using Halves __attribute__((vector_size(vector_bytes / 2))) = uint16_t;
using Words __attribute__((vector_size(vector_bytes))) = uint32_t;
#ifdef __AVX512F__
// g++ 12 warns about uninitialised memory inside the unmasked intrinsics.
inline constexpr __mmask16 all_lanes = 0xffff;
#endif
}  // namespace detail

// The result of a comparison: all bits of a lane are set, or none.
template <class T>
struct Mask {
  typename detail::Vector<T>::integer v;

  MIXTAPE_ALWAYS_INLINE friend Mask operator&(Mask a, Mask b) { return {a.v & b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask operator|(Mask a, Mask b) { return {a.v | b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask operator^(Mask a, Mask b) { return {a.v ^ b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask operator!(Mask a) { return {~a.v}; }
  MIXTAPE_ALWAYS_INLINE bool operator[](int i) const { return v[i] != 0; }
};

template <class T>
MIXTAPE_ALWAYS_INLINE Mask<T> both(Mask<T> a, Mask<T> b) {
  return a & b;
}
template <class T>
MIXTAPE_ALWAYS_INLINE Mask<T> either(Mask<T> a, Mask<T> b) {
  return a | b;
}
template <class T>
MIXTAPE_ALWAYS_INLINE Mask<T> differ(Mask<T> a, Mask<T> b) {
  return a ^ b;
}
template <class T>
MIXTAPE_ALWAYS_INLINE bool any(Mask<T> m) {
#ifdef __AVX512F__
  return _mm512_test_epi64_mask(reinterpret_cast<__m512i>(m.v), reinterpret_cast<__m512i>(m.v)) !=
         0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(m.v), reinterpret_cast<__m256i>(m.v));
#else
  const auto words = reinterpret_cast<detail::Vector<int64_t>::type>(m.v);
  int64_t all = 0;
  for (int i = 0; i < vector_bytes / 8; ++i) all |= words[i];
  return all != 0;
#endif
}

template <class T>
struct Vec {
  using Vector = typename detail::Vector<T>::type;
  using W = typename detail::Vector<T>::wrapping;
  static constexpr int width = vector_bytes / sizeof(T);
  Vector v;

  Vec() = default;
  MIXTAPE_ALWAYS_INLINE Vec(T x) : v(x - Vector{}) {}
  MIXTAPE_ALWAYS_INLINE Vec(Vector v) : v(v) {}
  MIXTAPE_ALWAYS_INLINE T operator[](int i) const { return v[i]; }

  MIXTAPE_ALWAYS_INLINE friend Vec operator+(Vec a, Vec b) { return Vector(W(a.v) + W(b.v)); }
  MIXTAPE_ALWAYS_INLINE friend Vec operator-(Vec a, Vec b) { return Vector(W(a.v) - W(b.v)); }
  MIXTAPE_ALWAYS_INLINE friend Vec operator*(Vec a, Vec b) { return Vector(W(a.v) * W(b.v)); }
  MIXTAPE_ALWAYS_INLINE friend Vec operator/(Vec a, Vec b) { return a.v / b.v; }
  MIXTAPE_ALWAYS_INLINE friend Vec operator-(Vec a) { return Vector(-W(a.v)); }
  MIXTAPE_ALWAYS_INLINE Vec& operator+=(Vec b) { return *this = *this + b; }
  MIXTAPE_ALWAYS_INLINE Vec& operator*=(Vec b) { return *this = *this * b; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator==(Vec a, Vec b) { return {a.v == b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator!=(Vec a, Vec b) { return {a.v != b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator<(Vec a, Vec b) { return {a.v < b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator<=(Vec a, Vec b) { return {a.v <= b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator>(Vec a, Vec b) { return {a.v > b.v}; }
  MIXTAPE_ALWAYS_INLINE friend Mask<T> operator>=(Vec a, Vec b) { return {a.v >= b.v}; }

  // mask ? a : b
  MIXTAPE_ALWAYS_INLINE friend Vec select(Mask<T> mask, Vec a, Vec b) { return mask.v ? a.v : b.v; }
  // a * b + c, rounded once if the processor can (kernels are compiled with -ffp-contract=fast). If
  // c is a product too, an intrinsic makes sure that a * b is the one that is not rounded.
  MIXTAPE_ALWAYS_INLINE friend Vec fma(Vec a, Vec b, Vec c) {
#ifdef __AVX512F__
    if constexpr (std::is_same_v<T, float>) return Vector(_mm512_fmadd_ps(a.v, b.v, c.v));
    if constexpr (std::is_same_v<T, double>) return Vector(_mm512_fmadd_pd(a.v, b.v, c.v));
#elif defined(__FMA__)
    if constexpr (std::is_same_v<T, float>) return Vector(_mm256_fmadd_ps(a.v, b.v, c.v));
    if constexpr (std::is_same_v<T, double>) return Vector(_mm256_fmadd_pd(a.v, b.v, c.v));
#endif
    return Vector(W(a.v) * W(b.v) + W(c.v));
  }
};

// a > b ? a : b and a < b ? a : b, so b if either is NaN. (One instruction, which g++ 12 does not
// find in the conditional.)
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> larger(Vec<T> a, Vec<T> b) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>)
    return typename Vec<T>::Vector(_mm512_maskz_max_ps(detail::all_lanes, a.v, b.v));
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) return typename Vec<T>::Vector(_mm256_max_ps(a.v, b.v));
#endif
  return select(a > b, a, b);
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> smaller(Vec<T> a, Vec<T> b) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>)
    return typename Vec<T>::Vector(_mm512_maskz_min_ps(detail::all_lanes, a.v, b.v));
#elif defined(__AVX2__)
  if constexpr (std::is_same_v<T, float>) return typename Vec<T>::Vector(_mm256_min_ps(a.v, b.v));
#endif
  return select(a < b, a, b);
}
// NaN in either gives NaN.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> max(Vec<T> a, Vec<T> b) {
  return select(a != a, a, larger(a, b));
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> min(Vec<T> a, Vec<T> b) {
  return select(a != a, a, smaller(a, b));
}
// Limits x to [low, high]; NaN stays NaN.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> clamp(Vec<T> x, T low, T high) {
  return smaller(Vec<T>(high), larger(Vec<T>(low), x));
}

namespace detail {

template <class T>
using Bits = typename Vector<T>::integer;

template <class T>
MIXTAPE_ALWAYS_INLINE Bits<T> bits(Vec<T> x) {
  return reinterpret_cast<Bits<T>>(x.v);
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> from_bits(Bits<T> x) {
  return reinterpret_cast<typename Vector<T>::type>(x);
}
template <class T>
inline constexpr auto sign_bit = std::is_same_v<T, float> ? int64_t{INT32_MIN} : INT64_MIN;

// Applies f to every lane, for rare cases and functions without a vector form.
template <class T, class F>
MIXTAPE_ALWAYS_INLINE Vec<T> each(Vec<T> x, F f) {
  Vec<T> y;
  for (int i = 0; i < Vec<T>::width; ++i) y.v[i] = f(x.v[i]);
  return y;
}
template <class T, class F>
MIXTAPE_ALWAYS_INLINE Vec<T> each(Vec<T> a, Vec<T> b, F f) {
  Vec<T> c;
  for (int i = 0; i < Vec<T>::width; ++i) c.v[i] = f(a.v[i], b.v[i]);
  return c;
}

// c[0] x^n + ... + c[n], by Horner's rule.
template <class T, class... C>
MIXTAPE_ALWAYS_INLINE Vec<T> polynomial(Vec<T> x, T first, C... rest) {
  Vec<T> y = first;
  ((y = fma(y, x, Vec<T>(T(rest)))), ...);
  return y;
}

}  // namespace detail

template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> abs(Vec<T> x) {
  using Bits = detail::Bits<T>;
  return detail::from_bits<T>(detail::bits(x) &
                              ~(Bits{} + decltype(Bits{}[0] + 0)(detail::sign_bit<T>)));
}
// |x| with the sign of s.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> copysign(Vec<T> x, Vec<T> s) {
  using Bits = detail::Bits<T>;
  const Bits sign = Bits{} + decltype(Bits{}[0] + 0)(detail::sign_bit<T>);
  return detail::from_bits<T>((detail::bits(x) & ~sign) | (detail::bits(s) & sign));
}

MIXTAPE_ALWAYS_INLINE Vec<float> sqrt(Vec<float> x) {
#ifdef __AVX512F__
  return Vec<float>(static_cast<Vec<float>::Vector>(_mm512_maskz_sqrt_ps(detail::all_lanes, x.v)));
#elif defined(__AVX2__)
  return Vec<float>(static_cast<Vec<float>::Vector>(_mm256_sqrt_ps(x.v)));
#else
  return detail::each(x, [](float a) { return std::sqrt(a); });
#endif
}
MIXTAPE_ALWAYS_INLINE Vec<double> sqrt(Vec<double> x) {
#ifdef __AVX512F__
  return Vec<double>(static_cast<Vec<double>::Vector>(_mm512_maskz_sqrt_pd(0xff, x.v)));
#elif defined(__AVX2__)
  return Vec<double>(static_cast<Vec<double>::Vector>(_mm256_sqrt_pd(x.v)));
#else
  return detail::each(x, [](double a) { return std::sqrt(a); });
#endif
}
// x 2^n for whole n, with gradual underflow, and infinity on overflow.
MIXTAPE_ALWAYS_INLINE Vec<float> ldexp(Vec<float> x, Vec<float> n) {
#ifdef __AVX512F__
  return Vec<float>::Vector(_mm512_maskz_scalef_ps(detail::all_lanes, x.v, n.v));
#else  // in two steps, each by a power that is a normal number
  const auto whole = __builtin_convertvector(n.v, detail::Bits<float>), half = whole >> 1;
  const auto power = [](detail::Bits<float> k) {
    return detail::from_bits<float>((k + 127) << 23);
  };
  return x * power(half) * power(whole - half);
#endif
}
// Rounds to the nearest integer, ties to even.
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> round(Vec<T> x) {
  const T magic = sizeof(T) == 4 ? T(0x1p23) : T(0x1p52);  // from here on every number is whole
  const Vec<T> a = abs(x);
  return copysign(select(a < Vec<T>(magic), (a + magic) - magic, x), x);
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> floor(Vec<T> x) {
  const Vec<T> r = round(x);
  return copysign(select(r > x, r - T(1), r), x);
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> ceil(Vec<T> x) {
  return -floor(-x);
}
template <class T>
MIXTAPE_ALWAYS_INLINE Vec<T> trunc(Vec<T> x) {
  return copysign(floor(abs(x)), x);
}

namespace detail {
// Combines lane i with lane i ^ distance.
template <int distance, class T, int... i>
MIXTAPE_ALWAYS_INLINE Vec<T> swapped(Vec<T> x, std::integer_sequence<int, i...>) {
  return Vec<T>(__builtin_shufflevector(x.v, x.v, (i ^ distance)...));
}
template <int distance, class T, class F>
MIXTAPE_ALWAYS_INLINE T fold(Vec<T> x, F f) {
  x = f(x, swapped<distance>(x, std::make_integer_sequence<int, Vec<T>::width>()));
  if constexpr (distance > 1)
    return fold<distance / 2>(x, f);
  else
    return x.v[0];
}
template <class T, class F>
MIXTAPE_ALWAYS_INLINE T fold(Vec<T> x, F f) {
  return fold<Vec<T>::width / 2>(x, f);
}
}  // namespace detail

// The sum of all lanes, as a tree of fixed shape: lane i with lane i + width / 2, and so on.
template <class T>
MIXTAPE_ALWAYS_INLINE T hsum(Vec<T> x) {
  return detail::fold(x, [](Vec<T> a, Vec<T> b) { return a + b; });
}
// NaN in any lane gives NaN.
template <class T>
MIXTAPE_ALWAYS_INLINE T hmax(Vec<T> x) {
  const T y = detail::fold(x, [](Vec<T> a, Vec<T> b) { return larger(a, b); });
  return any(x != x) ? std::numeric_limits<T>::quiet_NaN() : y;
}
template <class T>
MIXTAPE_ALWAYS_INLINE T hmin(Vec<T> x) {
  const T y = detail::fold(x, [](Vec<T> a, Vec<T> b) { return smaller(a, b); });
  return any(x != x) ? std::numeric_limits<T>::quiet_NaN() : y;
}

// --- memory ---

// Loads `width` elements of type S at p, unaligned; exact, except for double to float.
template <class S, class T = math_t<S>>
MIXTAPE_ALWAYS_INLINE Vec<T> load(const S* p) {
  Vec<T> x;
  if constexpr (std::is_same_v<S, T>) {
    std::memcpy(&x.v, p, sizeof x.v);
  } else if constexpr (std::is_same_v<S, Half> && std::is_same_v<T, float>) {
#if defined(__AVX512F__)
    x.v = _mm512_maskz_cvtph_ps(detail::all_lanes,
                                _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__) && defined(__F16C__)
    x.v = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    for (int i = 0; i < x.width; ++i) x.v[i] = float(p[i]);
#endif
  } else if constexpr (std::is_same_v<S, BFloat16> && std::is_same_v<T, float>) {
    detail::Halves h;
    std::memcpy(&h, p, sizeof h);
#if defined(__AVX512F__)
    const auto words = reinterpret_cast<detail::Words>(
        _mm512_maskz_cvtepu16_epi32(detail::all_lanes, reinterpret_cast<__m256i>(h)));
#elif defined(__AVX2__)
    const auto words =
        reinterpret_cast<detail::Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(h)));
#else
    const auto words = __builtin_convertvector(h, detail::Words);
#endif
    x.v = reinterpret_cast<typename Vec<T>::Vector>(words << 16);
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
    detail::HalfFloats f;
    std::memcpy(&f, p, sizeof f);
    x.v = __builtin_convertvector(f, typename Vec<T>::Vector);
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
#if defined(__AVX512F__)
    const __m256i h = _mm512_maskz_cvtps_ph(detail::all_lanes, x.v,
                                            _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    detail::put<uint16_t>(p, reinterpret_cast<detail::Halves>(h));
#elif defined(__AVX2__) && defined(__F16C__)
    const __m128i h = _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT);
    detail::put<uint16_t>(p, reinterpret_cast<detail::Halves>(h));
#else
    for (int i = 0; i < x.width; ++i) p[i] = Half(float(x.v[i]));
#endif
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
    const detail::Words f = reinterpret_cast<detail::Words>(x.v);
    const detail::Words even = f + 0x7fffu + ((f >> 16) & 1u), quiet = f | 0x400000u;
    const detail::Words r = x.v == x.v ? even : quiet;  // results are in the upper halves
#if defined(__AVX512F__)
    const __m256i h =
        _mm512_maskz_cvtepi32_epi16(detail::all_lanes, reinterpret_cast<__m512i>(r >> 16));
#elif defined(__AVX2__)
    const __m256i places = _mm256_set1_epi64x(0x0f0e0b0a07060302);
    const __m256i upper = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(r), places);
    const __m128i h = _mm256_castsi256_si128(_mm256_permute4x64_epi64(upper, 0b1000));
#else
    const auto h = __builtin_convertvector(r >> 16, detail::Halves);
#endif
    detail::put<uint16_t>(p, reinterpret_cast<detail::Halves>(h));
  } else if constexpr (std::is_same_v<S, float> && std::is_same_v<T, double>) {
    detail::put<float>(p, __builtin_convertvector(x.v, detail::HalfFloats));
  } else {
    for (int i = 0; i < x.width; ++i) p[i] = S(T(x.v[i]));
  }
}

// One bool for each lane.
template <class T>
MIXTAPE_ALWAYS_INLINE void store(bool* p, Mask<T> m) {
  using Bytes __attribute__((vector_size(Vec<T>::width))) = int8_t;
  const Bytes b = __builtin_convertvector(m.v, Bytes) & 1;
  std::memcpy(p, &b, sizeof b);
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

// Calls put(i, get(i)) for i = 0, width, ... below n; for floats, on as many vectors at a time as
// fit in registers. Dependent instructions, such as the steps of a polynomial, leave gaps that the
// other vectors fill, further apart than the processor looks ahead. (The compiler interleaves them:
// -fschedule-insns. bench/worklog/147)
template <int64_t width, class Get, class Put>
MIXTAPE_ALWAYS_INLINE void in_groups(int64_t n, Get get, Put put) {
  using V = decltype(get(n));
  int64_t i = 0;
  if constexpr (std::is_same_v<V, Vec<float>>) {
    constexpr int group = vector_bytes == 64 ? 4 : 2;
    for (; i + group * width <= n; i += group * width) {
      V v[group];
#pragma GCC unroll 4
      for (int k = 0; k < group; ++k) v[k] = get(i + k * width);
#pragma GCC unroll 4
      for (int k = 0; k < group; ++k) put(i + k * width, v[k]);
    }
  }
  for (; i < n; i += width) put(i, get(i));
}

}  // namespace mixtape::kernels::cpu
