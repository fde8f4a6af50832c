#pragma once
// History: what happened during a training, by step and by epoch. Numbers of steps are read from
// the device when they have arrived, so that to keep them costs no wait.

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <vector>

#include "amp/scaler.h"
#include "core/readback.h"

namespace mixtape::train {

struct StepRow {
  int64_t step;  // batches since the training began
  double loss, lr;
  double scale;  // of the loss; 1 without a scaler
  bool skipped;  // by the scaler
};

struct EpochRow {
  int64_t epoch;                  // from 0
  int64_t step;                   // batches since the training began, at its end
  double train_loss, valid_loss;  // means over examples; NaN without validation data
  std::vector<double> metrics;    // on the validation data, in the learner's order
  double seconds;                 // NaN if it ended before a checkpoint that was loaded
};

class History {
 public:
  std::vector<EpochRow> epochs;
  std::vector<StepRow> steps;  // all that have arrived; settle() waits for the others

  void add(int64_t step, const Tensor& loss, double lr, const amp::GradScaler& scaler,
           const amp::StepResult& result);
  void settle();
  // Of the step that arrived last, without waiting; NaN if there is none.
  double last_loss() const;

 private:
  struct Coming {
    StepRow row;
    Readback loss, scale;
    amp::StepResult result;
    bool has_arrived() const;
  };
  void take();  // the first of those coming
  std::deque<Coming> coming_;
};

// Hands out each row once, steps and epochs in the order of time.
class HistoryReader {
 public:
  bool is_ahead_of(const History& h) const {
    return steps_ > h.steps.size() || epochs_ > h.epochs.size();
  }
  // Those that came since the last time.
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

}  // namespace mixtape::train
