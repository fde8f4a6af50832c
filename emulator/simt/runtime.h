#pragma once
// Control of the emulated runtime, for tests.

#include <atomic>
#include <cstdint>

namespace mixtape::simt {

// While one is alive, or with MIXTAPE_LATE in the environment, streams do nothing until they are
// waited for: the device is far behind the host. Memory that the host reads, changes or frees too
// early, or that a stream reads without waiting for another, then has wrong values.
class LateStreams {
 public:
  LateStreams() { ++alive_; }
  ~LateStreams() noexcept(false);  // runs all queued work; throws the Error of a kernel
  LateStreams(const LateStreams&) = delete;
  static bool any() { return alive_ > 0; }

 private:
  static std::atomic<int> alive_;
};

// While one is alive, boxes of the copy engine move some turns of the scheduler after they were
// asked for, by this seed, or as late as possible: when every thread of the block waits. With
// MIXTAPE_LATE_BOXES in the environment, all are late.
class BoxTiming {
 public:
  enum When { Random, Late };
  explicit BoxTiming(When when, uint32_t seed = 0)
      : was_late_(late_.exchange(when == Late)), old_seed_(seed_.exchange(seed)) {}
  ~BoxTiming() {
    late_ = was_late_;
    seed_ = old_seed_;
  }
  BoxTiming(const BoxTiming&) = delete;
  static bool late() { return late_; }
  static uint32_t seed() { return seed_; }

 private:
  static std::atomic<bool> late_;
  static std::atomic<uint32_t> seed_;
  const bool was_late_;
  const uint32_t old_seed_;
};

// While one is alive, the devices have no memory left but memory released meanwhile, and no kernel
// is loaded yet: the first launch of each needs some memory for its code.
class FullDevice {
 public:
  FullDevice();
  ~FullDevice();
  FullDevice(const FullDevice&) = delete;
  static bool can_load(const void* kernel);
};

// The index of the device that allocated the memory, or -1: the host.
int owner(const void* memory);

}  // namespace mixtape::simt
