#pragma once
// MIXTAPE_TARGET: an inline namespace named after the instruction set of this file. Files that are
// compiled with different flags include the same SIMD code, and the linker never merges their
// copies.

#if defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)
#define MIXTAPE_TARGET avx512_bf16
#elif defined(__AVX512BW__) && defined(__AVX512VL__)
#define MIXTAPE_TARGET avx512
#elif defined(__AVX2__)
#define MIXTAPE_TARGET avx2
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MIXTAPE_TARGET neon_bf16
#elif defined(__aarch64__)
#define MIXTAPE_TARGET neon
#else
#define MIXTAPE_TARGET portable
#endif
