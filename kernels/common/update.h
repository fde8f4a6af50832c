#pragma once
// Update: the tensors of a parameter in an optimizer step. One kernel call takes those of a group.

#include <span>

#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

// All dense. `state` are the optimizer's buffers of the parameter's size, f32 (f64 for an f64
// parameter); those without data are not used. `steps`, one f32 that the kernel advances, counts
// the steps that were not skipped. `shadow`, optional, is a 16-bit copy of `param` that is written
// with it: the model's parameter may be either.
struct Update {
  static constexpr size_t max_states = 3;
  View param, grad;
  View state[max_states];
  View steps;
  View shadow;
};
using Updates = std::span<const Update>;  // of parameters with the same options

// Scalars that every step reads from device memory, so that the host waits for nothing. Both are
// optional: a nonzero `skip` (f32) makes the kernel do nothing at all; `grad_scale` (f32 or f64:
// 1/S times any clipping factor) multiplies the gradients first. `rescale`, which the host knows,
// does too.
struct StepControl {
  View skip = {}, grad_scale = {};
  double rescale = 1;
};

struct AnyOptimizer;  // kernels/common/optimizers.h

}  // namespace mixtape::kernels
