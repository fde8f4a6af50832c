#pragma once
// Streams, events and copies. Each thread has its own stream per device; tensors that move between
// threads stay in order (see core/storage.h), so programs rarely need more than synchronize().

#include <cstdint>

#include "core/device.h"
#include "core/runtime.h"

namespace mixtape {

inline constexpr int max_streams = 64;  // of all devices together

// One of at most max_streams, numbered over all devices; further threads share their device's last.
struct Stream {
  int number = -1;  // -1: the CPU, which has no streams
  runtime::Handle handle = nullptr;

  static const Stream& current(Device device);  // this thread's, made on first use
  static const Stream& numbered(int number);    // one that was made before
  // Orders later work on this stream after the work on `other` so far.
  void wait_for(const Stream& other) const;
};

// Waits for all work that this thread queued on the device. Kernel errors surface here.
void synchronize(Device device);
// The number of waits for a device by any thread so far; a training step should make none.
int64_t synchronizations();
void count_synchronization();      // for waits by other means
int64_t orders_between_streams();  // waits of one stream for another

// Copies bytes between or within devices, in the order of this thread's streams. A copy to the host
// is complete on return; host memory that is copied from may change then.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

namespace runtime {

// A point in this thread's stream, for timing the work between two; on the CPU, a time stamp.
class Event : NoCopy {
 public:
  explicit Event(Device device);  // records
  ~Event();

  void record();                                        // again
  bool has_passed() const;                              // without waiting
  void synchronize() const;                             // waits until it has passed
  double milliseconds_until(const Event& later) const;  // waits for both

 private:
  Device device_;
  Mark mark_ = nullptr;
  int64_t nanoseconds_ = 0;
};

// A named range in a profiler's timeline, while alive.
class Range : NoCopy {
 public:
  [[nodiscard]] explicit Range(const char* name) { cuda().begin_range(name); }  // may be nested
  ~Range() { cuda().end_range(); }
};

}  // namespace runtime

}  // namespace mixtape
