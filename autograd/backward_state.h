#pragma once
// BackwardState: tells ops whether this thread runs a backward pass or a checkpoint, and for what.

#include "core/thread_state.h"

namespace mixtape {

struct Engine;
struct LossScaleTag;
struct NeededNodes;  // the engine's
struct FreedNodes;   // the tape's

struct BackwardState {
  bool running = false;        // in a backward pass, except in a forward pass that it repeats
  bool in_rule = false;        // in an op's backward rule
  bool saves_nothing = false;  // ops record, but save nothing: a checkpoint's first call
  bool recomputing = false;    // a checkpoint's second call
  bool by_example = false;     // in per_sample_gradients(), where dimension 0 holds examples
  // In a rule, for grad(): the nodes whose gradients lead to a requested one.
  const NeededNodes* needed = nullptr;
  LossScaleTag* loss_scale = nullptr;  // of the gradient that the innermost pass visits
  // The outermost module that runs, from which nn's paths start. Restored by checkpoints.
  const void* root_module = nullptr;
  FreedNodes* freed = nullptr;  // nodes still to be freed by the destructor that runs
  Engine* engine = nullptr;     // the innermost pass

  static BackwardState& current();
};
inline thread_local constinit BackwardState backward_state;
inline BackwardState& BackwardState::current() { return backward_state; }

}  // namespace mixtape
