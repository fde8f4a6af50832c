// The CUDA runtime of a build without CUDA: no device, so nothing else is ever called.
#include "core/check.h"
#include "core/kernel_watch.h"
#include "core/runtime.h"

namespace mixtape::runtime {
namespace {

class Absent final : public Runtime {
  [[noreturn]] void refuse() const { fail("{}", no_device_reason()); }

 public:
  int device_count() const override { return 0; }
  std::string no_device_reason() const override {
    return "this build has no CUDA kernels (-Dcuda=enabled)";
  }
  const Properties& properties(int) const override { refuse(); }
  void select(int) const override { refuse(); }
  void* allocate(size_t, int) const override { return nullptr; }
  void release(void*, int) const noexcept override {}
  void* allocate_pinned(size_t) const noexcept override { return nullptr; }
  Handle create_stream(int) const override { refuse(); }
  void wait(Handle, int, Handle, int) const override { refuse(); }
  void synchronize(Handle, int) const override { refuse(); }
  void finish(int) const noexcept override {}
  void copy(void*, const void*, size_t, Handle, int) const override { refuse(); }
  Mark create_mark(int, bool) const override { refuse(); }
  void destroy_mark(Mark) const noexcept override {}
  void record(Mark, Handle, int) const override { refuse(); }
  bool has_passed(Mark, int) const override { refuse(); }
  void wait_for(Mark, int) const override { refuse(); }
  double milliseconds_between(Mark, Mark, int) const override { refuse(); }
  void begin_capture(Handle, int) const override { refuse(); }
  Captured end_capture(Handle, int) const override { refuse(); }
  void launch(Captured, Handle, int) const override { refuse(); }
  void destroy(Captured) const noexcept override {}
  void begin_range(const char*) const override {}
  void end_range() const override {}
};

}  // namespace

const Runtime& cuda() {
  static const Absent absent;
  return absent;
}

}  // namespace mixtape::runtime

mixtape::internal::KernelWatch* const mixtape::internal::kernel_watch = nullptr;
