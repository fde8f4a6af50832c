#pragma once
// The loss scaler's arithmetic, for both devices: a handful of scalars that live where the
// gradients do.

#include <algorithm>
#include <limits>

#include "kernels/kernels.h"

namespace mixtape::kernels {

// What to skip a step for: 2 for a loss, 1 for a gradient that is not finite.
MIXTAPE_HD inline float skip_reason(bool broken, bool bad) {
  return broken ? 2.0f : bad ? 1.0f : 0.0f;
}

// A loss that is not finite (broken) says nothing about the scale: neither good nor bad.
MIXTAPE_HD inline void update_scale(const ScalePolicy& rule, bool broken, bool bad, float* scale,
                                    int32_t* counts, float* history, int64_t remembered) {
  const auto count = [&](ScalerCount c) -> int32_t& { return counts[int(c)]; };
  bad = bad && !broken;
  float s = *scale;
  if (bad) {
    count(ScalerCount::Growth) = 0;
    if (++count(ScalerCount::Bad) >= rule.hysteresis) {
      const double floor = std::max<double>(rule.min_scale, std::numeric_limits<float>::min());
      const double next = s * rule.backoff;
      if (next < floor) count(ScalerCount::AtFloor) = 1;  // until somebody was told
      s = static_cast<float>(std::max(next, floor));
    }
  } else if (!broken) {
    count(ScalerCount::Bad) = 0;
    if (++count(ScalerCount::Growth) >= rule.interval) {
      count(ScalerCount::Growth) = 0;
      const float next = static_cast<float>(s * rule.growth);
      if (next <= std::numeric_limits<float>::max() && next <= rule.max_scale) s = next;
    }
  }
  const bool skipped = bad || broken;
  count(ScalerCount::Skips) = skipped ? count(ScalerCount::Skips) + 1 : 0;
  count(ScalerCount::Longest) = std::max(count(ScalerCount::Longest), count(ScalerCount::Skips));
  count(ScalerCount::Skipped) += skipped;
  scale[0] = s;
  scale[1] = static_cast<float>(1.0 / s);
  history[count(ScalerCount::Ended)++ % remembered] = s;
}

// The norm of gradients that are yet to be multiplied by `scale`, and what to multiply them by so
// that they are no longer than max_norm.
struct ClipFactor {
  float norm, factor;

  MIXTAPE_HD ClipFactor(double length, double scale, double max_norm) {
    const double total = length * scale, clip = max_norm / (total + 1e-6);
    norm = static_cast<float>(total);
    factor = static_cast<float>(clip > 1 ? scale : scale * clip);  // NaN stays NaN
  }
};

}  // namespace mixtape::kernels
