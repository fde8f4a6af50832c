#pragma once
// LossScaleOptimizer: an optimizer that scales the loss it minimizes, by a GradScaler inside.

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

// The forward pass runs in a region, as always: { Autocast on({.low = f16}); loss = ...; }, then
// minimize(loss). A backward() of the loss itself bypasses the scale, with a warning.
class LossScaleOptimizer {
 public:
  // Throws Error without an optimizer, if it rescales gradients itself, or as GradScaler does.
  explicit LossScaleOptimizer(std::unique_ptr<optim::Optimizer> inner,
                              const MixedPrecisionOptions& options = {});

  // Steps along the gradients of the loss, and drops all gradients, also earlier ones.
  StepResult minimize(const Tensor& loss, const StepOptions& options = {});
  // The two halves of minimize(), to change gradients in between: true ones (f32 or f64), one per
  // parameter, no tensor where the loss does not depend on it. grad() is set by applying alone. A
  // step whose computed gradients were not finite is skipped, even if they are by now.
  std::vector<Tensor> compute_gradients(const Tensor& loss);
  // Throws Error without one gradient per parameter, or before any compute_gradients().
  StepResult apply_gradients(const std::vector<Tensor>& gradients, StepOptions options = {});
  // Forgets computed gradients that will not be applied: their overflow would skip the next step.
  void abandon();

  // Steps that were not skipped. This and loss_scale() wait for the device.
  int64_t iterations() const;
  double loss_scale() const { return scaler_.scale_value(); }  // of the next loss

  optim::Optimizer& inner() { return held(); }          // throws Error if it was moved from
  const GradScaler& scaler() const { return scaler_; }  // for its counters and overflows

  // "iterations", "optimizer.group.0.lr" and so on, "scaler.scale" and so on. Loading throws Error,
  // and changes nothing, if names or values do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend std::unique_ptr<optim::Optimizer> disable_mixed_precision(LossScaleOptimizer optimizer);
  optim::Optimizer& held() const;
  StepResult step(const StepOptions& options);

  std::unique_ptr<optim::Optimizer> inner_;
  GradScaler scaler_;
  Tensor overflow_;     // f32 [parameters], of compute_gradients(): not 0 where one was not finite
  int64_t before_ = 0;  // iterations before the scaler's count
  int64_t unscaled_ = 0;  // steps with a disabled scaler, which counts nothing
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
