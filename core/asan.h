#pragma once
// MIXTAPE_ASAN: whether AddressSanitizer watches this program, as g++ and clang say it, or another
// that implements its interface for poisoning memory and is built with -DMIXTAPE_ASAN=1.

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
