#pragma once
// check(): states a precondition in host code.

#if __has_include(<fmt/base.h>)  // since fmt 11; vformat() is elsewhere then
#include <fmt/base.h>

#include <iterator>
#else
#include <fmt/core.h>
#endif

#include <string>
#include <type_traits>
#include <utility>

#include "core/error.h"

namespace mixtape {

// A format string, verified at compile time, with its source location.
template <class... Args>
struct Located {
  fmt::string_view text;
  SourceLocation where;

  template <class S>  // a literal, which must fit Args to compile
  consteval Located(const S& s, SourceLocation w = SourceLocation::here()) : text(s), where(w) {
    static_cast<void>(fmt::format_string<Args...>(s));
  }
};

namespace detail {
#if __has_include(<fmt/base.h>)
inline std::string vformat(fmt::string_view text, fmt::format_args args) {
  std::string result;
  fmt::vformat_to(std::back_inserter(result), text, args);
  return result;
}
#else
using fmt::vformat;
#endif
}  // namespace detail

// Unconditional failure with a formatted message.
template <class... Args>
[[noreturn, gnu::cold]] void fail(Located<std::type_identity_t<Args>...> message, Args&&... args) {
  raise(detail::vformat(message.text, fmt::make_format_args(args...)), message.where);
}

// check(a == b, "inner dimensions differ: {} and {}", a, b);
// The message need not name the op, since raise() adds it. Inlined, so that only a failure
// evaluates the message.
template <class... Args>
[[gnu::always_inline]] inline void check(bool ok, Located<std::type_identity_t<Args>...> message,
                                         Args&&... args) {
  if (!ok) [[unlikely]]
    fail<Args...>(message, std::forward<Args>(args)...);
}

}  // namespace mixtape
