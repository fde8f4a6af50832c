#pragma once
// MIXTAPE_ASAN: 1 if the program is built with AddressSanitizer, or with -DMIXTAPE_ASAN=1 for
// another tool that implements its interface for poisoning memory.

#include <cstddef>

#if defined(MIXTAPE_ASAN)
#elif defined(__SANITIZE_ADDRESS__)
#define MIXTAPE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MIXTAPE_ASAN 1
#endif
#endif
#ifndef MIXTAPE_ASAN
#define MIXTAPE_ASAN 0
#endif

#if MIXTAPE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace mixtape {

// Makes access to this memory an error, and allows it again.
inline void poison([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) noexcept {
#if MIXTAPE_ASAN
  __asan_poison_memory_region(memory, bytes);
#endif
}
inline void unpoison([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) noexcept {
#if MIXTAPE_ASAN
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

}  // namespace mixtape
