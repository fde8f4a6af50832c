#pragma once
// check(): states a precondition in host code.

#include <fmt/core.h>

#include <type_traits>
#include <utility>

#include "core/error.h"

namespace mixtape {

// A format string, verified at compile time, with its source location.
template <class... Args>
struct Located {
  fmt::format_string<Args...> text;
  SourceLocation where;

  template <class S>
  consteval Located(const S& s, SourceLocation w = SourceLocation::here()) : text(s), where(w) {}
};

// Unconditional failure with a formatted message.
template <class... Args>
[[noreturn, gnu::cold]] void fail(Located<std::type_identity_t<Args>...> message, Args&&... args) {
  raise(fmt::format(message.text, std::forward<Args>(args)...), message.where);
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
