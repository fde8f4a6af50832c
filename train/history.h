#pragma once
// History: the losses, rates and metrics of a training run, by step and by epoch. A step's values
// are stored once they have arrived from the device, without waiting for it.

#include <deque>
#include <limits>

#include "amp/scaler.h"
#include "core/readback.h"
#include "train/callback.h"

namespace mixtape::train {

struct StepRow {  // the row of a training batch
  int64_t step;   // batches since the training began
  double loss, lr;
  double scale;  // the loss scale; 1 without a scaler
  bool skipped;  // by the scaler
};

struct EpochRow {                 // a row of the table that fit() prints
  int64_t epoch;                  // from 0
  int64_t step;                   // batches since the training began, at the end of the epoch
  double train_loss, valid_loss;  // means over examples; NaN without validation data
  std::vector<double> metrics;    // on the validation data, in the learner's order
  double seconds;                 // of an epoch before a resume, from the log or NaN
};

class History {
 public:
  std::vector<EpochRow> epochs;
  std::vector<StepRow> steps;  // rows that have arrived; settle() waits for the rest

  // Begins a row, whose numbers may still be on their way from the device.
  void add(int64_t step, const Tensor& loss, double lr, const amp::GradScaler& scaler,
           const amp::StepResult& result);
  void settle();  // waits for the device
  // The latest loss that has arrived, without waiting; NaN if there is none.
  double last_loss() const;

 private:
  struct Pending {
    StepRow row;
    Readback loss, scale;
    amp::StepResult result;
    bool has_arrived() const;
  };
  void take();  // moves the first pending row to steps
  std::deque<Pending> pending_;
};

// Passes on each row once, steps and epochs in chronological order.
class HistoryReader {
 public:
  // True if it has passed on more rows than `h` has, since an older history was loaded.
  bool is_ahead_of(const History& h) const {
    return steps_ > h.steps.size() || epochs_ > h.epochs.size();
  }
  // Passes on the rows since the last call.
  template <class OnStep, class OnEpoch>
  void read(const History& h, const OnStep& on_step, const OnEpoch& on_epoch) {
    const auto steps_until = [&](int64_t end) {
      while (steps_ < h.steps.size() && h.steps[steps_].step < end) on_step(h.steps[steps_++]);
    };
    while (epochs_ < h.epochs.size()) {
      steps_until(h.epochs[epochs_].step);
      on_epoch(h.epochs[epochs_++]);
    }
    steps_until(std::numeric_limits<int64_t>::max());
  }

 private:
  size_t steps_ = 0, epochs_ = 0;
};

// The base of loggers. Passes on each row of the history once, and starts over if an older history
// was loaded.
class HistoryWriter : public Callback {
 public:
  int order() const override { return observer_order; }
  void on_train_begin(Learner& learner) override { write(learner); }
  void on_batch_end(Learner& learner) override;
  void on_epoch_end(Learner& learner) override { write(learner); }
  void on_train_end(Learner& learner) override;  // after an exception some rows are missing

 protected:
  void start_over() { is_open_ = false; }

 private:
  virtual void open() = 0;  // begins a new file, for which all rows so far follow
  virtual void write_step(const Learner& learner, const StepRow& row) = 0;
  virtual void write_epoch(const Learner& learner, const EpochRow& row) = 0;
  virtual void flush() {}  // ends the rows of one event
  void write(Learner& learner);

  bool is_open_ = false;
  HistoryReader reader_;
};

}  // namespace mixtape::train
