#pragma once
// Plan: finds how much memory a training will take, by use, by running its steps on shapes
// alone.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "optim/optimizer.h"

namespace mixtape::amp {

struct PlannedTraining {  // a training whose memory plan() counts
  std::vector<std::shared_ptr<const optim::Optimizer>> optimizers;  // two, for a GAN
  std::function<void()> step;  // one step on its own batch; owns everything that it needs
};
// Makes a training for batches of this size, on DefaultDevice::current().
using TrainingMaker = std::function<PlannedTraining(int64_t batch_size)>;

struct PlanOptions {
  // Device::meta() takes neither memory nor time; Device::meta(DeviceType::cuda) plans for a GPU.
  // On any other device the steps run, and their memory is measured.
  Device device = Device::meta();
  int64_t steps = 2;  // the first makes the optimizer's state, later ones begin with it
};

// The bytes of tensors at the peak, counted from before the training was made.
struct Plan {
  int64_t weights = 0;      // and buffers
  int64_t gradients = 0;    // of parameters, including the f32 sums of 16-bit ones
  int64_t masters = 0;      // f32 copies of 16-bit weights
  int64_t state = 0;        // of the optimizer
  int64_t copies = 0;       // 16-bit copies of f32 weights: shadows and cached casts
  int64_t activations = 0;  // all else: the batch, tensors that the tape saved, temporary ones
  // The sum of all.
  int64_t peak() const { return weights + gradients + masters + state + copies + activations; }

  friend bool operator==(const Plan&, const Plan&) = default;
};

// Plans a training. The peak equals its memory_stats(device).peak to the byte, not counting what
// the device held before. (Random numbers come from a Seed.) Throws Error for a step that reads
// values, unless it runs on a real device, and for a step that is not the same each time.
Plan plan(const TrainingMaker& make, int64_t batch_size, const PlanOptions& options = {});

// The largest batch, up to 2^30, whose peak is at most `bytes`; 0 if there is none. Throws Error if
// a step fails for such a batch, or takes the same memory for any batch.
int64_t largest_batch(const TrainingMaker& make, int64_t bytes, const PlanOptions& options = {});

struct PlannedMode {  // a row of plan_text()
  std::string name;   // "bf16, checkpoints"
  TrainingMaker make;
};
// A table with a row for each mode: its plan in MiB for this batch, and the largest batch that fits
// into `bytes`.
std::string plan_text(const std::vector<PlannedMode>& modes, int64_t batch_size, int64_t bytes,
                      const PlanOptions& options = {});

}  // namespace mixtape::amp
