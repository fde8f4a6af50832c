#pragma once
// Attributes of functions and lambdas whose arguments must stay in their caller's registers.

#define MIXTAPE_ALWAYS_INLINE [[gnu::always_inline]] inline
#define MIXTAPE_INLINE_LAMBDA __attribute__((always_inline))
