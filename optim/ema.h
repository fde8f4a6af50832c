#pragma once
// Ema: an exponential moving average of weights, often better than the last weights (Polyak &
// Juditsky 1992).

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "optim/stand_ins.h"
#include "optim/state.h"

namespace mixtape::optim {

struct EmaOptions {
  double decay = 0.999;
  // Decays by min(decay, (1 + t) / (10 + t)) at update t = 0, 1, ..., to forget the first weights
  // soon.
  bool warmup = false;
  // Takes the plain mean of all updates instead: SWA (Izmailov et al. 2018). Begin to update late,
  // and update seldom, for example once an epoch.
  bool equal = false;
};

// Averages in f32 (f64 for f64) that start as the tensors' values. Cannot be moved, since guards
// refer to it.
class Ema : NoCopy {
 public:
  // Skips integer tensors. The average of infinities, as in a mask, becomes NaN, as in PyTorch.
  // Throws Error if no tensors are left, if they are on several devices, or if decay is not in [0,
  // 1].
  explicit Ema(const std::vector<Tensor>& tensors, const EmaOptions& options = {});

  // average = decay average + (1 - decay) value. Call it after each optimizer step; given the
  // result of a skipped step, it does nothing. Throws Error while averages are applied.
  void update();
  template <StepOutcome R>
  void update(const R& stepped) {
    if (static_cast<bool>(stepped)) update();
  }
  double decay() const;                         // of the next update
  int64_t updates() const { return updates_; }  // so far, not counting skipped steps
  const std::vector<Tensor>& averages() const { return averages_; }  // of the tensors, in order

  // A guard: all handles of the tensors see copies of the averages; writes to the copies are lost:
  //   { const Ema::Applied averaged(ema);  evaluate(net); }
  class Applied : NoCopy {
   public:
    [[nodiscard]] explicit Applied(Ema& ema);  // converts each average to its tensor's dtype
    ~Applied() { --ema_.applied_; }

   private:
    Ema& ema_;
    StandIns averages_;
  };

  // Makes the averages the tensors' values for good. Throws Error while they are applied.
  void overwrite_tensors() const;

  // "updates", and "average.0" and so on, which are not copied; loading copies. If names or shapes
  // do not fit, loading throws Error and changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  const EmaOptions options_;
  std::vector<Tensor> tensors_, averages_;
  int64_t updates_ = 0;
  int applied_ = 0;  // guards alive
};

}  // namespace mixtape::optim
