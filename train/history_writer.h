#pragma once
// HistoryWriter: the base of loggers. It passes on each row of the history once, soon after it is
// known, and starts over when an earlier history was loaded.

#include "train/callback.h"
#include "train/history.h"

namespace mixtape::train {

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
  virtual void open() = 0;  // begins a new file; all rows so far follow
  virtual void write_step(const Learner& learner, const StepRow& row) = 0;
  virtual void write_epoch(const Learner& learner, const EpochRow& row) = 0;
  virtual void flush() {}  // ends the rows of one event
  void write(Learner& learner);

  bool is_open_ = false;
  HistoryReader reader_;
};

}  // namespace mixtape::train
