#pragma once
// Plan: how much memory a training takes, and for what, before it runs: its steps on shapes alone.

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
  std::function<void()> step;  // one step on a batch of its own; holds all that it needs
};
// Makes a training for batches of this size, on DefaultDevice::current().
using TrainingMaker = std::function<PlannedTraining(int64_t batch_size)>;

struct PlanOptions {
  // Device::meta() takes neither memory nor time, Device::meta(DeviceType::cuda) tells of a GPU. On
  // any other the steps run, and what they take is measured.
  Device device = Device::meta();
  int64_t steps = 2;  // the first makes the optimizer's state, others have it from the start
};

// Bytes of tensors at the moment when there were most, since before the training was made.
struct Plan {
  int64_t weights = 0;      // and buffers
  int64_t gradients = 0;    // of parameters, with the f32 sums of 16-bit ones
  int64_t masters = 0;      // f32 copies of 16-bit weights
  int64_t state = 0;        // of the optimizer
  int64_t copies = 0;       // 16-bit copies of f32 weights: shadows, and casts that are kept
  int64_t activations = 0;  // all else: the batch, what the tape keeps, what is needed for a moment
  // The sum of these.
  int64_t peak() const { return weights + gradients + masters + state + copies + activations; }

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The memory_stats(device).peak of such a training, to the byte: random numbers come from a Seed,
// and what the device held before does not count. Throws Error for a step that reads values, unless
// it runs on a real device, and for one that is not the same each time.
Plan plan(const TrainingMaker& make, int64_t batch_size, const PlanOptions& options = {});

// The largest batch up to 2^30 with a peak of at most `bytes`, 0 if there is none. Throws Error if
// a step can take none that large, or takes the same for any batch.
int64_t largest_batch(const TrainingMaker& make, int64_t bytes, const PlanOptions& options = {});

struct PlannedMode {  // a row of plan_text()
  std::string name;   // "bf16, checkpoints"
  TrainingMaker make;
};
// A table: for each mode its plan in MiB for this batch, and the largest batch in `bytes`.
std::string plan_text(const std::vector<PlannedMode>& modes, int64_t batch_size, int64_t bytes,
                      const PlanOptions& options = {});

}  // namespace mixtape::amp
