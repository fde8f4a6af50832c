#pragma once
// check(): states a precondition in host code.

#if __has_include(<fmt/base.h>)  // since fmt 11; neither has fmt::format in every version
#include <fmt/base.h>
#else
#include <fmt/core.h>
#endif

#include <iterator>
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

  template <class S>
  consteval Located(const S& s, SourceLocation w = SourceLocation::here()) : text(s), where(w) {
    static_cast<void>(fmt::format_string<Args...>(s));
  }
};

namespace detail {
[[noreturn, gnu::cold]] inline void fail_with(fmt::string_view text, fmt::format_args args,
                                              SourceLocation where) {
  std::string message;
  fmt::vformat_to(std::back_inserter(message), text, args);
  raise(message, where);
}
}  // namespace detail

// Unconditional failure with a formatted message.
template <class... Args>
[[noreturn, gnu::cold]] void fail(Located<std::type_identity_t<Args>...> message, Args&&... args) {
  detail::fail_with(message.text, fmt::make_format_args(args...), message.where);
}

// check(a == b, "inner dimensions differ: {} and {}", a, b);
// The message need not name the op: raise() does. Inlined, so that only a failure passes it.
template <class... Args>
[[gnu::always_inline]] inline void check(bool ok, Located<std::type_identity_t<Args>...> message,
                                         Args&&... args) {
  if (!ok) [[unlikely]]
    fail<Args...>(message, std::forward<Args>(args)...);
}

}  // namespace mixtape
