#pragma once
// DType: the element types, their properties, and the only switches over them.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>
#include <type_traits>

#include "core/half.h"

namespace mixtape {

template <int exponent, bool infinities>
struct Float8;  // core/float8.h has their conversions
using F8E4M3 = Float8<4, false>;
using F8E5M2 = Float8<5, true>;
struct F8E8M0;

// The dtypes from i8 on only store numbers, for files and indices: they can be converted, copied,
// moved and saved, but no op computes with them.
enum class DType : uint8_t {
  f64,
  f32,
  f16,
  bf16,
  i64,
  i32,
  u8,
  boolean,
  i8,
  i16,
  u16,
  u32,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0
};
using enum DType;

constexpr std::string_view name(DType t) {  // as parse_dtype() reads it: "f32", "bool"
  constexpr std::string_view names[] = {"f64", "f32", "f16",     "bf16",    "i64",
                                        "i32", "u8",  "bool",    "i8",      "i16",
                                        "u16", "u32", "f8_e4m3", "f8_e5m2", "f8_e8m0"};
  return names[static_cast<int>(t)];
}
constexpr size_t size_of(DType t) {
  constexpr uint64_t sizes = 0x111'4221'1148'2248;  // four bits each, in a register
  return sizes >> 4 * static_cast<int>(t) & 0xf;
}
// The binary logarithm of size_of(): shifting by it is faster than dividing by the size.
constexpr int log2_size_of(DType t) { return std::countr_zero(size_of(t)); }
constexpr bool is_float(DType t) { return t <= bf16; }  // f64, f32, f16 or bf16
constexpr bool is_f8(DType t) { return t >= f8_e4m3; }  // 8 bits: e4m3, e5m2, or e8m0, a scale
constexpr bool is_half(DType t) { return t == f16 || t == bf16; }                    // 16 bits
constexpr bool is_integer(DType t) { return t >= i64 && t <= u32 && t != boolean; }  // not bool
constexpr bool only_stores(DType t) { return t >= i8; }  // no op computes with it
// The dtype of sums, statistics and optimizer states for elements of dtype t.
constexpr DType accumulate_dtype(DType t) { return t == f64 ? f64 : f32; }
// The largest finite number of a float dtype.
constexpr double largest(DType t) {
  return t == f16    ? 65504
         : t == bf16 ? 0x1.fep127
         : t == f32  ? 0x1.fffffep127
                     : 0x1.fffffffffffffp1023;
}

// True if the dtype can represent it: floats and bools always, integers whole numbers in range.
bool holds(DType t, double value);

// Reads "f16", "fp16", "float16", "half", "bf16", "bfloat16", "f32", "fp32", "float32", "float",
// ... Throws Error that lists the accepted names.
DType parse_dtype(std::string_view text);
std::ostream& operator<<(std::ostream& out, DType t);

// C++ element type <-> DType.
template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>)
    return f64;
  else if constexpr (std::is_same_v<T, float>)
    return f32;
  else if constexpr (std::is_same_v<T, Half>)
    return f16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return bf16;
  else if constexpr (std::is_same_v<T, int64_t>)
    return i64;
  else if constexpr (std::is_same_v<T, int32_t>)
    return i32;
  else if constexpr (std::is_same_v<T, uint8_t>)
    return u8;
  else if constexpr (std::is_same_v<T, bool>)
    return boolean;
  else if constexpr (std::is_same_v<T, int8_t>)
    return i8;
  else if constexpr (std::is_same_v<T, int16_t>)
    return i16;
  else if constexpr (std::is_same_v<T, uint16_t>)
    return u16;
  else if constexpr (std::is_same_v<T, uint32_t>)
    return u32;
  else if constexpr (std::is_same_v<T, F8E4M3>)
    return f8_e4m3;
  else if constexpr (std::is_same_v<T, F8E5M2>)
    return f8_e5m2;
  else if constexpr (std::is_same_v<T, F8E8M0>)
    return f8_e8m0;
  else
    static_assert(
        sizeof(T) == 0,
        "not an element type: double, float, Half, BFloat16, bool, F8E4M3, F8E5M2, F8E8M0, "
        "or an integer of at most 32 bits or int64_t");
}

namespace detail {
// The types of numbers that elements convert to and from, for explicit instantiation.
// clang-format off
#define MIXTAPE_NUMBERS(F)                                             \
  F(double) F(float) F(Half) F(BFloat16) F(bool)                       \
  F(char) F(signed char) F(short) F(int) F(long) F(long long)          \
  F(unsigned char) F(unsigned short) F(unsigned) F(unsigned long) F(unsigned long long)
// clang-format on
template <class T>
inline constexpr bool is_number = false;
#define MIXTAPE_IS_NUMBER(T) \
  template <>                \
  inline constexpr bool is_number<T> = true;
MIXTAPE_NUMBERS(MIXTAPE_IS_NUMBER)
#undef MIXTAPE_IS_NUMBER
template <class T>
concept Number = is_number<T>;
}  // namespace detail

// The arithmetic type of a storage type: float for f16 and bf16.
template <class T>
using math_t = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;

namespace detail {
[[noreturn]] void refuse(DType t);  // a float is needed
[[noreturn]] void refuse(DType in, DType out);
}  // namespace detail

// f.operator()<T>() with the C++ type of `t`; visit_float throws Error unless that is a float.
// There is no other switch over DType outside kernels/cuda. visit() takes the dtypes that ops
// compute with.
template <class F>
decltype(auto) visit_float(DType t, F&& f) {
  switch (t) {
    case f64:
      return f.template operator()<double>();
    case f32:
      return f.template operator()<float>();
    case f16:
      return f.template operator()<Half>();
    case bf16:
      return f.template operator()<BFloat16>();
    default:
      detail::refuse(t);
  }
}

template <class F>
decltype(auto) visit(DType t, F&& f) {  // throws Error for the dtypes that only store
  switch (t) {
    case i64:
      return f.template operator()<int64_t>();
    case i32:
      return f.template operator()<int32_t>();
    case u8:
      return f.template operator()<uint8_t>();
    case boolean:
      return f.template operator()<bool>();
    default:
      return visit_float(t, f);
  }
}

// As visit, for the dtypes that only store.
template <class F>
decltype(auto) visit_only_stored(DType t, F&& f) {
  switch (t) {
    case i8:
      return f.template operator()<int8_t>();
    case i16:
      return f.template operator()<int16_t>();
    case u16:
      return f.template operator()<uint16_t>();
    case u32:
      return f.template operator()<uint32_t>();
    case f8_e4m3:
      return f.template operator()<F8E4M3>();
    case f8_e5m2:
      return f.template operator()<F8E5M2>();
    default:
      return f.template operator()<F8E8M0>();
  }
}
template <class F>
decltype(auto) visit_stored(DType t, F&& f) {  // as visit, for all dtypes
  if (only_stores(t)) return visit_only_stored(t, f);
  return visit(t, f);
}

// f.operator()<In, Out>() where `out` is `in` or, beside a 16-bit `in`, f32; else Error.
template <class F>
decltype(auto) visit_float(DType in, DType out, F&& f) {
  return visit_float(in, [&]<class In>() -> decltype(auto) {
    if (out == in) return f.template operator()<In, In>();
    if constexpr (is_half(dtype_of<In>()))
      if (out == f32) return f.template operator()<In, float>();
    detail::refuse(in, out);
  });
}

// f.operator()<S, D, O>() for x in S, dy and dx in S or, beside a 16-bit S, in f32; else Error.
template <class F>
void visit_float(DType x, DType dy, DType dx, F&& f) {
  visit_float(x, dy, [&]<class S, class D>() {
    visit_float(x, dx, [&]<class Same, class O>() {
      if constexpr (std::is_same_v<S, Same>) f.template operator()<S, D, O>();
    });
  });
}

}  // namespace mixtape
