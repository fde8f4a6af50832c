#pragma once
// Peak rates of the processor, measured by loops. Other figures are given relative to them.

#include <optional>

#include "core/dtype.h"

namespace mixtape::bench {

// Operations per second of multiply-adds in registers, for f32 or for bf16 pairs summed in f32, on
// that many threads. nullopt without bf16 arithmetic: then the peak of f32 counts, as for f16.
double fma_rate(int threads);
std::optional<double> bf16_rate(int threads);
// Bytes read and written per second by copies that touch that many bytes: the rate of the caches
// that hold them, or of memory.
double copy_rate(double bytes, int threads);

// The current rate of that dtype's arithmetic, from one run of its loop (half a millisecond).
double multiply_add_rate(DType dtype, int threads);

// Seconds. For one thread, its CPU time, which other processes do not affect.
double now(int threads);

}  // namespace mixtape::bench
