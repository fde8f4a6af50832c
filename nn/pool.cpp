#include "nn/pool.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"

namespace mixtape::nn {
using namespace internal;
namespace {

void check_window(const std::type_info& module, std::initializer_list<int64_t> sizes) {
  const std::string name = type_name(module);
  const Scope scope(name);
  check(std::min(sizes) > 0, "the window must be > 0, got {}", fmt::join(sizes, " x "));
}

}  // namespace

int64_t checked_window(const std::type_info& module, int64_t w) {
  check_window(module, {w});
  return w;
}
Size2 checked_window(const std::type_info& module, Size2 w) {
  check_window(module, {w.h, w.w});
  return w;
}
Size3 checked_window(const std::type_info& module, Size3 w) {
  check_window(module, {w.d, w.h, w.w});
  return w;
}

}  // namespace mixtape::nn
