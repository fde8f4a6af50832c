#pragma once
// The loss scaler's arithmetic, for both devices: a few scalars on the gradients' device.

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"

namespace mixtape::kernels {

// The reason to skip a step: 2, a loss is not finite; 1, a gradient is not; 0, none.
MIXTAPE_HD inline float skip_reason(bool bad_loss, bool bad_gradient) {
  return bad_loss ? 2.0f : bad_gradient ? 1.0f : 0.0f;
}

// Moves the scale after an update. A loss that is not finite tells nothing about the scale.
MIXTAPE_HD inline void update_scale(const ScalePolicy& policy, bool bad_loss, bool bad_gradient,
                                    float* scale, int32_t* counts, float* history,
                                    int64_t remembered) {
  const auto count = [&](ScalerCount c) -> int32_t& { return counts[int(c)]; };
  const bool overflow = bad_gradient && !bad_loss;
  float s = *scale;
  if (overflow) {
    count(ScalerCount::Growth) = 0;
    if (++count(ScalerCount::Bad) >= policy.hysteresis) {
      const double floor = std::max<double>(policy.min_scale, std::numeric_limits<float>::min());
      const double next = s * policy.backoff;
      if (next < floor) count(ScalerCount::AtFloor) = 1;  // until it is reported
      s = static_cast<float>(std::max(next, floor));
    }
  } else if (!bad_loss) {
    count(ScalerCount::Bad) = 0;
    if (++count(ScalerCount::Growth) >= policy.interval) {
      count(ScalerCount::Growth) = 0;
      const float next = static_cast<float>(s * policy.growth);
      if (next <= std::numeric_limits<float>::max() && next <= policy.max_scale) s = next;
    }
  }
  const bool skipped = overflow || bad_loss;
  count(ScalerCount::Skips) = skipped ? count(ScalerCount::Skips) + 1 : 0;
  count(ScalerCount::Longest) = std::max(count(ScalerCount::Longest), count(ScalerCount::Skips));
  count(ScalerCount::Skipped) += skipped;
  scale[0] = s;
  scale[1] = static_cast<float>(1.0 / s);
  history[count(ScalerCount::Ended)++ % remembered] = s;
}

// The norm of gradients times `scale`, and the factor that scales them and limits it to max_norm.
struct ClipFactor {
  double norm, factor;

  MIXTAPE_HD ClipFactor(double length, double scale, double max_norm) {
    const double total = length * scale, clip = max_norm / (total + 1e-6);
    norm = total;
    factor = clip > 1 ? scale : scale * clip;  // NaN stays NaN
  }
};

}  // namespace mixtape::kernels
