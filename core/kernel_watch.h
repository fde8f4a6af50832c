#pragma once
// KernelWatch: told of each kernel that runs and the memory it is given. Real devices have none.

#include "core/view.h"

namespace mixtape::internal {

struct KernelWatch {
  virtual void call(Device device, const char* kernel) = 0;
  virtual void view(Device device, const char* kernel, const View& argument) = 0;
  virtual void scratch(Device device, const void* memory, size_t bytes) = 0;
};
extern KernelWatch* const kernel_watch;  // the linked runtime's, or null

}  // namespace mixtape::internal
