#pragma once
// Callback: code that runs at the events of a training run. The events are fastai's.

#include "optim/state.h"

namespace mixtape::train {

class Learner;

// In any event, learner.skip() leaves out the next phase, and callbacks after this one do not get
// the event. It skips the epoch (in on_epoch_begin), the batch (on_batch_begin), the backward pass
// and the step (on_loss_begin, on_backward_begin), the step but not its gradients, to which the
// next batch adds (on_backward_end; only callbacks before MixedPrecision, whose order is -10, may
// do this), or the step and its gradients (on_step_begin). learner.stop() ends the training after
// the batch. An exception ends it at once.
class Callback {
 public:
  virtual ~Callback() = default;

  // Lower numbers run first; equal numbers run in the order in which they were added.
  // on_backward_begin runs in reverse, since the last change to the objective (dividing by batches,
  // scaling) must be undone first.
  virtual int order() const { return 0; }
  // From this order on, callbacks only observe. lr_find() skips them, since it undoes all it does.
  static constexpr int observer_order = 100;
  // True to run on every rank. By default, callbacks that only observe run on the first rank; those
  // that call what all ranks must call, such as Learner::save() and validate(), need every rank.
  virtual bool everywhere() const { return order() < observer_order; }

  virtual void on_train_begin(Learner&) {}  // before the first epoch of a fit or lr_find
  virtual void on_epoch_begin(Learner&) {}  // before the first batch of an epoch
  virtual void on_batch_begin(Learner&) {}  // may replace state.x and state.y
  virtual void on_loss_begin(Learner&) {}   // may replace state.output, unless options.pass is set
  virtual void on_backward_begin(Learner&) {}  // may replace state.objective, made from state.loss
  virtual void on_backward_end(Learner&) {}    // gradients are complete
  virtual void on_step_begin(Learner&) {}      // gradients are true; may set step_options
  virtual void on_step_end(Learner&) {}        // gradients still exist; state.result is the step's
  virtual void on_batch_end(Learner&) {}       // also runs for a skipped batch
  virtual void on_valid_begin(Learner&) {}     // also in predict()
  virtual void on_valid_end(Learner&) {}       // also after an exception
  virtual void on_epoch_end(Learner&) {}       // history.epochs has its row
  // After on_batch_end and on_epoch_end of all callbacks while training: here the state may be
  // saved for resuming. At the end of an epoch state.batch is 0.
  virtual void on_checkpoint(Learner&) {}
  virtual void on_train_end(Learner&) {}  // also runs after an exception

  // Batches per optimizer step.
  virtual int64_t batches_per_step() const { return 1; }

  // State to keep in checkpoints, under names of the callback's choice. A checkpoint saved without
  // this callback loads an empty dict, with which it should start afresh.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

}  // namespace mixtape::train
