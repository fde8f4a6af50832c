#pragma once
// What tests may ask of the emulated runtime.

#include <atomic>

namespace mixtape::simt {

// While one is alive, or with MIXTAPE_LATE in the environment, streams do nothing until somebody
// waits for them: the device is far behind the host. What the host reads, changes or frees too
// early, and what one stream takes from another without waiting, then goes wrong.
class LateStreams {
 public:
  LateStreams() { ++alive_; }
  ~LateStreams() noexcept(false);  // catches up; throws the Error of a kernel
  LateStreams(const LateStreams&) = delete;
  static bool any() { return alive_ > 0; }

 private:
  static std::atomic<int> alive_;
};

}  // namespace mixtape::simt
