#pragma once
// OutOfMemory: operator new fails on this thread. For one file of a program: it replaces the
// global operators. (Tensors' elements come from posix_memalign, which goes on.)

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "core/thread_state.h"

namespace mixtape::test {

struct MemoryState {
  bool is_out = false;
  static MemoryState& current() {
    static thread_local constinit MemoryState state;
    return state;
  }
};
struct OutOfMemory : ScopedValue<&MemoryState::is_out> {
  OutOfMemory() : ScopedValue(true) {}
};

inline void* allocated(size_t bytes, size_t alignment = 0) {
  void* block = nullptr;
  alignment = std::max(alignment, alignof(std::max_align_t));
  if (MemoryState::current().is_out || posix_memalign(&block, alignment, bytes) != 0)
    throw std::bad_alloc();
  return block;
}

}  // namespace mixtape::test

void* operator new(size_t n) { return mixtape::test::allocated(n); }
void* operator new(size_t n, std::align_val_t a) { return mixtape::test::allocated(n, size_t(a)); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
