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
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Bytes of a register. (g++ splits longer vectors, and choices and shuffles into single numbers.)
#ifdef __AVX512F__
inline constexpr int vector_bytes = 64;
#elif defined(__aarch64__)
inline constexpr int vector_bytes = 16;
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
#elif defined(__aarch64__)
    if constexpr (std::is_same_v<T, float>) return Vector(vfmaq_f32(c.v, a.v, b.v));
    if constexpr (std::is_same_v<T, double>) return Vector(vfmaq_f64(c.v, a.v, b.v));
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
#elif defined(__aarch64__)
  return Vec<float>(static_cast<Vec<float>::Vector>(vsqrtq_f32(x.v)));
#else
  return detail::each(x, [](float a) { return std::sqrt(a); });
#endif
}
MIXTAPE_ALWAYS_INLINE Vec<double> sqrt(Vec<double> x) {
#ifdef __AVX512F__
  return Vec<double>(static_cast<Vec<double>::Vector>(_mm512_maskz_sqrt_pd(0xff, x.v)));
#elif defined(__AVX2__)
  return Vec<double>(static_cast<Vec<double>::Vector>(_mm256_sqrt_pd(x.v)));
#elif defined(__aarch64__)
  return Vec<double>(static_cast<Vec<double>::Vector>(vsqrtq_f64(x.v)));
#else
  return detail::each(x, [](double a) { return std::sqrt(a); });
#endif
}
// x 2^n for whole n and |x| <= 2, with gradual underflow, and infinity on overflow. A product that
// rounds to 0 is not computed: an underflow takes Intel's processors 150 cycles.
MIXTAPE_ALWAYS_INLINE Vec<float> ldexp(Vec<float> x, Vec<float> n) {
  const Mask<float> vanishes = n <= Vec<float>(-151.0f);  // not NaN
#ifdef __AVX512F__
  const Vec<float> exponent = select(vanishes, Vec<float>(-__builtin_inff()), n);
  return Vec<float>::Vector(_mm512_maskz_scalef_ps(detail::all_lanes, x.v, exponent.v));
#else  // in two steps, each by a power that is a normal number
  const auto whole = __builtin_convertvector(n.v, detail::Bits<float>), half = whole >> 1;
  const auto power = [](detail::Bits<float> k) { return (k + 127) << 23; };
  return x * detail::from_bits<float>(power(half) & ~vanishes.v) *
         detail::from_bits<float>(power(whole - half));
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

// Calls put(i, get(i)) for i = 0, width, ... below n; for floats, on as many vectors at a time as
// fit in registers. Dependent instructions, such as the steps of a polynomial, leave gaps that the
// other vectors fill, further apart than the processor looks ahead. (The compiler interleaves them:
// -fschedule-insns. bench/worklog/147) n is a multiple of `multiple`.
template <int64_t width, int64_t multiple = width, class Get, class Put>
MIXTAPE_ALWAYS_INLINE void in_groups(int64_t n, Get get, Put put) {
  using V = decltype(get(n));
  int64_t i = 0;
  if constexpr (std::is_same_v<V, Vec<float>>) {
    constexpr int group = vector_bytes == 32 ? 2 : 4;  // AVX2 has half as many registers
    for (; i + group * width <= n; i += group * width) {
      V v[group];
#pragma GCC unroll 4
      for (int k = 0; k < group; ++k) v[k] = get(i + k * width);
#pragma GCC unroll 4
      for (int k = 0; k < group; ++k) put(i + k * width, v[k]);
    }
    if constexpr (multiple % (group * width) == 0) return;
  }
  for (; i < n; i += width) put(i, get(i));
}

namespace detail {
// The lower and the higher lanes of floats, and both joined.
template <int first, int... i>
MIXTAPE_ALWAYS_INLINE HalfFloats half(Vec<float> x, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(x.v, x.v, (first + i)...);
}
inline constexpr std::make_integer_sequence<int, Vec<double>::width> half_lanes;
MIXTAPE_ALWAYS_INLINE HalfFloats low(Vec<float> x) { return half<0>(x, half_lanes); }
MIXTAPE_ALWAYS_INLINE HalfFloats high(Vec<float> x) {
  return half<Vec<double>::width>(x, half_lanes);
}
template <int... i>
MIXTAPE_ALWAYS_INLINE Vec<float> joined(HalfFloats a, HalfFloats b,
                                        std::integer_sequence<int, i...>) {
  return Vec<float>(__builtin_shufflevector(a, b, i...));
}
MIXTAPE_ALWAYS_INLINE Vec<float> joined(HalfFloats a, HalfFloats b) {
  return joined(a, b, std::make_integer_sequence<int, Vec<float>::width>());
}
}  // namespace detail

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
