#pragma once
// KernelWatch: told of each kernel that runs and the memory it is given. Real devices have none.

#include "core/view.h"

namespace mixtape::internal {

struct KernelWatch {  // told by the thread that launches
  // A kernel is about to run.
  virtual void call(Device device, const char* kernel) = 0;
  // A tensor among its arguments, after call().
  virtual void view(Device device, const char* kernel, const View& argument) = 0;
  // Memory that a running kernel was given for the call, uninitialised.
  virtual void scratch(Device device, const void* memory, size_t bytes) = 0;
};
extern KernelWatch* const kernel_watch;  // the linked runtime's, or null

}  // namespace mixtape::internal
