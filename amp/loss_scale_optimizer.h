#pragma once
// LossScaleOptimizer: an optimizer that scales what it minimizes, so that a training loop need not
// know that there is a scale. It is a GradScaler and the calls around it.

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "amp/scaler.h"
#include "optim/optimizer.h"

namespace mixtape::amp {

// "dynamic", a number that stays as it is, or how a GradScaler moves it.
struct LossScalePolicy {
  ScalerOptions options;

  LossScalePolicy(const ScalerOptions& o) : options(o) {}
  LossScalePolicy(double fixed);
  template <std::convertible_to<std::string_view> S>
  LossScalePolicy(const S& name) : LossScalePolicy(named(name)) {}

 private:
  static LossScalePolicy named(std::string_view name);  // throws Error unless it is "dynamic"
};

struct MixedPrecisionOptions {
  LossScalePolicy loss_scale = "dynamic";
};

// The forward pass runs in a region, as always: { Autocast on({.low = f16}); loss = ...; }, then
// minimize(loss). A backward() of the loss itself bypasses the scale, and draws a warning.
class LossScaleOptimizer {
 public:
  // Throws Error if there is no optimizer, if it rescales gradients itself, or as GradScaler does.
  explicit LossScaleOptimizer(std::unique_ptr<optim::Optimizer> inner,
                              const MixedPrecisionOptions& options = {});

  // Steps along the gradients of the loss, and drops them: those that backward() left, too.
  StepResult minimize(const Tensor& loss, const StepOptions& options = {});
  // The two halves of it, for those who look at gradients in between or sum those of several
  // losses: true gradients (f32, or f64), one for each of params(), no tensor where the loss does
  // not depend on it. Computing touches no grad(); applying sets each and drops it, as minimize()
  // does. A step is skipped for gradients that were not finite when they were computed, also if
  // they were made finite since: clamped, say.
  std::vector<Tensor> compute_gradients(const Tensor& loss);
  // Throws Error if there is not one for each of params(), or before any compute_gradients().
  StepResult apply_gradients(const std::vector<Tensor>& gradients, StepOptions options = {});

  // Forgets the gradients computed since the last step, whoever decided not to apply them: what was
  // not finite in them would skip the next step.
  void abandon();

  // Steps that were not skipped. This and the scale wait for the device.
  int64_t iterations() const;
  double loss_scale() const { return scaler_.scale_value(); }

  optim::Optimizer& inner() { return held(); }  // throws Error if it was moved from
  const GradScaler& scaler() const { return scaler_; }

  // "iterations", and those of the two within as "optimizer.group.0.lr", "scaler.scale". Loading
  // throws Error, and changes nothing, if names or values do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer);
  optim::Optimizer& held() const;
  StepResult step(const StepOptions& options);
  int64_t counted() const;

  std::unique_ptr<optim::Optimizer> inner_;
  GradScaler scaler_;
  Tensor seen_;         // f32 [parameters], of compute_gradients(): not 0 where one was not finite
  int64_t before_ = 0;  // iterations that the scaler has not counted
  int64_t unscaled_ = 0;  // steps while the scaler is disabled, and counts nothing
};

template <std::derived_from<optim::Optimizer> O>
LossScaleOptimizer enable_mixed_precision(O optimizer, const MixedPrecisionOptions& options = {}) {
  return LossScaleOptimizer(std::make_unique<O>(std::move(optimizer)), options);
}
// It has a scale.
void enable_mixed_precision(LossScaleOptimizer, const MixedPrecisionOptions& = {}) = delete;

// The optimizer as it was before, with the state it has now.
std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer);

}  // namespace mixtape::amp
