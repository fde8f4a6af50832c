#pragma once
// How each optimizer moves its parameters: the numbers of its formula, which the host passes along,
// and the tensors that it reads and writes. The formulas are in steps.h.

#include <span>

#include "core/view.h"

namespace mixtape::kernels {

// One parameter in a multi-tensor update. Dense. `state` are the optimizer's own buffers, f32 (f64
// for an f64 parameter), all of the parameter's size; absent ones have no data. `steps` counts the
// steps that were not skipped: one f32, which the update itself advances; absent if the rule has no
// state. `shadow`, optional, is a narrow copy of `param`, written along with it: either of the two
// may be what the model calls its parameter.
struct Update {
  static constexpr size_t max_states = 3;

  View param, grad;
  View state[max_states];
  View steps;
  View shadow;
};
using Updates = std::span<const Update>;  // of parameters with one rule

// What every update reads from device memory, so that a step needs no word from the host.
// f32 scalars, all optional: a set `skip` makes the kernel do nothing at all; gradients are
// multiplied by `grad_scale` first (1/S times any clipping factor), and by `rescale`, which the
// host knows.
struct StepControl {
  View skip = {}, grad_scale = {};
  double rescale = 1;
};

// In all rules, `maximize` negates the gradients.
struct SgdRule {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
};
struct AdamRule {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad;    // divides by the largest mean square so far
  bool decoupled;  // AdamW: decay the weights, not the gradients
  bool maximize;
};
struct RmspropRule {
  double lr, alpha, eps, momentum, weight_decay;
  bool centered, maximize;
};
struct AdagradRule {
  double lr, lr_decay, eps, weight_decay;
  bool maximize;
};
struct AdadeltaRule {
  double lr, rho, eps, weight_decay;
  bool maximize;
};
struct LionRule {
  double lr, beta1, beta2, weight_decay;
  bool maximize;
};
struct NadamRule {
  double lr, beta1, beta2, eps, weight_decay, momentum_decay;
  bool maximize;
};
struct RadamRule {
  double lr, beta1, beta2, eps, weight_decay;
  bool maximize;
};
struct LambRule {
  double lr, beta1, beta2, eps, weight_decay;
  double min_norm, max_norm;    // limits of a parameter's norm
  double min_trust, max_trust;  // limits of what multiplies lr
  bool maximize;
};
struct MuonRule {
  double lr, momentum, eps, weight_decay;
  bool nesterov;
  bool match_adam;  // steps of the size that Adam's have
  bool maximize;
};

}  // namespace mixtape::kernels
