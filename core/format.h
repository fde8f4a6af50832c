#pragma once
// Formatters for the library's types: fmt::print("{} {}\n", x.shape(), x.dtype()). No width or
// alignment: fmt 9's own parser of those, inlined here, draws a false warning from g++ 12 at -O3.

#include <fmt/core.h>

#include "core/op_info.h"
#include "core/tensor.h"

namespace mixtape::detail {
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  static auto write(std::string_view text, fmt::format_context& ctx) {
    auto out = ctx.out();
    for (const char c : text) *out++ = c;
    return out;
  }
};
inline std::string_view text_of(DType t) { return name(t); }
inline std::string_view text_of(Precision p) { return name(p); }
inline std::string text_of(const Shape& s) { return s.to_string(); }
inline std::string text_of(const Device& d) { return d.to_string(); }
inline std::string text_of(const Tensor& x) { return to_string(x); }  // also BoolTensor
template <class T>
struct Formatter : PlainFormatter {
  auto format(const T& t, fmt::format_context& ctx) const { return write(text_of(t), ctx); }
};
}  // namespace mixtape::detail

template <class T>
  requires requires(const T& t) { mixtape::detail::text_of(t); }
struct fmt::formatter<T> : mixtape::detail::Formatter<T> {};
// Explicit, since for fmt/ranges.h a Shape is a range, which makes the template ambiguous.
template <>
struct fmt::formatter<mixtape::Shape> : mixtape::detail::Formatter<mixtape::Shape> {};
