#pragma once
// The memory of tensors and kernels. Freed blocks are cached in size classes, so a training step in
// steady state makes no system call. Statistics count live blocks, not cached ones.

#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace mixtape {

enum class MemoryOf : uint8_t { Tensors, Kernels };  // who holds it; kernels do during a call

// 64-byte aligned (256 on a device), uninitialised. Zero bytes give a valid, distinct pointer.
// Throws Error with requested, in use, reserved and peak bytes when the system has no more, after
// one retry on an emptied cache. A device's block belongs to a stream (by number): once released,
// it is reused on that stream alone, whose later work is ordered after the earlier.
void* allocate(size_t bytes, Device device, int stream = -1, MemoryOf use = MemoryOf::Tensors);
// Takes a block back, with the arguments that allocate() was given.
void release(void* block, size_t bytes, Device device, int stream = -1,
             MemoryOf use = MemoryOf::Tensors) noexcept;

struct MemoryStats {         // of one device, by all threads
  int64_t in_use = 0;        // bytes held by live blocks of tensors
  int64_t peak = 0;          // the most that in_use has been since reset_peak: see amp/plan.h
  int64_t peak_total = 0;    // the most with scratch memory, which each thread of a kernel may have
  int64_t reserved = 0;      // bytes taken from the system: in use or kept for reuse
  int64_t allocations = 0;   // blocks allocated since the start
  int64_t system_calls = 0;  // allocations that the cache could not serve
};
MemoryStats memory_stats(Device device = DefaultDevice::current());  // as of now
void reset_peak(Device device = DefaultDevice::current());  // peaks begin again at what is in use
// Gives unused blocks back to the system; during a capture nothing, since a device could not.
void empty_cache(Device device = DefaultDevice::current());

namespace internal {
// While it is held, what a stream has freed stays there: captured work uses it. Then it goes to the
// stream that the work ran in.
void hold_cache(Device device, int stream);
void let_cache_go(Device device, int stream, int home) noexcept;  // ends that; it goes to `home`
}  // namespace internal

}  // namespace mixtape
