#pragma once
// MixedPrecision: the callback behind Learner::to_fp16, to_bf16 and to_fp32. It has the five hooks
// that fastai's has, by the same names.

#include <optional>
#include <string>

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "train/callback.h"

namespace mixtape::train {

// Autocast with a GradScaler (fastxtend's and PyTorch's way): weights stay f32.
struct AmpOptions {
  amp::DTypeOrName amp_mode = f16;  // bf16 needs no scaler and gets none
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;  // false: as to_fp32
};

// The whole model in f16 but for normalisation layers, and f32 masters that the optimizer keeps
// (fastai v1's and Apex O2's way).
struct MasterOptions {
  double loss_scale = 0;      // 0: 65536 if dynamic, else 512
  int64_t max_noskip = 1000;  // steps without overflow until the scale doubles
  bool dynamic = true;        // false: the scale stays
  double clip = 0;            // limits the norm of all gradients; 0: no limit
  bool flat_master = false;   // masters of a group in one tensor
  double max_scale = 1 << 24;
  // The loss reads f32 (but what LearnerOptions::pass does is its own affair).
  bool loss_fp32 = true;
};

class MixedPrecision : public Callback {
 public:
  explicit MixedPrecision(const AmpOptions& options);
  explicit MixedPrecision(const MasterOptions& options);

  int order() const override { return -10; }
  void begin(Learner& learner);  // when it is chosen, and after another optimizer was
  void end(Learner& learner);    // when another is chosen

  void on_train_begin(Learner& learner) override;     // the model's dtype and masters
  void on_batch_begin(Learner& learner) override;     // inputs to the model's dtype
  void on_loss_begin(Learner& learner) override;      // output to f32
  void on_backward_begin(Learner& learner) override;  // loss times the scale
  void on_backward_end(Learner& learner) override;    // gradients to f32, divided by the scale
  void on_step_end(Learner& learner) override;        // the scale moves

 private:
  DType low_;
  std::optional<MasterOptions> masters_;  // of the whole model in low_
  amp::ScalerOptions scaler_;
};

}  // namespace mixtape::train
