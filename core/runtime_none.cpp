// The runtime of a build without CUDA: no device, so nothing else is ever asked.
#include "core/check.h"
#include "core/runtime.h"

namespace mixtape::runtime {
namespace {
[[noreturn]] void absent() { fail("{}", no_device_reason()); }
}  // namespace

int device_count() { return 0; }
std::string no_device_reason() { return "this build has no CUDA kernels (-Dcuda=enabled)"; }
const Properties& properties(int) { absent(); }
void select(int) { absent(); }
void* allocate(size_t, int) { return nullptr; }
void release(void*, int) noexcept {}
void* allocate_pinned(size_t) noexcept { return nullptr; }
Handle create_stream(int) { absent(); }
void wait(Handle, int, Handle, int) { absent(); }
void synchronize(Handle, int) { absent(); }
void finish(int) noexcept {}
void copy(void*, const void*, size_t, Handle, int) { absent(); }
Mark create_mark(int, bool) { absent(); }
void destroy_mark(Mark) noexcept {}
void record(Mark, Handle, int) { absent(); }
bool has_passed(Mark) { absent(); }
void wait_for(Mark) { absent(); }
double milliseconds_between(Mark, Mark) { absent(); }
void begin_range(const char*) {}
void end_range() {}

}  // namespace mixtape::runtime
