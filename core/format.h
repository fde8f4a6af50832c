#pragma once
// fmt knows our types: fmt::print("{} {}\n", x.shape(), x.dtype()). They take no width or
// alignment: fmt 9's own parser of those, inlined here, draws a false warning from g++ 12 at -O3.

#include <fmt/core.h>

#include <concepts>

#include "core/op_info.h"
#include "core/tensor.h"

namespace mixtape::detail {
struct PlainFormatter {
  constexpr auto parse(fmt::format_parse_context& ctx) { return ctx.begin(); }
  static auto write(std::string_view text, fmt::format_context& ctx) {
    return fmt::format_to(ctx.out(), "{}", text);
  }
};
}  // namespace mixtape::detail

template <>
struct fmt::formatter<mixtape::DType> : mixtape::detail::PlainFormatter {
  auto format(mixtape::DType t, format_context& ctx) const { return write(mixtape::name(t), ctx); }
};
template <>
struct fmt::formatter<mixtape::Precision> : mixtape::detail::PlainFormatter {
  auto format(mixtape::Precision p, format_context& ctx) const {
    return write(mixtape::name(p), ctx);
  }
};
template <>
struct fmt::formatter<mixtape::Shape> : mixtape::detail::PlainFormatter {
  auto format(const mixtape::Shape& s, format_context& ctx) const {
    return write(s.to_string(), ctx);
  }
};
template <>
struct fmt::formatter<mixtape::Device> : mixtape::detail::PlainFormatter {
  auto format(const mixtape::Device& d, format_context& ctx) const {
    return write(d.to_string(), ctx);
  }
};
template <std::derived_from<mixtape::Tensor> T>  // what a < b gives, too
struct fmt::formatter<T> : mixtape::detail::PlainFormatter {
  auto format(const mixtape::Tensor& x, format_context& ctx) const {
    return write(mixtape::to_string(x), ctx);
  }
};
