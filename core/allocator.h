#pragma once
// The memory of tensors and kernels. Freed blocks are cached in size classes, so a training step in
// steady state makes no system call. Statistics count live blocks, not cached ones.

#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace mixtape {

enum class MemoryOf : uint8_t { Tensors, Kernels };  // who holds it; kernels only during a call

// 64-byte aligned (256 on a device), uninitialised. Zero bytes give a valid, distinct pointer.
// If the system has no more, empties the cache, tries again, and then throws Error with the bytes
// requested, in use, reserved and at peak. A device's block belongs to a stream (by number): once
// released, only that stream reuses it, since its later work runs after its earlier work.
void* allocate(size_t bytes, Device device, int stream = -1, MemoryOf use = MemoryOf::Tensors);
// Takes a block back, with the arguments that allocate() was given.
void release(void* block, size_t bytes, Device device, int stream = -1,
             MemoryOf use = MemoryOf::Tensors) noexcept;

struct MemoryStats {       // of one device, by all threads
  int64_t in_use = 0;      // bytes held by live blocks of tensors
  int64_t peak = 0;        // the largest in_use since reset_peak(); see amp/plan.h
  int64_t peak_total = 0;  // the same, with the scratch memory that each thread of a kernel may use
  int64_t reserved = 0;    // bytes taken from the system: in use or kept for reuse
  int64_t allocations = 0;   // blocks allocated since the start
  int64_t system_calls = 0;  // allocations that the cache could not serve
};
MemoryStats memory_stats(Device device = DefaultDevice::current());  // as of now
void reset_peak(Device device = DefaultDevice::current());  // restarts peaks at what is in use
// Returns unused blocks to the system. Does nothing during a capture, when a device cannot free.
void empty_cache(Device device = DefaultDevice::current());

namespace internal {
// While held, memory that a stream has freed stays with that stream, since captured work uses it.
// Afterwards it goes to the stream that the work ran in.
void hold_cache(Device device, int stream);
void let_cache_go(Device device, int stream, int home) noexcept;  // ends the hold
}  // namespace internal

}  // namespace mixtape
