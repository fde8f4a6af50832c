// A loss scale on its device: set by the program or moved by a kernel.
#include "amp/scaler_state.h"

#include <atomic>
#include <cmath>
#include <utility>

#include "amp/scaler.h"
#include "kernels/kernels.h"
#include "optim/state.h"

namespace mixtape::amp::detail {

using kernels::ScalerCount;

constexpr int64_t remembered_scales = 16;  // for the diagnosis of a collapse

bool is_scale(double value) {
  const float s = static_cast<float>(value);
  return std::isfinite(s) && s > 0;
}

ScaleState::ScaleState(double value)
    : values({2}, f32, Device::cpu()),
      counts(optim::filled({int64_t(ScalerCount::Total)}, 0, i32, Device::cpu())),
      history(optim::filled({remembered_scales}, 0, f32, Device::cpu())) {
  set(value);
}

void ScaleState::set(double value) {
  static std::atomic<uint64_t> last_number = 0;
  if (std::exchange(known_value, value) != value) number = ++last_number;
  const double rounded = static_cast<float>(value);
  kernels::fill(values.device(), rounded, this->value());
  kernels::fill(values.device(), 1 / rounded, inverse());
  values.storage()->bump_version();
}

void ScaleState::move_to(Device device) {
  for (Tensor* t : {&values, &counts, &history}) *t = t->copied_to(device);
}

void ScaleState::update(std::vector<View> found, const Iteration& ended,
                        const ScalerOptions& options) {
  std::vector<View> losses(ended.flags.begin(), ended.flags.end());
  // A loss that contains gradients divided by the scale is not finite where those overflowed.
  if (ended.inverse_taken) {
    found.insert(found.end(), losses.begin(), losses.end());
    losses.clear();
  }
  known_value = 0;
  moves += options.min_scale < options.max_scale;
  const kernels::ScalePolicy policy{options.growth_factor,   options.backoff_factor,
                                    options.min_scale,       options.max_scale,
                                    options.growth_interval, options.hysteresis};
  kernels::scaler_update(values.device(), found, losses, policy, values, counts, history);
  for (const Tensor& t : {values, counts, history}) t.storage()->bump_version();
}

int64_t ScaleState::count(ScalerCount which) const { return counts.at<int64_t>(int64_t(which)); }

}  // namespace mixtape::amp::detail
