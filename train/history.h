#pragma once
// History: what happened during a training, by step and by epoch. Numbers of steps are read from
// the device when they have arrived, so that to keep them costs no wait.

#include <cstdint>
#include <deque>
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
  double train_loss, valid_loss;  // means over examples; NaN without validation data
  std::vector<double> metrics;    // on the validation data, in the learner's order
  double seconds;
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
    Readback loss, inverse_scale;
    amp::StepResult result;
    bool has_arrived() const;
  };
  void take();  // the first of those coming
  std::deque<Coming> coming_;
};

}  // namespace mixtape::train
