// Ranges of the element types, and the names that parse_dtype() accepts.
#include "core/dtype.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

#include "core/check.h"

namespace mixtape {

bool holds(DType t, double value) {
  if (!is_integer(t)) return true;
  const bool is_signed = t == i64 || t == i32 || t == i16 || t == i8;
  const double end = std::ldexp(1, 8 * static_cast<int>(size_of(t)) - is_signed);
  return (is_signed ? -end : 0) <= value && value < end && value == std::trunc(value);
}

DType parse_dtype(std::string_view text) {
  constexpr struct {
    std::string_view name;
    DType dtype;
  } names[] = {
      {"f64", f64},         {"fp64", f64},
      {"float64", f64},     {"double", f64},
      {"f32", f32},         {"fp32", f32},
      {"float32", f32},     {"float", f32},
      {"f16", f16},         {"fp16", f16},
      {"float16", f16},     {"half", f16},
      {"bf16", bf16},       {"bfloat16", bf16},
      {"i64", i64},         {"int64", i64},
      {"long", i64},        {"i32", i32},
      {"int32", i32},       {"int", i32},
      {"u8", u8},           {"uint8", u8},
      {"bool", boolean},    {"boolean", boolean},
      {"i8", i8},           {"int8", i8},
      {"i16", i16},         {"int16", i16},
      {"u16", u16},         {"uint16", u16},
      {"u32", u32},         {"uint32", u32},
      {"f8_e4m3", f8_e4m3}, {"float8_e4m3fn", f8_e4m3},
      {"f8_e5m2", f8_e5m2}, {"float8_e5m2", f8_e5m2},
      {"f8_e8m0", f8_e8m0}, {"float8_e8m0fnu", f8_e8m0},
  };
  std::string accepted;
  for (const auto& n : names) {
    if (std::ranges::equal(n.name, text, {}, {}, [](char c) { return std::tolower(c); }))
      return n.dtype;
    accepted += accepted.empty() ? "" : ", ";
    accepted += n.name;
  }
  fail("unknown dtype '{}'; known are {}", text, accepted);
}

void detail::refuse(DType t) {
  check(!only_stores(t), "{} elements are stored, but not computed with (convert them)", name(t));
  fail("expected a float dtype, got {} (convert it{})", name(t),
       t == u8 ? "; train::transforms::to_float() for images" : "");
}
void detail::refuse(DType in, DType out) {
  fail("from {} a kernel writes {}{}, not {} (convert the result)", name(in), name(in),
       is_half(in) ? " or f32" : "", name(out));
}

}  // namespace mixtape
