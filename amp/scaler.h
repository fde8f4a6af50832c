#pragma once
// GradScaler: keeps f16 gradients from underflowing by multiplying the loss, and finds by itself
// how much it may. Scale, counters and flags live on the device, and the optimizer's kernel reads
// them there: a step waits for nothing, and what it did is read from its result when somebody asks.

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/readback.h"
#include "core/tensor.h"
#include "optim/optimizer.h"

namespace mixtape::amp {

struct ScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 2000;  // updates without overflow until the scale grows
  bool enabled = true;             // false: every call passes through
  double min_scale = 0;            // to fall below it is a ScaleCollapse
  double max_scale = std::numeric_limits<double>::infinity();  // growth stops there
  int64_t hysteresis = 1;  // updates with overflow, in a row, until the scale backs off
  // So many in a row are a ScaleCollapse; 0: never, but 50 are told in a warning, once.
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
  // Whose scale the gradients carry: by default as in unscale(), or 0.
  std::optional<int> loss = {};
  bool unscaled = false;  // the gradients are the true ones, whoever divided them by the scale
};

// What became of a step. Only asking waits for the device, if the answer has not arrived; update()
// does not change it.
class StepResult {
 public:
  enum class State { Stepped, Skipped, NoGrads };
  // What was not finite. A loss that may contain gradients (see inverse_scale) counts as those.
  enum class Cause { None, Gradients, Loss };

  State state() const;
  Cause cause() const;
  explicit operator bool() const { return state() == State::Stepped; }
  bool has_arrived() const { return !skip_reason_ || skip_reason_->has_arrived(); }
  bool is_deferred() const { return deferred_; }  // a device decides: asking may wait
  // Of all gradients, before clipping: f32, 0-d. No tensor without clip_norm.
  const Tensor& norm() const { return norm_; }

 private:
  friend class GradScaler;
  bool has_grads_ = true;
  std::shared_ptr<Readback> skip_reason_;  // of scaler_skip_reason; none: nothing could be skipped
  Cause of_loss_ = Cause::Loss;            // of one that is not finite
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
  // another scale. Warns of one to which a loss that was not scaled has contributed, or losses from
  // before and after an update().
  void unscale(optim::Optimizer& opt, int id = 0);
  // Throws Error as unscale() does, if called twice before update(), or if a scaled loss has added
  // to a gradient since unscale().
  StepResult step(optim::Optimizer& opt, const StepOptions& options = {});
  // Ends the iteration: moves each scale as its optimizers found, or sets all to new_scale. An
  // iteration without any gradient changes nothing. Throws Error if no loss was ever scaled, or one
  // was and no optimizer stepped since.
  void update(std::optional<double> new_scale = {});

  // Ends an iteration that an exception broke off, say: what its losses and gradients were is
  // forgotten, and the scales stay.
  void abandon();

  // These wait for the device.
  double scale_value(int id = 0) const;      // 1 if disabled
  int64_t growth_tracker(int id = 0) const;  // updates without overflow since the scale moved
  struct Counters {
    int64_t updates = 0, skipped = 0;
  };
  Counters counters(int id = 0) const;
  // S on the device, f32, 0-d, as it is when read: update() writes it. Throws Error if no loss was
  // scaled.
  Tensor scale_tensor(int id = 0) const;
  // 1/S, the same: for gradients of scale(loss) taken with grad(), as in a gradient
  // penalty.
  Tensor inverse_scale(int id = 0);

  // The parameters whose gradients were not finite in the last step of each optimizer where any
  // were.
  struct Overflow {
    std::string optimizer, name;  // name: empty unless given
    size_t parameter;             // index in the optimizer's params()
    std::string first_bad_op;     // the last that an OverflowTrace of this thread found, if any
  };
  std::vector<Overflow> last_overflow() const;
  // Names for last_overflow and ScaleCollapse, in the order of the optimizer's params().
  void name_parameters(const optim::Optimizer& opt, std::vector<std::string> names);

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker",
  // "hysteresis_tracker", "consecutive_skips", and "scale.1", "growth_tracker.1" and so on for the
  // loss with id 1; empty if disabled. Of an iteration that update() has not ended it has
  // "had_nonfinite_loss", if a loss was not finite, and nothing else. Loading throws Error, and
  // changes nothing, if names or values do not fit; a scale beyond min_scale or max_scale becomes
  // that, and an iteration that was not ended is abandoned. Disabled, it does nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  enum class Stage { Ready, Unscaled, Stepped };
  struct ScaleState {
    bool has_scaled = false;    // a loss was scaled
    double value = 0;           // that it was set to; 0: it may have moved since
    uint64_t number = 0;        // by which gradients know it; another one with each such value
    int64_t moves = 0;          // updates that may have moved it
    Tensor scale;               // f32 [S, 1/S], on the device of the last loss
    Tensor counts, history;     // as the kernel scaler_update keeps them
    Readback pending_counters;  // counts on their way to poll()
    Tensor last_loss;
    bool warned = false;  // of skips in a row
    struct Iteration {    // since update()
      bool used = false, inverse_taken = false;
      bool had_nonfinite_loss = false;  // a loss was not finite before this was saved and loaded
      std::vector<Tensor> flags;        // of the losses: whether they were not finite
      size_t consumed_losses = 0;       // how many of those the next step has nothing to do with
      bool stepped = false;             // since the last loss
    } iteration;
  };
  struct OptimizerState {  // of one optimizer since the last update()
    Stage stage = Stage::Ready;
    int loss = 0;
    Tensor found = {};  // f32 [parameters]; none: no gradients
  };
  struct OptimizerHistory {  // of one optimizer, from its first step on
    std::string kind;
    std::vector<std::string> names;
    Tensor last;  // as OptimizerState::found, of the last step where any was set
  };

  friend class LossScaleOptimizer;
  // Skips the step also where `seen` (f32 [parameters], or no tensor) is not 0: gradients that were
  // not finite before somebody changed them.
  StepResult step(optim::Optimizer& opt, const StepOptions& options, const Tensor& seen);
  ScaleState& loss_scale(int id);
  static void set(ScaleState& s, double value);
  // Throws Error if it never was, and says what to do.
  const ScaleState& scaled(int id,
                           std::string_view hint = "call scale(loss).backward() first") const;
  OptimizerHistory& history_of(const optim::Optimizer& opt, size_t parameters, Device device);
  std::vector<View> gradients(const optim::Optimizer& opt, Device device) const;
  void poll(ScaleState& s);
  int64_t count(int id, int which) const;  // a kernels::ScalerCount
  std::string diagnosis(const ScaleState& s) const;

  ScalerOptions options_;
  std::map<int, ScaleState> scales_;
  std::map<uint64_t, OptimizerState> optimizers_;  // by the optimizer's id
  std::map<uint64_t, OptimizerHistory> histories_;
};

}  // namespace mixtape::amp
