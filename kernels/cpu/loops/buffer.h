#pragma once
// Buffer: uninitialised working memory of one task, from the allocator's cache. Unlike
// Launch::scratch it works on any thread, and is released when the task ends.

#include "core/allocator.h"
#include "core/no_copy.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

template <class T>
class Buffer : NoCopy {
 public:
  explicit Buffer(int64_t count)
      : bytes_(static_cast<size_t>(count) * sizeof(T)),
        data_(static_cast<T*>(allocate(bytes_, Device::cpu(), -1, MemoryOf::Kernels))) {}
  ~Buffer() { release(data_, bytes_, Device::cpu(), -1, MemoryOf::Kernels); }

  T* data() const { return data_; }

 private:
  size_t bytes_;
  T* data_;
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
