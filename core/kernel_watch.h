#pragma once
// KernelWatch: receives each kernel call and the memory that it is given. The emulator implements
// it, real devices do not.

#include "core/view.h"

namespace mixtape::internal {

struct KernelWatch {  // called by the thread that launches
  // A kernel is about to run.
  virtual void call(Device device, const char* kernel) = 0;
  // A tensor among its arguments, after call().
  virtual void view(Device device, const char* kernel, const View& argument) = 0;
  // Memory that a running kernel was given for the call, uninitialised.
  virtual void scratch(Device device, const void* memory, size_t bytes) = 0;
};
extern KernelWatch* const kernel_watch;  // the linked runtime's, or null

}  // namespace mixtape::internal
