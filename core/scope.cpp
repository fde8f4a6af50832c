#include "core/scope.h"

#include <fmt/format.h>

#include <mutex>
#include <unordered_set>

#include "core/check.h"
#include "core/format.h"

namespace mixtape {
using namespace internal;
namespace {

struct Interned {
  std::mutex mutex;
  std::unordered_set<std::string> texts;  // elements never move
};
Interned& table() {
  static auto* const interned = new Interned;  // leaked, since destructors of statics may read it
  return *interned;
}

}  // namespace

const std::string* intern(std::string_view text) {
  const std::lock_guard lock(table().mutex);
  return &*table().texts.emplace(text).first;
}
std::vector<std::string_view> interned() {
  const std::lock_guard lock(table().mutex);
  return {table().texts.begin(), table().texts.end()};
}

std::string Scope::trail() {
  std::string ops;
  for (const Scope* s = thread_state.scope; s; s = s->outer)
    if (!s->op.empty() && !(s->outer && s->outer->op == s->op))  // a function and its op count once
      ops = fmt::format("{}: {}", s->op, ops);
  const std::string* module = module_path();
  if (!module) return ops;
  const std::string name = module->empty() && name_of_root ? name_of_root() : *module;
  return name.empty() ? ops : fmt::format("{}: {}", name, ops);
}

std::string_view Scope::caller() {
  const Scope* s = thread_state.scope;
  const std::string_view op = s ? s->op : "";
  while (s && (s->op == op || s->op.find(':') != op.npos)) s = s->outer;  // a SourceScope is none
  return s ? s->op : "";
}

SourceScope::SourceScope(SourceLocation where)
    : text_(fmt::format(
          "{}:{}",
          std::string_view(where.file).substr(std::string_view(where.file).find_last_of('/') + 1),
          where.line)) {}

void raise(const std::string& message, SourceLocation where) {
  throw Error(fmt::format("{}{}\n  at {}:{}", Scope::trail(), message, where.file, where.line));
}

}  // namespace mixtape
