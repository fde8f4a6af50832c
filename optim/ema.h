#pragma once
// Ema: an exponential moving average of the weights, which often is a better model than the last
// weights are (Polyak & Juditsky 1992).

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "optim/outcome.h"
#include "optim/state.h"

namespace mixtape::optim {

struct EmaOptions {
  double decay = 0.999;
  // Begins with min(decay, (1 + t) / (10 + t)) at update t = 0, 1, ..., so that the first weights
  // are soon forgotten.
  bool warmup = false;
};

// Averages in f32 (f64 for f64), which begin as the tensors' values. Does not move: guards refer to
// it.
class Ema : NoCopy {
 public:
  // Parameters, and buffers if they are to be averaged too; tensors of integers are left out. Of
  // an infinity, as in a mask, the average becomes NaN, as PyTorch's does.
  // Throws Error if there are none, if they are on several devices, or if decay is not in [0, 1].
  explicit Ema(const std::vector<Tensor>& tensors, const EmaOptions& options = {});

  // average = decay average + (1 - decay) value: after each step of the optimizer. Given the result
  // of that step, does nothing if it was skipped. Throws Error while the averages are applied.
  void update();
  template <StepOutcome R>
  void update(const R& stepped) {
    if (static_cast<bool>(stepped)) update();
  }
  double decay() const;  // of the next update
  int64_t updates() const { return updates_; }
  const std::vector<Tensor>& averages() const { return averages_; }  // of the tensors, in order

  // While alive, the averages stand in the tensors' place, under all handles to them:
  //   { const Ema::Applied averaged(ema);  evaluate(net); }
  // They are copies: what is written to them meanwhile is lost.
  class Applied : NoCopy {
   public:
    [[nodiscard]] explicit Applied(Ema& ema);
    ~Applied();

   private:
    void restore();

    Ema& ema_;
    std::vector<Tensor> values_;  // what the tensors held, of as many as hold averages now
  };

  // The averages become the tensors' values, for good. Throws Error while they are applied.
  void overwrite_tensors() const;

  // "updates", and "average.0" and so on: the live tensors; loading copies. Loading throws Error,
  // and changes nothing, if names or shapes do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  const EmaOptions options_;
  std::vector<Tensor> tensors_, averages_;
  int64_t updates_ = 0;
  int applied_ = 0;  // guards alive
};

}  // namespace mixtape::optim
