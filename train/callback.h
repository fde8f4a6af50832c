#pragma once
// Callback: what should happen at certain moments of a training. The moments are fastai's.

#include "optim/state.h"

namespace mixtape::train {

class Learner;

// In any of these, learner.skip() leaves out what comes next: the epoch (from on_epoch_begin), the
// batch (on_batch_begin), the backward pass and the step (on_loss_begin, on_backward_begin), the
// step but not its gradients, to which the next batch adds (on_backward_end; only those before
// MixedPrecision, whose order is -10, may keep them), or the step and its gradients
// (on_step_begin); callbacks after this one are not asked at that moment.
// learner.stop() ends the training after the batch. Exceptions end it at once.
class Callback {
 public:
  virtual ~Callback() = default;

  // Those with lower numbers come first; those with equal numbers in the order they were added. At
  // on_backward_begin all is the other way round: what is done to the objective last, the division
  // by batches and the scale, is undone first.
  virtual int order() const { return 0; }
  // Callbacks of this order and above only observe. lr_find, which undoes all it did, skips them.
  static constexpr int looks_on = 100;

  virtual void on_train_begin(Learner&) {}
  virtual void on_epoch_begin(Learner&) {}
  virtual void on_batch_begin(Learner&) {}     // may replace state.x and state.y
  virtual void on_loss_begin(Learner&) {}      // may replace state.output (not of a pass's loss)
  virtual void on_backward_begin(Learner&) {}  // may replace state.objective, made of state.loss
  virtual void on_backward_end(Learner&) {}    // gradients are there
  virtual void on_step_begin(Learner&) {}
  virtual void on_step_end(Learner&) {}   // before gradients are dropped; state.result says more
  virtual void on_batch_end(Learner&) {}  // also of a batch that was skipped
  virtual void on_valid_begin(Learner&) {}
  virtual void on_valid_end(Learner&) {}
  virtual void on_epoch_end(Learner&) {}  // history.epochs has its row
  // After each of those two while training, when all callbacks have seen it: a state that may be
  // saved and gone on from. state.batch is 0 at the end of an epoch.
  virtual void on_checkpoint(Learner&) {}
  virtual void on_train_end(Learner&) {}  // also after an exception

  // How many batches make one step of the optimizer.
  virtual int64_t batches_per_step() const { return 1; }

  // What a checkpoint should hold, by names of the callback's own; nothing by default. One that was
  // saved without this callback gives it nothing to load: it begins anew.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

}  // namespace mixtape::train
