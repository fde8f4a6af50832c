// The runtime of the emulator: two devices whose memory is the host's. Work is done when it is
// queued, so every stream is always empty.
#include "tests/simt/runtime.h"

#include "core/runtime.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace mixtape::simt {

std::atomic<int> LateMarks::alive_{0};

}  // namespace mixtape::simt

namespace mixtape::runtime {
namespace {

using Clock = std::chrono::steady_clock;

void* host_memory(size_t bytes) noexcept {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}

}  // namespace

int device_count() { return 2; }
std::string no_device_reason() { return {}; }
const Properties& properties(int) {
  static const Properties emulated{"the emulator", 8, 0, 2, int64_t{8} << 30};
  return emulated;
}
void select(int) {}
void* allocate(size_t bytes, int) {
  return bytes > size_t(properties(0).memory) ? nullptr : host_memory(bytes);
}
void release(void* block, int) noexcept { std::free(block); }
void* allocate_pinned(size_t bytes) noexcept { return host_memory(bytes); }
void release_pinned(void* block) noexcept { std::free(block); }
Handle create_stream(int) { return nullptr; }
void wait(Handle, int, Handle, int) {}
void synchronize(Handle, int) {}
void copy(void* to, const void* from, size_t bytes, Handle, int) { std::memcpy(to, from, bytes); }
struct Point {
  Clock::time_point when;
  bool waited_for = false;
};
Mark create_mark(int, bool) { return new Point; }
void destroy_mark(Mark mark) noexcept { delete static_cast<Point*>(mark); }
void record(Mark mark, Handle, int) { *static_cast<Point*>(mark) = {Clock::now()}; }
bool has_passed(Mark mark) {
  return static_cast<Point*>(mark)->waited_for || !simt::LateMarks::any();
}
void wait_for(Mark mark) { static_cast<Point*>(mark)->waited_for = true; }
double milliseconds_between(Mark first, Mark second) {
  const auto at = [](Mark m) { return static_cast<Point*>(m)->when; };
  return std::chrono::duration<double, std::milli>(at(second) - at(first)).count();
}
void begin_range(const char*) {}
void end_range() {}

}  // namespace mixtape::runtime
