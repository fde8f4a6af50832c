// Delivery of warnings.
#include "core/warn.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace mixtape {
namespace {

thread_local OnWarning* innermost_listener = nullptr;

}  // namespace

OnWarning::OnWarning(std::function<void(const std::string&)> tell)
    : tell_(std::move(tell)), outer_(std::exchange(innermost_listener, this)) {}
OnWarning::~OnWarning() { innermost_listener = outer_; }

void warn(const std::string& text) {
  if (innermost_listener) {
    std::vector<std::string>& told = innermost_listener->told_;
    if (std::ranges::find(told, text) == told.end()) {
      told.push_back(text);
      innermost_listener->tell_(text);
    }
    return;
  }
  static std::mutex mutex;
  static auto* const told = new std::set<std::string>;  // for destructors of statics, too
  const std::lock_guard lock(mutex);
  if (told->insert(text).second) std::fprintf(stderr, "mixtape: warning: %s\n", text.c_str());
}

}  // namespace mixtape
