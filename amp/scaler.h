#pragma once
// GradScaler: scales the loss by a factor that it adjusts, so that f16 gradients do not underflow.
// Its state is on the device, where the optimizer's kernel reads it, so a step never waits.

#include <concepts>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/no_copy.h"
#include "core/readback.h"
#include "core/tensor.h"
#include "optim/optimizer.h"

namespace mixtape::kernels {
enum class ScalerCount : int;
}

namespace mixtape::amp {

struct GradientHistogram;  // amp/gradient_histogram.h

// The user's own rule for the scale, in place of growth and backoff. update() asks it, and waits
// for the device to do so.
class LossScalePolicy {
 public:
  struct Update {              // the iteration that update() ends
    double scale;              // the scale of its steps
    bool overflow, bad_loss;   // skipped, since a gradient or the loss itself was not finite
    int64_t updates, skipped;  // so far, including this iteration
    int loss;                  // id of the loss
  };
  virtual ~LossScalePolicy() = default;
  // The next scale, positive and finite in f32; one below min_scale throws ScaleCollapse.
  virtual double next(const Update& update) = 0;
  // Takes the scale that calibration found, and returns the one to use. (Both respect max_scale.)
  virtual double start(double found) { return found; }
  // State to save and load with the scaler's, as "policy.NAME".
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

struct ScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // updates without overflow until the scale grows
  bool enabled = true;             // false: every call passes through
  double min_scale = 0;            // a scale below it throws ScaleCollapse
  double max_scale = std::numeric_limits<double>::infinity();  // growth stops here
  int64_t hysteresis = 1;  // updates with overflow in a row until the scale backs off
  // Skipped steps in a row after which ScaleCollapse is thrown; 0: a single warning, after 50.
  int64_t max_consecutive_skips = 0;
  // Finds the scale with the first iteration's loss that is finite and has gradients, by backward
  // passes that are not part of the training: the largest power of two with which all f16 gradients
  // are below 2^12, a 16th of f16's range.
  bool calibrate = false;
  int64_t histogram = 0;  // steps between counts of gradients by exponent; 0: never counts
  std::shared_ptr<LossScalePolicy> policy = {};
};

// Thrown if the scale falls below its minimum, or too many steps in a row are skipped. The message
// has the last loss, recent scales, parameters with bad gradients, and any OverflowTrace's first
// bad op.
class ScaleCollapse : public Error {
  using Error::Error;
};

struct StepOptions {
  std::optional<double> clip_norm = {};  // limits the norm of all true gradients (clip_grad_norm)
  std::optional<int> loss = {};          // id of the gradients' loss; by default unscale()'s, or 0
  bool unscaled = false;                 // gradients are true: the program divided them itself
};

// The outcome of a step. Reading it may wait for the device. update() does not change it.
class StepResult {
 public:
  enum class State { Stepped, Skipped, NoGrads };
  // The thing that was not finite. A loss that may contain gradients counts as Gradients: see
  // inverse_scale().
  enum class Cause { None, Gradients, Loss };
  State state() const;
  Cause cause() const;  // why the step was skipped, or None
  // True if the step was made: it was not skipped, and there were gradients.
  explicit operator bool() const { return state() == State::Stepped; }
  // True if reading it need not wait.
  bool has_arrived() const {
    return decision_ ? latest().has_arrived() : !skip_reason_ || skip_reason_->has_arrived();
  }
  bool is_deferred() const { return deferred_; }  // true if a device decides: reading may wait
  // The norm before clipping: f32, 0-d; empty without clip_norm.
  const Tensor& norm() const { return norm_; }
  // The outcome of the last replay of a captured step, which later replays do not change.
  StepResult latest() const;

 private:
  friend class GradScaler;
  bool has_grads_ = true;
  std::shared_ptr<Readback> skip_reason_;  // by scaler_skip_reason; null if a skip is impossible
  Tensor decision_;                        // in a captured step: the original of skip_reason_
  Cause nonfinite_loss_cause_ = Cause::Loss;
  bool deferred_ = false;
  Tensor norm_;
};

namespace detail {

bool is_scale(double value);  // positive and finite in f32

struct ScaleState {   // a loss scale and its counters, on the device of the last loss
  struct Iteration {  // since the last update()
    bool used = false, inverse_taken = false;
    bool had_nonfinite_loss = false;  // before the state was saved and loaded
    bool stepped = false;             // since the last loss
    std::vector<Tensor> flags = {};   // f32 [1] per loss: 1 if it was not finite
    size_t consumed_losses = 0;       // losses that earlier steps have seen
    std::span<const Tensor> pending_flags() const;
  };

  explicit ScaleState(double value);
  void set(double value);
  void move_to(Device device);
  void update(std::vector<internal::View> found, const Iteration& ended,
              const ScalerOptions& options, int id);
  void ask_policy(const std::vector<internal::View>& found,
                  const std::vector<internal::View>& losses, const ScalerOptions& options, int id);
  void write(double value);  // sets S and 1/S on the device

  // S and 1/S, f32, 0-d: views of the numbers that the kernel scaler_update writes.
  Tensor value() const { return values.with_layout(internal::Layout({}, {}, 0)); }
  Tensor inverse() const { return values.with_layout(internal::Layout({}, {}, 1)); }

  Tensor values;              // f32 [S, 1/S]
  Tensor counts, history;     // see the kernel scaler_update
  bool has_scaled = false;    // a loss was scaled
  double known_value = 0;     // the value that was set; 0 once update() may have changed it
  uint64_t number = 0;        // for LossScaleTag; changes whenever a value is set
  int64_t moves = 0;          // updates that may have changed the scale
  Readback pending_counters;  // counts on their way to poll()
  Tensor last_loss;
  bool warned = false;  // about skips in a row
  // The number of backward passes that calibration took; 0 if the scale is fixed from elsewhere.
  std::optional<int64_t> calibrated = {};
  Iteration iteration;
};

struct OptimizerState {  // since the last update()
  enum class Stage { Ready, Unscaled, Stepped };
  Stage stage = Stage::Ready;
  int loss = 0;
  Tensor found = {};  // f32 [parameters]: 1 if a gradient was not finite; empty without gradients
  // The parameters, if `found` is only about this process's pieces.
  std::vector<Tensor> shared = {};
};

struct OptimizerHistory {  // from the optimizer's first step on
  std::string kind;
  std::vector<std::string> names;
  Tensor last;  // OptimizerState::found of the last step in which a gradient was not finite
  int64_t steps = 0;
  Tensor exponents = {}, worst = {};  // see the kernels unscale and find_underflow
  Readback pending_worst;
  bool warned = false;  // of underflow
};

}  // namespace detail

// An iteration is scale(loss).backward(), step() for each optimizer, update(). To see or clip the
// true gradients, call unscale() before step(). Losses may have their own scales: scale(loss, id),
// then step(opt, {.loss = id}). If disabled, every call passes through. Without unscale(), grad()
// stays multiplied by S, and the optimizer's kernel unscales what it reads. A step with inf or NaN
// in its gradients is skipped: parameters and optimizer state keep their bits, and update() lowers
// the scale. A loss that is not finite also skips the step but leaves the scale, since a lower one
// could not help. (After inverse_scale(), until update(), it does lower the scale, since the loss
// may contain gradients that overflowed.)
class GradScaler {
 public:
  explicit GradScaler(const ScalerOptions& options = {});  // throws Error for values out of range
  // Enabled only if `low`, the dtype of the Autocast region, is f16; the others have f32's range.
  // (A plain DType could be {}, as could the options.)
  explicit GradScaler(std::same_as<DType> auto low, const ScalerOptions& options = {})
      : GradScaler(options_for(low, options)) {}
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  bool enabled() const { return options_.enabled; }          // false: every call passes through
  bool is_enabled() const { return enabled(); }              // PyTorch's name
  const ScalerOptions& options() const { return options_; }  // as given

  // loss * S, in f32 (f64 if the loss is).
  Tensor scale(const Tensor& loss, int id = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses, int id = 0);
  // Divides the gradients by S and notes which are not finite; f16 gradients become f32. Throws
  // Error if no loss was scaled, on a second call or after step() without update() in between, if a
  // gradient carries another scale, or for f16 parameters without f32 copies in the optimizer.
  // Warns if a gradient contains an unscaled loss, or losses from before and after an update().
  void unscale(optim::Optimizer& opt, int id = 0);
  void unscale_(optim::Optimizer& opt) { unscale(opt); }
  // Throws Error as unscale() does, or if a scaled loss has added to a gradient since unscale().
  StepResult step(optim::Optimizer& opt, const StepOptions& options = {}) {
    return step(opt, options, Tensor());
  }
  // Ends the iteration: changes each scale by what its optimizers found (not without gradients), or
  // sets all to new_scale, from min_scale to max_scale. Throws Error if no loss was ever scaled, or
  // if one was scaled but no optimizer stepped.
  void update(std::optional<double> new_scale = {});

  // Call it after a replay of update(): warns of skipped steps or throws ScaleCollapse, as update()
  // does.
  void poll();

  // Ends an iteration without a step, as after an exception, and forgets its losses and gradients.
  void abandon();

  // These wait for the device.
  double scale_value(int id = 0) const;               // 1 if disabled
  double get_scale() const { return scale_value(); }  // PyTorch's name, of the loss with id 0
  int64_t growth_tracker(int id = 0) const;  // updates without overflow since the scale changed
  struct Counters {  // of iterations: all that update() ended, and the skipped ones
    int64_t updates = 0, skipped = 0;
  };
  Counters counters(int id = 0) const;  // for that loss; 0 if disabled
  // S on the device, f32, 0-d, written by update(). Throws Error if no loss was scaled.
  Tensor scale_tensor(int id = 0) const;
  Tensor inverse_scale(int id = 0);  // 1/S, likewise, for gradients of scale(loss) by grad()

  struct Overflow {               // a parameter with a gradient that was not finite
    std::string optimizer, name;  // name is empty unless given
    size_t parameter;             // index in the optimizer's params()
    std::string first_bad_op;     // the last one that an OverflowTrace of this thread found, if any
  };
  // For each optimizer, the parameters whose gradients were not finite in its last step that had
  // such.
  std::vector<Overflow> last_overflow() const;
  // The gradients of an optimizer's last step that counted them. Throws Error if no step has.
  GradientHistogram histogram(const optim::Optimizer& opt) const;
  // The number of backward passes that calibration took; none if the scale was not calibrated.
  std::optional<int64_t> calibration_passes(int id = 0) const;
  // Sets names for last_overflow() and ScaleCollapse, in the order of the optimizer's params().
  void name_parameters(const optim::Optimizer& opt, std::vector<std::string> names);

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker",
  // "hysteresis_tracker", "consecutive_skips", "had_nonfinite_loss" if an unfinished iteration had
  // one, "uncalibrated" before calibration; "scale.1" and so on for the loss with id 1. Loading
  // clamps the scale to [min_scale, max_scale] and abandons the iteration; if names or values do
  // not fit, it throws Error and changes nothing. If disabled, it is empty and is not loaded.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend class LossScaleOptimizer;
  struct Step;
  struct Saved;
  Saved read_state(const StateDict& dict) const;
  void check_state(const StateDict& dict) const;  // throws as loading would, except in a policy
  bool is_divided(const Tensor& p) const;
  bool shares_divided(const optim::Optimizer& opt) const;
  static ScalerOptions options_for(DType low, ScalerOptions options);
  static void check_options(const ScalerOptions& options);
  // Also skips the step unless `earlier_overflow` (f32 [parameters], or no tensor) is all 0: some
  // gradients were not finite before the program changed them.
  StepResult step(optim::Optimizer& opt, const StepOptions& options,
                  const Tensor& earlier_overflow);
  StepResult step_disabled(optim::Optimizer& opt, const StepOptions& options);
  Step check_ready(optim::Optimizer& opt, const StepOptions& options);
  void find_overflow(Step& step, const StepOptions& options, const Tensor& earlier_overflow);
  static void join_found(detail::OptimizerState& state, bool steps);
  void commit(Step& step, StepResult& result);
  internal::View count_next(const optim::Optimizer& opt, size_t parameters, Device device);
  void find_underflow(const optim::Optimizer& opt, const detail::ScaleState& s);
  void warn_of_underflow(detail::OptimizerHistory& h) const;
  void calibrate(detail::ScaleState& s, const Tensor& loss) const;
  std::pair<double, int64_t> search(const detail::ScaleState& s, const Tensor& loss) const;
  void start(detail::ScaleState& s, double scale, int64_t passes) const;

  detail::ScaleState& scale_state(int id);
  detail::OptimizerHistory& history_of(const optim::Optimizer& opt, size_t parameters,
                                       Device device);
  int64_t count(int id, kernels::ScalerCount which) const;
  void poll(detail::ScaleState& s);
  std::string diagnosis(const detail::ScaleState& s) const;

  ScalerOptions options_;
  std::map<int, detail::ScaleState> scales_;
  std::map<uint64_t, detail::OptimizerState> optimizers_;  // by Optimizer::id()
  std::map<uint64_t, detail::OptimizerHistory> histories_;
  // The storages and offsets of gradients that unscale() has divided since update(). It does not
  // divide them again for other optimizers, and step() unscales these optimizers' other gradients
  // first.
  std::vector<std::pair<uint64_t, int64_t>> divided_;  // sorted
};

}  // namespace mixtape::amp
