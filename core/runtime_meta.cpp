// The runtime of meta: it hands out addresses without memory behind them, and runs no work.
#include <array>
#include <atomic>

#include "core/runtime.h"

namespace mixtape::runtime {
namespace {

class Meta final : public Runtime {
 public:
  int device_count() const override { return int(DeviceType::meta); }
  std::string no_device_reason() const override { return {}; }
  const Properties& properties(int device) const override {
    // A GPU of the lowest capability that kernels are built for, so that ops choose what every GPU
    // has.
    static const std::array<Properties, int(DeviceType::meta)> all = {
        Properties{.name = "shapes of a CPU"}, Properties{.name = "shapes of a GPU", .major = 8}};
    return all[size_t(device)];
  }
  void select(int) const override {}
  // Addresses that no memory can have: the processor accepts none there.
  void* allocate(size_t bytes, int) const override {
    static std::atomic<uintptr_t> next{uintptr_t{1} << 62};
    return reinterpret_cast<void*>(next.fetch_add(bytes, std::memory_order_relaxed));
  }
  void release(void*, int) const noexcept override {}
  void* allocate_pinned(size_t) const noexcept override { return nullptr; }  // nothing is copied
  Handle create_stream(int) const override { return nullptr; }
  void wait(Handle, int, Handle, int) const override {}
  void synchronize(Handle, int) const override {}
  void finish(int) const noexcept override {}
  void copy(void*, const void*, size_t, Handle, int) const override {}
  Mark create_mark(int, bool) const override { return nullptr; }
  void destroy_mark(Mark) const noexcept override {}
  void record(Mark, Handle, int) const override {}
  bool has_passed(Mark, int) const override { return true; }
  void wait_for(Mark, int) const override {}
  double milliseconds_between(Mark, Mark, int) const override { return 0; }
  void begin_range(const char*) const override {}
  void end_range() const override {}
  void begin_capture(Handle, int) const override {}
  Captured end_capture(Handle, int) const override { return nullptr; }
  void launch(Captured, Handle, int) const override {}
  void destroy(Captured) const noexcept override {}
};

}  // namespace

const Runtime& meta() {
  static const Meta runtime;
  return runtime;
}

}  // namespace mixtape::runtime
