#pragma once
// GradScaler: keeps f16 gradients from underflowing by multiplying the loss, and adjusts the factor
// by itself. Scale, counters and flags live on the device, where the optimizer's kernel reads them:
// a step does not wait, and its result waits only when it is read.

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "amp/scaler_state.h"
#include "core/readback.h"
#include "core/tensor.h"
#include "optim/optimizer.h"

namespace mixtape::amp {

struct ScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // updates without overflow until the scale grows
  bool enabled = true;             // false: every call passes through
  double min_scale = 0;            // falling below it is a ScaleCollapse
  double max_scale = std::numeric_limits<double>::infinity();  // growth stops there
  int64_t hysteresis = 1;  // updates with overflow, in a row, until the scale backs off
  // Skipped steps in a row that are a ScaleCollapse; 0: none, but 50 draw a warning, once.
  int64_t max_consecutive_skips = 0;
};

// The scale fell below its minimum, or too many steps in a row were skipped. The message has the
// diagnosis: the last loss, recent scales, the parameters whose gradients were not finite, and
// the first bad op if an OverflowTrace is alive.
class ScaleCollapse : public Error {
  using Error::Error;
};

struct StepOptions {
  // Limits the norm of all (unscaled) gradients, as clip_grad_norm.
  std::optional<double> clip_norm = {};
  // The id of the loss scale that multiplies the gradients: by default as in unscale(), or 0.
  std::optional<int> loss = {};
  bool unscaled = false;  // the gradients are the true ones: something else divided them
};

// The outcome of a step. Reading it waits for the device if the answer has not arrived; update()
// does not change it.
class StepResult {
 public:
  enum class State { Stepped, Skipped, NoGrads };
  // The part that was not finite. A loss that may contain gradients (see inverse_scale) counts as
  // those.
  enum class Cause { None, Gradients, Loss };

  State state() const;
  Cause cause() const;
  explicit operator bool() const { return state() == State::Stepped; }
  bool has_arrived() const { return !skip_reason_ || skip_reason_->has_arrived(); }
  bool is_deferred() const { return deferred_; }  // a device decides: reading may wait
  // The norm of all gradients before clipping: f32, 0-d. No tensor without clip_norm.
  const Tensor& norm() const { return norm_; }

 private:
  friend class GradScaler;
  bool has_grads_ = true;
  std::shared_ptr<Readback> skip_reason_;  // of scaler_skip_reason; none: it cannot be skipped
  Cause nonfinite_loss_cause_ = Cause::Loss;
  bool deferred_ = false;
  Tensor norm_;
};

// One loop iteration is scale(loss).backward(), then for each optimizer step(), then update(). To
// see or clip the true gradients, unscale() before step(). Disabled, every call passes through.
//
// step() without unscale() leaves grad() as backward made it, times S: its kernel unscales what it
// reads. A step whose gradients hold inf or NaN is skipped: parameters and the optimizer's state
// stay as they are, bit by bit, and update() lowers the scale. If a loss itself was not finite the
// step is skipped too, but a lower scale could not help, so it stays; unless inverse_scale() was
// taken since the last update(), for then the loss may contain gradients that overflowed.
//
// Losses may have scales of their own: scale(loss, id), then step(opt, {.loss = id}).
class GradScaler {
 public:
  explicit GradScaler(const ScalerOptions& options = {});  // throws Error on values out of range
  // Enabled only if `low`, the dtype of the Autocast region, is f16: the others have f32's range.
  explicit GradScaler(DType low, const ScalerOptions& options = {});
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  bool enabled() const { return options_.enabled; }
  const ScalerOptions& options() const { return options_; }

  // loss * S, in f32 (f64 if the loss is).
  Tensor scale(const Tensor& loss, int id = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses, int id = 0);
  // Divides the gradients by S and notes which are not finite, before or after. f16 gradients
  // become f32. Throws Error if no loss was scaled, if called twice or after step() before
  // update(), if parameters are f16 and the optimizer keeps no f32 copies, or if a gradient carries
  // another scale. Warns if an unscaled loss, or losses from before and after an update(),
  // contributed to a gradient.
  void unscale(optim::Optimizer& opt, int id = 0);
  // Throws Error as unscale() does, if called twice before update(), or if a scaled loss has added
  // to a gradient since unscale().
  StepResult step(optim::Optimizer& opt, const StepOptions& options = {});
  // Ends the iteration: moves each scale as its optimizers found, or sets all to new_scale. An
  // iteration without any gradient changes nothing. Throws Error if no loss was ever scaled, or one
  // was and no optimizer stepped since.
  void update(std::optional<double> new_scale = {});

  // Ends an iteration without a step, after an exception for example: its losses and gradients are
  // forgotten, and the scales stay.
  void abandon();

  // These wait for the device.
  double scale_value(int id = 0) const;      // 1 if disabled
  int64_t growth_tracker(int id = 0) const;  // updates without overflow since the scale moved
  struct Counters {
    int64_t updates = 0, skipped = 0;
  };
  Counters counters(int id = 0) const;
  // S on the device, f32, 0-d: update() writes it. Throws Error if no loss was scaled.
  Tensor scale_tensor(int id = 0) const;
  // 1/S likewise, for gradients of scale(loss) from grad(), as in a gradient penalty.
  Tensor inverse_scale(int id = 0);

  struct Overflow {
    std::string optimizer, name;  // name: empty unless given
    size_t parameter;             // index in the optimizer's params()
    std::string first_bad_op;     // the last that an OverflowTrace of this thread found, if any
  };
  // The parameters whose gradients were not finite, in each optimizer's last step with any.
  std::vector<Overflow> last_overflow() const;
  // Names for last_overflow and ScaleCollapse, in the order of the optimizer's params().
  void name_parameters(const optim::Optimizer& opt, std::vector<std::string> names);

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker",
  // "hysteresis_tracker", "consecutive_skips", and "scale.1", "growth_tracker.1" and so on for the
  // loss with id 1; empty if disabled. An iteration that update() has not ended is saved only as
  // "had_nonfinite_loss", if so. Loading throws Error, and changes nothing, if names or values do
  // not fit; it clamps the scale to [min_scale, max_scale] and abandons the current iteration.
  // Disabled, it does nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend class LossScaleOptimizer;
  struct Step;
  static void check_options(const ScalerOptions& options);
  // Skips the step also where `earlier_overflow` (f32 [parameters], or no tensor) is not 0: the
  // gradients were not finite before the program changed them.
  StepResult step(optim::Optimizer& opt, const StepOptions& options,
                  const Tensor& earlier_overflow);
  StepResult step_disabled(optim::Optimizer& opt, const StepOptions& options);
  Step check_ready(optim::Optimizer& opt, const StepOptions& options);
  static void find_overflow(Step& step, const StepOptions& options, const Tensor& earlier_overflow);
  void commit(Step& step, StepResult& result);

  detail::ScaleState& scale_state(int id);
  detail::OptimizerHistory& history_of(const optim::Optimizer& opt, size_t parameters,
                                       Device device);
  void poll(detail::ScaleState& s);
  std::string diagnosis(const detail::ScaleState& s) const;

  ScalerOptions options_;
  std::map<int, detail::ScaleState> scales_;
  std::map<uint64_t, detail::OptimizerState> optimizers_;  // by Optimizer::id()
  std::map<uint64_t, detail::OptimizerHistory> histories_;
};

}  // namespace mixtape::amp
