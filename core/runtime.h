#pragma once
// The services of a type of device below the kernels: memory, streams, copies. For CUDA a program
// links one of three: the driver's, the emulator's, or one without devices in a build without CUDA.
// Meta's hands out addresses and does nothing.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"

namespace mixtape::runtime {

struct Properties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0;  // bytes
};

using Handle = void*;    // a stream: a queue of work that a device does in order
using Mark = void*;      // an event: a point in a stream that the host can query
using Captured = void*;  // a graph: what a stream was given during a capture

// The devices of one type; `device` is an index among them. Unless noexcept, functions throw Error.
class Runtime {
 public:
  virtual int device_count() const = 0;              // 0 without a device or a driver
  virtual std::string no_device_reason() const = 0;  // why device_count() is 0: one line
  virtual const Properties& properties(int device) const = 0;

  virtual void select(int device) const = 0;                   // for what this thread launches next
  virtual void* allocate(size_t bytes, int device) const = 0;  // null if there is none left
  virtual void release(void* block, int device) const noexcept = 0;
  // Pinned host memory, which a device copies asynchronously; null if there is none left.
  virtual void* allocate_pinned(size_t bytes) const noexcept = 0;

  virtual Handle create_stream(int device) const = 0;
  // Work queued on `waiting` from now on runs after all work queued on `other` so far.
  virtual void wait(Handle waiting, int device, Handle other, int other_device) const = 0;
  virtual void synchronize(Handle stream, int device) const = 0;  // returns when it is empty
  // Returns when all streams of the device are empty, those of other libraries as well.
  virtual void finish(int device) const noexcept = 0;
  // Queues a copy between any two places; host memory must be pinned or outlive the copy.
  virtual void copy(void* to, const void* from, size_t bytes, Handle stream, int device) const = 0;

  virtual Mark create_mark(int device, bool timed) const = 0;
  virtual void destroy_mark(Mark mark) const noexcept = 0;
  virtual void record(Mark mark, Handle stream, int device) const = 0;
  virtual bool has_passed(Mark mark, int device) const = 0;  // true if it was never recorded
  virtual void wait_for(Mark mark, int device) const = 0;
  virtual double milliseconds_between(Mark first, Mark second, int device) const = 0;

  // A named range in the profiler's timeline, until the matching end.
  virtual void begin_range(const char* name) const = 0;
  virtual void end_range() const = 0;

  // From now on the stream records this thread's work instead of running it. Until the end it can
  // neither be waited for nor marked.
  virtual void begin_capture(Handle stream, int device) const = 0;
  virtual Captured end_capture(Handle stream, int device) const = 0;
  virtual void launch(Captured work, Handle stream, int device) const = 0;
  virtual void destroy(Captured work) const noexcept = 0;

 protected:
  ~Runtime() = default;
};

const Runtime& cuda();                 // the linked implementation
const Runtime& meta();                 // its devices stand in for those of the other types
const Runtime& of(DeviceType type);    // any type but the host's
const std::vector<Device>& devices();  // all of this machine but the host and meta
// Remembers a launch. Kernels run later, and the error of one surfaces in any later call. The name
// must live as long as the process.
void note_launch(const char* kernel);
// For a CUDA error that a kernel may have caused: the names of the last 16 kernels that any thread
// launched, and how to find out which failed; for other errors "".
std::string last_launches(int code);
// The warning that the driver refuses a device to programs of this CUDA version (CUDART_VERSION).
std::string driver_warning(const std::string& reason, int cuda);

}  // namespace mixtape::runtime
