#pragma once
// Scope: the module and op that a thread is in. Errors, profilers and policies read it.

#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/thread_state.h"

namespace mixtape {

namespace internal {

// Opened by every module and op. Costs two stores.
class Scope : NoCopy {
 public:
  // `module` is an interned path, or null to stay in the module of the enclosing scope.
  explicit Scope(std::string_view op, const std::string* module = nullptr);
  ~Scope();

  static const Scope* innermost();          // of this thread, or null
  static const std::string* module_path();  // of the innermost module, or null
  // The text of module_path(), or of a Node's module; "" for null.
  static std::string path_text(const std::string* path = module_path()) {
    return path ? *path : "";
  }
  static std::string trail();  // "decoder.2: linear: matmul: ", as errors begin
  // Names the outermost module, whose path is empty, by its type in trail(). Set by nn.
  static inline std::string (*name_of_root)() = nullptr;
  static std::string_view caller();  // the op that called the innermost one, or ""

  const std::string_view op;  // empty for a module's scope
  const std::string* const module;
  const Scope* const outer;
};

}  // namespace internal

// A pointer that lives as long as the process and is equal for equal text.
const std::string* intern(std::string_view text);
// All interned texts: the module paths of every root that ran. Unordered.
std::vector<std::string_view> interned();

// A scope in user code: errors inside it name its source line, "model.cpp:42".
class SourceScope {
 public:
  // By default names the line on which it is constructed.
  [[nodiscard]] explicit SourceScope(SourceLocation where = SourceLocation::here());

 private:
  const std::string text_;
  const internal::Scope scope_{text_};
};

inline internal::Scope::Scope(std::string_view name, const std::string* path)
    : op(name),
      module(path                 ? path
             : thread_state.scope ? thread_state.scope->module
                                  : nullptr),
      outer(thread_state.scope) {
  thread_state.scope = this;
}
inline internal::Scope::~Scope() { thread_state.scope = outer; }
inline const internal::Scope* internal::Scope::innermost() { return thread_state.scope; }
inline const std::string* internal::Scope::module_path() {
  return thread_state.scope ? thread_state.scope->module : nullptr;
}

}  // namespace mixtape
