#pragma once
// Launch: a kernel call's device, stream and scratch memory, which lives until the call ends.

#include "core/allocator.h"
#include "core/inline_vector.h"
#include "core/kernel_watch.h"
#include "core/no_copy.h"
#include "core/stream.h"
#include "core/tf32.h"
#include "core/thread_state.h"
#include "core/view.h"
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {

class Launch : NoCopy {
 public:
  explicit Launch(Device on) : device(on) {
    if (device.is_host()) {
      if (internal::captured_graph) [[unlikely]]
        internal::check_no_capture("the CPU runs at once, and a replay does not repeat it");
      return;
    }
    const Stream& mine = Stream::current(device);
    number_ = mine.number;
    stream = mine.handle;
    runtime::of(device.type).select(device.index);
  }
  MIXTAPE_ALWAYS_INLINE ~Launch() {
    for (const Scratch& b : scratch_) release(b.data, b.bytes, device, number_, MemoryOf::Kernels);
  }

  // Uninitialised, 64-byte aligned, valid until the launch is destroyed.
  template <class T>
  MIXTAPE_ALWAYS_INLINE T* scratch(int64_t count) {
    return static_cast<T*>(memory(static_cast<size_t>(count) * sizeof(T)));
  }

  const Device device;
  void* stream = nullptr;  // a cudaStream_t on CUDA
  const bool tf32 = Tf32::allowed();

 private:
  void* memory(size_t bytes);

  struct Scratch {
    void* data;
    size_t bytes;
  };
  int number_ = -1;  // the number of the stream
  InlineVector<Scratch, 4> scratch_;
};

// The error that a kernel of the CPU alone was called on another device.
[[noreturn]] void refuse(const char* kernel, Device device);

}  // namespace mixtape::kernels
