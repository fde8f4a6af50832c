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

// Changes the scale at an update. A loss that is not finite says nothing about the scale.
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

// The state of a parameter's gradients, by the exponent fields of their products with the scale.
struct Underflow {
  static constexpr int first_normal = 127 - 14;  // of f16
  int64_t zeros = 0, low = 0, others = 0;        // low: f16 has them with fewer bits, or as zero

  MIXTAPE_HD void add(int bin, int32_t count) {
    (bin == 0 ? zeros : bin < first_normal ? low : others) += count;
  }
  MIXTAPE_HD float zero_part() const {
    const int64_t all = zeros + low + others;
    return all == 0 ? 0 : float(double(zeros) / double(all));
  }
  // Zeros alone mean nothing (relu makes some, and so do words that did not occur), nor do small
  // numbers; but many of both mean that f16 rounded small numbers to zero.
  MIXTAPE_HD bool is_likely() const { return zero_part() > 0.05f && low > others; }
};
// The parameter with the most underflow; of equal ones, the one with the lower number.
struct WorstUnderflow {
  float zero_part = 0;
  int parameter = -1;
  bool all_zero = true, any_zero = false;  // parameters without gradients have none

  MIXTAPE_HD void add(const Underflow& u, int number) {
    if (u.is_likely()) join({u.zero_part(), number, true});
    all_zero = all_zero && u.low + u.others == 0;
    any_zero = any_zero || u.zeros > 0;
  }
  MIXTAPE_HD void join(const WorstUnderflow& b) {
    const bool worse = b.parameter >= 0 && (parameter < 0 || b.zero_part > zero_part ||
                                            (b.zero_part == zero_part && b.parameter < parameter));
    if (worse) zero_part = b.zero_part, parameter = b.parameter;
    all_zero = all_zero && b.all_zero;
    any_zero = any_zero || b.any_zero;
  }
  MIXTAPE_HD void write(int parameters, float scale, float* worst) const {
    const bool vanished = all_zero && any_zero;
    worst[0] = float(vanished ? parameters : parameter);
    worst[1] = vanished ? 1 : zero_part;
    worst[2] = scale;
  }
};

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
