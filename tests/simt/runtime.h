#pragma once
// What tests may ask of the emulated runtime.

#include <atomic>

namespace mixtape::simt {

// While one is alive, no mark in a stream has passed until somebody waits for it: the device is far
// behind the host.
class LateMarks {
 public:
  LateMarks() { ++alive_; }
  ~LateMarks() { --alive_; }
  LateMarks(const LateMarks&) = delete;
  static bool any() { return alive_ > 0; }

 private:
  static std::atomic<int> alive_;
};

}  // namespace mixtape::simt
