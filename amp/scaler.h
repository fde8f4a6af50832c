#pragma once
// GradScaler: scales the loss, so that f16 gradients do not underflow, by a factor that it adjusts.
// Its state lives on the device, where the optimizer's kernel reads it: a step never waits.

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

// A rule of your own for the scale, in place of growth and backoff. update() asks it, and waits for
// the device to do so.
class LossScalePolicy {
 public:
  struct Update {              // an iteration that ends
    double scale;              // of the steps that end
    bool overflow, bad_loss;   // a gradient, or the loss itself, was not finite: it was skipped
    int64_t updates, skipped;  // so far, with this one
    int loss;                  // id of the loss
  };
  virtual ~LossScalePolicy() = default;
  virtual double next(const Update& update) = 0;  // positive and finite in f32
  // Called with the scale that calibration found; returns the one to take.
  virtual double start(double found) { return found; }
  // Saved and loaded with the scaler's, as "policy.NAME".
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}
};

struct ScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;        // > 1
  double backoff_factor = 0.5;     // in (0, 1)
  int64_t growth_interval = 2000;  // updates without overflow until the scale grows
  bool enabled = true;             // false: every call passes through
  double min_scale = 0;            // falling below it is a ScaleCollapse
  double max_scale = std::numeric_limits<double>::infinity();  // growth stops there
  int64_t hysteresis = 1;  // updates with overflow, in a row, until the scale backs off
  // Skipped steps in a row that are a ScaleCollapse; 0: only one warning, after 50.
  int64_t max_consecutive_skips = 0;
  // The first loss of an iteration that is finite and has gradients finds its scale, by backward
  // passes that are not part of the training: the largest power of two by which all f16 gradients
  // are below 2^12, a 16th of what f16 holds.
  bool calibrate = false;
  int64_t histogram = 0;  // counts gradients by exponent once in so many steps; 0: never
  std::shared_ptr<LossScalePolicy> policy = {};
};

// The scale fell below its minimum, or too many steps in a row were skipped. The message has the
// last loss, recent scales, parameters with bad gradients, and any OverflowTrace's first bad op.
class ScaleCollapse : public Error {
  using Error::Error;
};

struct StepOptions {
  std::optional<double> clip_norm = {};  // limits the norm of all true gradients (clip_grad_norm)
  std::optional<int> loss = {};          // id of the gradients' loss scale; else unscale()'s, or 0
  bool unscaled = false;                 // the gradients are true: something else divided them
};

// The outcome of a step. Reading it may wait for the device; update() does not change it.
class StepResult {
 public:
  enum class State { Stepped, Skipped, NoGrads };
  // The part that was not finite; Gradients also for a loss that may contain some: inverse_scale().
  enum class Cause { None, Gradients, Loss };
  State state() const;
  Cause cause() const;  // of a skipped step, else None
  // True if the step was made: not skipped, and with gradients.
  explicit operator bool() const { return state() == State::Stepped; }
  // True if reading it need not wait.
  bool has_arrived() const {
    return decision_ ? latest().has_arrived() : !skip_reason_ || skip_reason_->has_arrived();
  }
  bool is_deferred() const { return deferred_; }  // a device decides: reading may wait
  const Tensor& norm() const { return norm_; }  // before clipping, f32, 0-d; none without clip_norm
  // In a captured step a result is that of the last replay; this one stays so.
  StepResult latest() const;

 private:
  friend class GradScaler;
  bool has_grads_ = true;
  std::shared_ptr<Readback> skip_reason_;  // of scaler_skip_reason; none: it cannot be skipped
  Tensor decision_;                        // in a captured step: what skip_reason_ is a copy of
  Cause nonfinite_loss_cause_ = Cause::Loss;
  bool deferred_ = false;
  Tensor norm_;
};

namespace detail {

bool is_scale(double value);  // positive and finite in f32

struct ScaleState {   // a loss scale and its counters, on the device of the last loss
  struct Iteration {  // since update()
    bool used = false, inverse_taken = false;
    bool had_nonfinite_loss = false;  // before this was saved and loaded
    bool stepped = false;             // since the last loss
    std::vector<Tensor> flags = {};   // f32 [1] per loss: 1 if it was not finite
    size_t consumed_losses = 0;       // losses that do not concern the next step
    std::span<const Tensor> pending_flags() const;
  };

  explicit ScaleState(double value);
  void set(double value);
  void move_to(Device device);
  void update(std::vector<internal::View> found, const Iteration& ended,
              const ScalerOptions& options, int id);
  void ask_policy(const std::vector<internal::View>& found,
                  const std::vector<internal::View>& losses, LossScalePolicy& policy, int id);
  void write(double value);  // on the device

  // S and 1/S, f32, 0-d: views that the kernel scaler_update writes.
  Tensor value() const { return values.with_layout(internal::Layout({}, {}, 0)); }
  Tensor inverse() const { return values.with_layout(internal::Layout({}, {}, 1)); }

  Tensor values;              // f32 [S, 1/S]
  Tensor counts, history;     // see the kernel scaler_update
  bool has_scaled = false;    // a loss was scaled
  double known_value = 0;     // the value that was set; 0 once update() may have moved it
  uint64_t number = 0;        // for LossScaleTag; another one with each value that is set
  int64_t moves = 0;          // updates that may have moved the scale
  Readback pending_counters;  // counts on their way to poll()
  Tensor last_loss;
  bool warned = false;  // of skips in a row
  // Backward passes that finding the scale took; 0: it is from elsewhere, and stays.
  std::optional<int64_t> calibrated = {};
  Iteration iteration;
};

struct OptimizerState {  // since the last update()
  enum class Stage { Ready, Unscaled, Stepped };
  Stage stage = Stage::Ready;
  int loss = 0;
  Tensor found = {};  // f32 [parameters]: 1 if a gradient was not finite; none without gradients
  std::vector<Tensor> shared = {};  // the parameters, if `found` is of this process's pieces alone
};

struct OptimizerHistory {  // from the optimizer's first step on
  std::string kind;
  std::vector<std::string> names;
  Tensor last;  // OptimizerState::found of the last step that was not finite
  int64_t steps = 0;
  Tensor exponents = {}, worst = {};  // see the kernels unscale and find_underflow
  Readback pending_worst;
  bool warned = false;  // of underflow
};

}  // namespace detail

// Guard: while it lives, a loss scale that calibration finds on this thread becomes join(found),
// such as the least that processes found; infinity stands for none. If join() talks to other
// processes, all of them calibrate at the same time.
class JoinedCalibration : NoCopy {
 public:
  explicit JoinedCalibration(std::function<double(double found)> join);
  ~JoinedCalibration();

 private:
  friend class GradScaler;
  static double joined(double found);
  const std::function<double(double)> join_;
  JoinedCalibration* outer_;
  static thread_local JoinedCalibration* innermost_;
};

// An iteration: scale(loss).backward(), step() for each optimizer, update(). To see or clip the
// true gradients, unscale() before step(). Losses may have scales of their own: scale(loss, id),
// then step(opt, {.loss = id}). Disabled, every call passes through.
// Without unscale(), grad() stays multiplied by S: the optimizer's kernel unscales what it reads. A
// step with inf or NaN in its gradients is skipped: parameters and optimizer state keep their bits,
// and update() lowers the scale. A loss that is not finite also skips the step, but the scale
// stays, since a lower one could not help; except after inverse_scale(), until update(), since then
// the loss may contain gradients that overflowed.
class GradScaler {
 public:
  explicit GradScaler(const ScalerOptions& options = {});  // throws Error on values out of range
  // Enabled only if `low`, the dtype of the Autocast region, is f16: the others have f32's range.
  explicit GradScaler(DType low, const ScalerOptions& options = {});
  GradScaler(GradScaler&&) = default;
  GradScaler& operator=(GradScaler&&) = default;

  bool enabled() const { return options_.enabled; }  // false: every call passes through
  bool is_enabled() const { return enabled(); }      // PyTorch's name
  const ScalerOptions& options() const { return options_; }

  // loss * S, in f32 (f64 if the loss is).
  Tensor scale(const Tensor& loss, int id = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses, int id = 0);
  // Divides the gradients by S and notes which are not finite; f16 gradients become f32. Throws
  // Error if no loss was scaled, on a second call or after step() before update(), if a gradient
  // carries another scale, or for f16 parameters without f32 copies in the optimizer. Warns if a
  // gradient contains an unscaled loss, or losses from before and after an update().
  void unscale(optim::Optimizer& opt, int id = 0);
  void unscale_(optim::Optimizer& opt) { unscale(opt); }
  // Throws Error as unscale() does, or if a scaled loss has added to a gradient since unscale().
  StepResult step(optim::Optimizer& opt, const StepOptions& options = {}) {
    return step(opt, options, Tensor());
  }
  // Ends the iteration: moves each scale by what its optimizers found (nothing without gradients),
  // or sets all to new_scale. Throws Error if no loss was ever scaled, or one was but none stepped.
  void update(std::optional<double> new_scale = {});

  // After a replay of update(): warns of skipped steps, or throws ScaleCollapse, as update() does.
  void poll();

  // Ends an iteration without a step, as after an exception: forgets its losses and gradients.
  void abandon();

  // These wait for the device.
  double scale_value(int id = 0) const;               // 1 if disabled
  double get_scale() const { return scale_value(); }  // PyTorch's name, of the loss with id 0
  int64_t growth_tracker(int id = 0) const;  // updates without overflow since the scale moved
  struct Counters {  // of iterations: those that update() ended, and the skipped ones
    int64_t updates = 0, skipped = 0;
  };
  Counters counters(int id = 0) const;  // of that loss; 0 if disabled
  // S on the device, f32, 0-d, written by update(). Throws Error if no loss was scaled.
  Tensor scale_tensor(int id = 0) const;
  Tensor inverse_scale(int id = 0);  // 1/S likewise, for gradients of scale(loss) from grad()

  struct Overflow {               // a parameter with a gradient that was not finite
    std::string optimizer, name;  // name: empty unless given
    size_t parameter;             // index in the optimizer's params()
    std::string first_bad_op;     // the last that an OverflowTrace of this thread found, if any
  };
  // The parameters whose gradients were not finite in their optimizer's last step with any.
  std::vector<Overflow> last_overflow() const;
  // The gradients of an optimizer's last step that counted them. Throws Error if none has.
  GradientHistogram histogram(const optim::Optimizer& opt) const;
  // Backward passes that finding the scale took; none if it was not calibrated.
  std::optional<int64_t> calibration_passes(int id = 0) const;
  // Names for last_overflow and ScaleCollapse, in the order of the optimizer's params().
  void name_parameters(const optim::Optimizer& opt, std::vector<std::string> names);

  // "scale", "growth_factor", "backoff_factor", "growth_interval", "growth_tracker",
  // "hysteresis_tracker", "consecutive_skips", and "had_nonfinite_loss" if an unfinished iteration
  // had one; "scale.1" and so on for the loss with id 1. Loading clamps the scale to [min_scale,
  // max_scale], abandons the iteration, and throws Error, changing nothing, if names or values do
  // not fit. Disabled, the state is empty and loading does nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  friend class LossScaleOptimizer;
  struct Step;
  struct Saved;
  Saved read_state(const StateDict& dict) const;
  void check_state(const StateDict& dict) const;  // throws what loading would, but for a policy's
  bool is_divided(const Tensor& p) const;
  bool shares_divided(const optim::Optimizer& opt) const;
  static void check_options(const ScalerOptions& options);
  // Also skips the step if `earlier_overflow` (f32 [parameters], or no tensor) is not all 0: some
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
  // The storages and offsets of gradients that unscale() has divided since update(), so that it
  // leaves them alone in other optimizers, which step() then unscales as well.
  std::vector<std::pair<uint64_t, int64_t>> divided_;  // sorted
};

}  // namespace mixtape::amp
