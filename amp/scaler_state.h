#pragma once
// The parts of a GradScaler: a ScaleState per loss id, an OptimizerState per optimizer until
// update() and an OptimizerHistory per optimizer.

#include <string>
#include <vector>

#include "core/readback.h"
#include "core/tensor.h"

namespace mixtape::kernels {
enum class ScalerCount : int;
}

namespace mixtape::amp {

struct ScalerOptions;

namespace detail {

bool is_scale(double value);  // positive and finite in f32

// A loss scale and its counters, on the device of the last loss.
struct ScaleState {
  struct Iteration {  // since update()
    bool used = false, inverse_taken = false;
    bool had_nonfinite_loss = false;  // before this was saved and loaded
    bool stepped = false;             // since the last loss
    std::vector<Tensor> flags = {};   // f32 [1] per loss: 1 if it was not finite
    size_t consumed_losses = 0;       // losses that do not concern the next step
    std::vector<View> pending_flags() const {
      return {flags.begin() + int64_t(consumed_losses), flags.end()};
    }
  };

  explicit ScaleState(double value);
  void set(double value);
  void move_to(Device device);
  // Moves the scale by what was found in the gradients and losses of an iteration.
  void update(std::vector<View> found, const Iteration& ended, const ScalerOptions& options);

  // S and 1/S, f32, 0-d: views of what the kernel scaler_update writes.
  Tensor value() const { return values.with_layout(Layout({}, {}, 0)); }
  Tensor inverse() const { return values.with_layout(Layout({}, {}, 1)); }
  int64_t count(kernels::ScalerCount which) const;  // waits for the device

  Tensor values;              // f32 [S, 1/S]
  Tensor counts, history;     // see the kernel scaler_update
  bool has_scaled = false;    // a loss was scaled
  double known_value = 0;     // the value that was set; 0 once update() may have moved it
  uint64_t number = 0;        // for LossScaleTag; another one with each value that is set
  int64_t moves = 0;          // updates that may have moved the scale
  Readback pending_counters;  // counts on their way to poll()
  Tensor last_loss;
  bool warned = false;  // of skips in a row
  Iteration iteration;
};

// An optimizer since the last update().
struct OptimizerState {
  enum class Stage { Ready, Unscaled, Stepped };
  Stage stage = Stage::Ready;
  int loss = 0;
  Tensor found = {};  // f32 [parameters]: 1 if a gradient was not finite; none without gradients
};

// An optimizer from its first step on.
struct OptimizerHistory {
  std::string kind;
  std::vector<std::string> names;
  Tensor last;  // OptimizerState::found of the last step that was not finite
};

}  // namespace detail
}  // namespace mixtape::amp
