#pragma once
// Memory for tensors. Freed blocks are kept in size classes and handed out again, so a training
// step in steady state asks the system for nothing. Statistics count what tensors hold, not what is
// kept.

#include <cstddef>
#include <cstdint>

#include "core/device.h"

namespace mixtape {

// 64-byte aligned (256 on a device), uninitialised. Zero bytes give a valid, distinct pointer.
// Throws Error with requested, in use, reserved and peak bytes when the system has no more, after
// one retry on an emptied cache. On a device, a block belongs to a stream (its number; see
// core/stream.h): one that was released goes to the next who asks on that stream, whose work comes
// later.
void* allocate(size_t bytes, Device device, int stream = -1);
void release(void* block, size_t bytes, Device device, int stream = -1) noexcept;

struct MemoryStats {
  int64_t in_use = 0;        // bytes held by live blocks
  int64_t peak = 0;          // the most that in_use has been since reset_peak
  int64_t reserved = 0;      // bytes taken from the system: in use or kept for reuse
  int64_t allocations = 0;   // blocks handed out since the start
  int64_t system_calls = 0;  // how many of those had to ask the system
};
MemoryStats memory_stats(Device device = DefaultDevice::current());
void reset_peak(Device device = DefaultDevice::current());
void empty_cache(
    Device device = DefaultDevice::current());  // gives unused blocks back to the system

}  // namespace mixtape
