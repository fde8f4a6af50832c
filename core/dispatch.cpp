#include "core/dispatch.h"

#include <string_view>

#include "core/check.h"

namespace mixtape {
namespace {

// Both leak, since destructors of statics may call ops.
std::vector<const OpInfo*>& catalogue() {
  static auto* const ops = new std::vector<const OpInfo*>;
  return *ops;
}
std::vector<const internal::Repeat*>& repeats() {
  static auto* const all = new std::vector<const internal::Repeat*>;
  return *all;
}

}  // namespace

std::span<const internal::Repeat* const> internal::all_repeats() { return repeats(); }
bool internal::list_repeat(const Repeat& repeat) {
  repeats().push_back(&repeat);
  return true;
}

const void* internal::Repetition::find(const std::type_info& type, int nth) const {
  for (size_t i = 0; how.arguments[i]; ++i)
    if (*how.arguments[i] == type && nth-- == 0) return arguments[i];
  fail("{} has fewer arguments of type {} than were asked for", how.op.name, type.name());
}

std::span<const OpInfo* const> all_ops() { return catalogue(); }
bool list_op(const OpInfo& op) {
  catalogue().push_back(&op);
  return true;
}

std::string_view name(Precision p) {
  constexpr std::string_view names[] = {"Any", "Native", "Low", "Full", "Widest"};
  return names[static_cast<int>(p)];
}

}  // namespace mixtape
