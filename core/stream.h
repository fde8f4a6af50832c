#pragma once
// Streams and what one does with them: each thread queues its work on a stream of its own per
// device, in order. A tensor that moves from one thread to another takes its order along (see
// core/storage.h), so programs rarely need anything from here but synchronize().

#include <cstdint>

#include "core/device.h"
#include "core/runtime.h"

namespace mixtape {

inline constexpr int max_streams = 64;

// One of at most so many streams; threads beyond share the last of their device. Its number tells
// it apart over all devices.
struct Stream {
  int number = -1;  // -1: of the CPU, which has none
  runtime::Handle handle = nullptr;

  static const Stream& current(Device device);  // this thread's, made on first use
  static const Stream& numbered(int number);
  // What this stream gets from now on comes after what `other` has so far.
  void wait_for(const Stream& other) const;
};

// Returns when all that this thread queued on the device is done. An error of a kernel shows here.
void synchronize(Device device);
// How often any thread waited for a device so far: what a training step should not do.
int64_t synchronizations();
void count_synchronization();      // for what waits by other means
int64_t orders_between_streams();  // how often one stream was made to wait for another

// Copies bytes from one device to another, or within one, in the order of this thread's streams.
// What the host reads is there when the call returns; a source in host memory may change after it.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes);

// A point in this thread's stream, for timing what runs between two of them. On the CPU, the time.
class Event : NoCopy {
 public:
  explicit Event(Device device);  // recorded now
  ~Event();

  void record();            // anew
  bool has_passed() const;  // without waiting
  void synchronize() const;
  double milliseconds_until(const Event& later) const;  // waits for both

 private:
  Device device_;
  runtime::Mark mark_ = nullptr;
  int64_t nanoseconds_ = 0;
};

// Names what a profiler sees while alive.
class Range : NoCopy {
 public:
  [[nodiscard]] explicit Range(const char* name) { runtime::cuda().begin_range(name); }
  ~Range() { runtime::cuda().end_range(); }
};

}  // namespace mixtape
