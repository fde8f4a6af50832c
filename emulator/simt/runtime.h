#pragma once
// Control of the emulated runtime, for tests.

#include <atomic>

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

}  // namespace mixtape::simt
