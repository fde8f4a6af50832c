#pragma once
// Packed: the second operand of several matrix products, as the first of them packed it. Recurrent
// layers multiply by one weight in every step, and packing it takes up to half as long as a product
// of few rows.

#include "core/allocator.h"
#include "core/no_copy.h"
#include "kernels/common/always_inline.h"

namespace mixtape::kernels {

// Products that share one have equal shapes, dtypes and strides, and the same b. Those of batches,
// of devices and without a microkernel leave it alone.
class Packed : NoCopy {
 public:
  Packed() = default;
  MIXTAPE_ALWAYS_INLINE ~Packed() {
    if (data_) release(data_, bytes_, Device::cpu(), -1, MemoryOf::Kernels);
  }

  // The packed operand of `bytes` bytes. pack(char*) writes it on first use.
  template <class F>
  const char* get(size_t bytes, const F& pack) {
    if (!data_) {
      data_ = static_cast<char*>(allocate(bytes, Device::cpu(), -1, MemoryOf::Kernels));
      bytes_ = bytes;
      pack(data_);
    }
    return data_;
  }

 private:
  size_t bytes_ = 0;
  char* data_ = nullptr;
};

}  // namespace mixtape::kernels
