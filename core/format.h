#pragma once
// Formatters for the library's types: fmt::print("{} {:>8} {:.3f}\n", x.shape(), x.dtype(), x). A
// specification is fmt's own, for text or for each element; with one, a tensor prints elements
// only. (It is read at run time: fmt 9's parser, inlined here, draws a false warning from g++ 12 at
// -O3.)

#include "core/check.h"  // includes fmt
#include "core/op_info.h"
#include "core/tensor.h"

namespace mixtape::internal {
// "a, b and 3 more": at most that many names of a list, for messages.
std::string listed(std::span<const std::string> names, size_t most);
}  // namespace mixtape::internal

namespace mixtape::detail {
std::string to_string(std::string_view text, std::string_view spec);
std::string to_string(const Tensor& x, std::string_view spec);

struct PlainFormatter {
  std::string_view spec;

  constexpr auto parse(fmt::format_parse_context& ctx) {
    auto end = ctx.begin();
    while (end != ctx.end() && *end != '}') ++end;
    if (end != ctx.begin()) spec = {&*ctx.begin(), size_t(end - ctx.begin())};
    return end;
  }
  static auto write(std::string_view text, fmt::format_context& ctx) {
    auto out = ctx.out();
    for (const char c : text) *out++ = c;
    return out;
  }
};
inline std::string_view text_of(DType t) { return name(t); }
inline std::string_view text_of(Precision p) { return name(p); }
inline std::string text_of(const Shape& s) { return s.to_string(); }
inline std::string text_of(const std::same_as<Device> auto& d) {  // not of text, which converts
  return d.to_string();
}
inline std::string text_of(const Tensor& x) { return to_string(x); }  // also BoolTensor
template <class T>
struct Formatter : PlainFormatter {
  auto format(const T& t, fmt::format_context& ctx) const {
    if (spec.empty()) return write(text_of(t), ctx);
    if constexpr (std::is_base_of_v<Tensor, T>)
      return write(to_string(t, spec), ctx);
    else
      return write(to_string(text_of(t), spec), ctx);
  }
};
}  // namespace mixtape::detail

template <class T>
  requires requires(const T& t) { mixtape::detail::text_of(t); }
struct fmt::formatter<T> : mixtape::detail::Formatter<T> {};
// Explicit, since for fmt/ranges.h a Shape is a range, which makes the template ambiguous.
template <>
struct fmt::formatter<mixtape::Shape> : mixtape::detail::Formatter<mixtape::Shape> {};
