#pragma once
// What a CUDA device offers below the kernels: memory, streams, copies. A program links one of
// three implementations: CUDA's, the emulator's, or that of a build without CUDA, which has no
// device.

#include <cstddef>
#include <cstdint>
#include <string>

namespace mixtape::runtime {

inline constexpr int max_devices = 16;

struct Properties {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int64_t memory = 0;  // bytes
};

int device_count();              // 0 where there is no device or no driver
std::string no_device_reason();  // why device_count() is 0: one line
const Properties& properties(int device);

void select(int device);  // what this thread starts runs there
// Device memory, or null if there is none left. Throws Error if the device fails otherwise.
void* allocate(size_t bytes, int device);
void release(void* block, int device) noexcept;
#ifdef MIXTAPE_EMULATED
int owner(const void* memory);  // the device whose it is; -1: the host's
#endif
// Host memory that a device copies from and to while the host goes on; null if there is none left.
void* allocate_pinned(size_t bytes) noexcept;

// A queue of work that a device does in order.
using Handle = void*;
Handle create_stream(int device);
// What is queued on `other` so far comes before what `waiting` gets from now on.
void wait(Handle waiting, int device, Handle other, int other_device);
void synchronize(Handle stream, int device);  // returns when the stream is empty
// Returns when all that anybody queued on the device is done, other libraries as well.
void finish(int device) noexcept;
// Queues a copy between any two places; host memory must be pinned or stay as it is until then.
void copy(void* to, const void* from, size_t bytes, Handle stream, int device);

// A point in a stream that the host can ask about.
using Mark = void*;
Mark create_mark(int device, bool timed);
void destroy_mark(Mark mark) noexcept;
void record(Mark mark, Handle stream, int device);
bool has_passed(Mark mark);
void wait_for(Mark mark);
double milliseconds_between(Mark first, Mark second);

// Names what follows for a profiler, until the matching end.
void begin_range(const char* name);
void end_range();

}  // namespace mixtape::runtime
