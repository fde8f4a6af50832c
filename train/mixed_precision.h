#pragma once
// MixedPrecision: the callback behind Learner::to_fp16, to_bf16 and to_fp32, with fastai's hooks.

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "train/callback.h"

namespace mixtape::train {

// Autocast with a GradScaler, as in PyTorch and fastxtend; weights stay f32.
struct AmpOptions {
  amp::DTypeOrName amp_mode = f16;  // bf16 needs no scaler
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool enabled = true;      // false: the same as to_fp32()
  amp::Recipe recipe = {};  // for products in 8 or 4 bits; needs amp_mode bf16 or f32
};

// The model in f16 except normalisation layers, with f32 masters (as in fastai v1 and Apex O2), or
// without masters if the optimizer does not round to nearest.
struct MasterOptions {
  double loss_scale = 0;      // 0 means 65536 if dynamic, else 512
  int64_t max_noskip = 1000;  // steps without overflow before the scale doubles
  bool dynamic = true;        // false: a constant scale
  double clip = 0;            // limits the norm of all gradients; 0: no limit
  bool flat_master = false;   // masters of a group in one tensor
  double max_scale = 1 << 24;
  bool loss_fp32 = true;  // converts the output to f32 for the loss (not in LearnerOptions::pass)
  DType dtype = f16;      // or bf16, which needs no loss scale
};

class MixedPrecision : public Callback {
 public:
  // Throw Error if an option is out of range.
  explicit MixedPrecision(const AmpOptions& options);
  explicit MixedPrecision(const MasterOptions& options);
  explicit MixedPrecision(const amp::ScalerOptions& options);  // Autocast in f16 with such a scaler

  int order() const override { return -10; }
  void begin(Learner& learner);  // called when it is chosen, and after the optimizer is replaced
  void end(Learner& learner);    // called when it is replaced

  void on_train_begin(Learner& learner) override;     // converts the model to its dtype
  void on_batch_begin(Learner& learner) override;     // converts inputs to the model's dtype
  void on_loss_begin(Learner& learner) override;      // converts the output to f32
  void on_backward_begin(Learner& learner) override;  // multiplies the loss by the scale
  void on_backward_end(Learner& learner) override;    // divides gradients by the scale, in f32
  void on_step_end(Learner& learner) override;        // updates the scale

 private:
  DType low_;
  std::optional<MasterOptions> masters_;  // if set, the whole model is in low_
  std::optional<double> clip_before_;     // the program's own limit, which end() restores
  amp::ScalerOptions scaler_;
  amp::Recipe recipe_ = {};
};

}  // namespace mixtape::train
