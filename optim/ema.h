#pragma once
// Ema: an exponential moving average of weights, often better than the last (Polyak & Juditsky
// 1992).

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "optim/stand_ins.h"
#include "optim/state.h"

namespace mixtape::optim {

struct EmaOptions {
  double decay = 0.999;
  // Uses min(decay, (1 + t) / (10 + t)) at update t = 0, 1, ..., to forget the first weights soon.
  bool warmup = false;
  // The plain mean of all updates, in place of both: SWA (Izmailov et al. 2018). Begin to update
  // late, and seldom, such as once an epoch.
  bool equal = false;
};

// Averages, f32 (f64 for f64), that start as the tensors' values. Does not move: guards refer to
// it.
class Ema : NoCopy {
 public:
  // Skips integer tensors. The average of an infinity, as in a mask, becomes NaN, as in PyTorch.
  // Throws Error if there are none, if they are on several devices, or if decay is not in [0, 1].
  explicit Ema(const std::vector<Tensor>& tensors, const EmaOptions& options = {});

  // average = decay average + (1 - decay) value. Call it after each optimizer step; given the
  // result of a skipped step, it does nothing. Throws Error while averages are applied.
  void update();
  template <StepOutcome R>
  void update(const R& stepped) {
    if (static_cast<bool>(stepped)) update();
  }
  double decay() const;                         // of the next update
  int64_t updates() const { return updates_; }  // so far, without those of skipped steps
  const std::vector<Tensor>& averages() const { return averages_; }  // of the tensors, in order

  // While alive, all handles to the tensors see copies of the averages; writes to those are lost:
  //   { const Ema::Applied averaged(ema);  evaluate(net); }
  class Applied : NoCopy {
   public:
    [[nodiscard]] explicit Applied(Ema& ema);  // copies each to its tensor's dtype
    ~Applied() { --ema_.applied_; }

   private:
    Ema& ema_;
    StandIns averages_;
  };

  // Makes the averages the tensors' values for good. Throws Error while they are applied.
  void overwrite_tensors() const;

  // "updates", and "average.0" and so on, not copied; loading copies. Loading throws Error, and
  // changes nothing, if names or shapes do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  const EmaOptions options_;
  std::vector<Tensor> tensors_, averages_;
  int64_t updates_ = 0;
  int applied_ = 0;  // guards alive
};

}  // namespace mixtape::optim
