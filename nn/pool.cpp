#include "nn/pool.h"

#include "core/check.h"

namespace mixtape::nn {
using namespace internal;

Size2 checked_window(std::string_view module, Size2 w) {
  const Scope scope(module);
  check(w.h > 0 && w.w > 0, "the window must be > 0, got {} x {}", w.h, w.w);
  return w;
}
int64_t checked_window(std::string_view module, int64_t w) {
  const Scope scope(module);
  check(w > 0, "the window must be > 0, got {}", w);
  return w;
}

}  // namespace mixtape::nn
