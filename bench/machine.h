#pragma once
// What the processor can do at best, by loops that do nothing else: the roof that every other
// figure is held against.

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"

namespace mixtape::bench {

// Operations per second of multiply-adds in registers, f32 or bf16 pairs summed in f32, on that
// many threads at once. No bf16 arithmetic: nullopt, and f32's is its roof, as it is f16's.
double fma_rate(int threads);
std::optional<double> bf16_rate(int threads);
// Bytes read and written per second by copies that touch so many bytes in all: by the caches they
// fit in. Beyond a cache's size, of memory.
double copy_rate(double bytes, int threads);

// The rate of that dtype's arithmetic at this moment, by one run of its loop (half a millisecond).
double multiply_add_rate(DType dtype, int threads);

// Seconds. What one thread does is timed by what it ran: others may be at work on the machine.
double now(int threads);

}  // namespace mixtape::bench
