#pragma once
// Tf32: permission for products of f32 tensors to round their inputs to TF32 (10 fraction bits),
// which tensor cores multiply several times faster. Only CUDA devices use it.

#include "core/no_copy.h"

namespace mixtape {

// Allows TF32 on this thread while alive, or forbids it, in forward and backward passes: call
// backward() inside too. The innermost guard applies; the default is to forbid.
class Tf32 : NoCopy {
 public:
  // False forbids what an outer guard allows.
  [[nodiscard]] explicit Tf32(bool allow = true) : before_(allowed_) { allowed_ = allow; }
  ~Tf32() { allowed_ = before_; }

  static bool allowed() { return allowed_; }  // on this thread, now

 private:
  static inline thread_local constinit bool allowed_ = false;
  bool before_;
};

}  // namespace mixtape
