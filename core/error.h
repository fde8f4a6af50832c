#pragma once
// The one exception type. Free of fmt, so that CUDA sources may include it.

#include <stdexcept>
#include <string>

#include "core/cxx20.h"

namespace mixtape {

class Error : public std::runtime_error {  // its text is made by raise().
  using std::runtime_error::runtime_error;
};

// Where a check was written. (Not std::source_location: clang 14 lacks it.)
struct SourceLocation {
  const char* file;
  int line;
  // As a function's default argument: the place of the call.
  static constexpr SourceLocation here(const char* file = __builtin_FILE(),
                                       int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Throws Error. The message is prefixed with the path of the module and the name of the op now
// running on this thread, and followed by the place that raised it.
[[noreturn]] void raise(const std::string& message, SourceLocation where = SourceLocation::here());

}  // namespace mixtape
