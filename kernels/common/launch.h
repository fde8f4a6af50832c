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
  ~Launch() {
    for (const Scratch& b : scratch_) release(b.data, b.bytes, device, number_, MemoryOf::Kernels);
  }

  // Uninitialised, 64-byte aligned, valid until the launch is destroyed.
  template <class T>
  T* scratch(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    void* const block = allocate(bytes, device, number_, MemoryOf::Kernels);
    void* const data = scratch_.push_back({block, bytes}).data;
    if (internal::kernel_watch) [[unlikely]]
      internal::kernel_watch->scratch(device, data, bytes);
    return static_cast<T*>(data);
  }

  const Device device;
  void* stream = nullptr;  // a cudaStream_t on CUDA
  const bool tf32 = Tf32::allowed();

 private:
  struct Scratch {
    void* data;
    size_t bytes;
  };
  int number_ = -1;  // the number of the stream
  InlineVector<Scratch, 4> scratch_;
};

}  // namespace mixtape::kernels
