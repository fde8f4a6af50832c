#pragma once
// Callback: code that runs at the events of a training. The events are fastai's.

#include "optim/state.h"

namespace mixtape::train {

class Learner;

// In any event, learner.skip() leaves out what comes next, and callbacks after this one do not get
// the event. It skips the epoch (in on_epoch_begin), the batch (on_batch_begin), the backward pass
// and the step (on_loss_begin, on_backward_begin), the step but not its gradients, to which the
// next batch adds (on_backward_end; only callbacks before MixedPrecision, whose order is -10, may
// do this), or the step and its gradients (on_step_begin).
// learner.stop() ends the training after the batch. An exception ends it at once.
class Callback {
 public:
  virtual ~Callback() = default;

  // Lower numbers run first; equal numbers run in the order they were added. on_backward_begin runs
  // in reverse: the last change to the objective (dividing by batches, scaling) is undone first.
  virtual int order() const { return 0; }
  // From this order on, callbacks only observe. lr_find, which undoes all it did, skips them.
  static constexpr int observer_order = 100;
  // On several ranks, callbacks that only observe run on the first one, unless they say otherwise:
  // to take part in what all ranks do together, such as Learner::save() and validate().
  virtual bool everywhere() const { return order() < observer_order; }

  virtual void on_train_begin(Learner&) {}     // of a fit or lr_find, before its first epoch
  virtual void on_epoch_begin(Learner&) {}     // before its first batch
  virtual void on_batch_begin(Learner&) {}     // may replace state.x and state.y
  virtual void on_loss_begin(Learner&) {}      // may replace state.output; without effect on a pass
  virtual void on_backward_begin(Learner&) {}  // may replace state.objective, made of state.loss
  virtual void on_backward_end(Learner&) {}    // gradients are complete
  virtual void on_step_begin(Learner&) {}      // the true gradients; may set step_options
  virtual void on_step_end(Learner&) {}     // gradients are still there; state.result is the step's
  virtual void on_batch_end(Learner&) {}    // also runs for a skipped batch
  virtual void on_valid_begin(Learner&) {}  // also in predict()
  virtual void on_valid_end(Learner&) {}    // also after an exception
  virtual void on_epoch_end(Learner&) {}    // history.epochs has its row
  // Follows on_batch_end and on_epoch_end while training, after all callbacks: the state may be
  // saved here and resumed from. state.batch is 0 at the end of an epoch.
  virtual void on_checkpoint(Learner&) {}
  virtual void on_train_end(Learner&) {}  // also runs after an exception

  // Batches per step of the optimizer.
  virtual int64_t batches_per_step() const { return 1; }

  // State to keep in checkpoints; the names are the callback's own. Loading a checkpoint that was
  // saved without this callback gives it an empty dict: it starts afresh.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

}  // namespace mixtape::train
