#pragma once
// Tf32: whether products of f32 tensors may round their inputs to TF32 (10 bits of fraction), which
// tensor cores multiply several times faster. Only a CUDA device does so; elsewhere f32 stays f32.

#include "core/no_copy.h"

namespace mixtape {

// Allows it on this thread while alive (or forbids it again), in forward and backward passes alike:
// keep the call of backward() inside. The innermost counts; outside, nothing is rounded.
class Tf32 : NoCopy {
 public:
  [[nodiscard]] explicit Tf32(bool allow = true) : before_(allowed_) { allowed_ = allow; }
  ~Tf32() { allowed_ = before_; }

  static bool allowed() { return allowed_; }

 private:
  static inline thread_local constinit bool allowed_ = false;
  bool before_;
};

}  // namespace mixtape
