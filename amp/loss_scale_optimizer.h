#pragma once
// LossScaleOptimizer: an optimizer that scales the loss it minimizes, with a GradScaler inside.

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "amp/scaler.h"
#include "optim/optimizer.h"

namespace mixtape::amp {

struct LossScaleOption {  // "dynamic", a fixed number, or a GradScaler's options
  ScalerOptions options;
  LossScaleOption(const ScalerOptions& o) : options(o) {}  // a dynamic scale
  LossScaleOption(double fixed);  // a constant scale; throws Error unless it is > 0
  template <std::convertible_to<std::string_view> S>
  LossScaleOption(const S& name) : LossScaleOption(named(name)) {}  // "dynamic"

 private:
  static LossScaleOption named(std::string_view name);  // throws Error unless it is "dynamic"
};

struct MixedPrecisionOptions {
  LossScaleOption loss_scale = "dynamic";
};

// Run the forward pass in a region as usual, { Autocast on({.low = f16}); loss = ...; }, then call
// minimize(loss). Calling backward() of the loss bypasses the scale, with a warning.
class LossScaleOptimizer {
 public:
  // Throws Error without an optimizer, if the optimizer rescales gradients, or as GradScaler does.
  explicit LossScaleOptimizer(std::unique_ptr<optim::Optimizer> inner,
                              const MixedPrecisionOptions& options = {});

  // Steps along the gradients of the loss, and drops all gradients, earlier ones included.
  StepResult minimize(const Tensor& loss, const StepOptions& options = {});
  // The two halves of minimize(), for changing gradients in between: true ones (f32 or f64), one
  // per parameter, or no tensor if the loss does not depend on it. Only applying sets grad(). A
  // step whose computed gradients were not finite is skipped, even if the program made them finite.
  // Throws Error under a DataParallel of the parameters, since gradients are this process's own.
  std::vector<Tensor> compute_gradients(const Tensor& loss);
  // Throws Error unless there is one gradient per parameter, or before any compute_gradients().
  StepResult apply_gradients(const std::vector<Tensor>& gradients, StepOptions options = {});
  // Forgets computed gradients that will not be applied, whose overflow would skip the next step.
  void abandon();

  // Steps that were not skipped. This and loss_scale() wait for the device.
  int64_t iterations() const;
  double loss_scale() const { return scaler_.scale_value(); }  // of the next loss

  optim::Optimizer& inner() { return held(); }          // throws Error if moved from
  const GradScaler& scaler() const { return scaler_; }  // for counters and overflows

  // "iterations", "optimizer.group.0.lr" and so on, "scaler.scale" and so on. If names or values do
  // not fit, loading throws Error and changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer);
  optim::Optimizer& held() const;
  StepResult step(const StepOptions& options);

  std::unique_ptr<optim::Optimizer> inner_;
  GradScaler scaler_;
  Tensor overflow_;       // f32 [parameters], by compute_gradients(): not 0 if one was not finite
  int64_t before_ = 0;    // iterations before the scaler began to count
  int64_t unscaled_ = 0;  // steps with a disabled scaler, which does not count them
};

// Takes the optimizer and gives it a loss scale. Throws Error as LossScaleOptimizer does.
template <std::derived_from<optim::Optimizer> O>
LossScaleOptimizer enable_mixed_precision(O optimizer, const MixedPrecisionOptions& options = {}) {
  return LossScaleOptimizer(std::make_unique<O>(std::move(optimizer)), options);
}
// A LossScaleOptimizer has a scale already.
void enable_mixed_precision(LossScaleOptimizer, const MixedPrecisionOptions& = {}) = delete;

// Unwraps the optimizer, with its current state.
std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer);

}  // namespace mixtape::amp
