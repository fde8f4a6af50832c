// The loss scaler's arithmetic: a handful of scalars that live where the gradients do, so that no
// step waits for the host.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

bool any(In flags) {
  const float* const f = flags.as<float>();
  return std::any_of(f, f + flags.size(), [](float x) { return x != 0; });
}
bool any(std::span<const View> all) {
  return std::any_of(all.begin(), all.end(), [](In flags) { return any(flags); });
}

}  // namespace

void scaler_verdict(Launch&, In found, std::span<const View> losses, Out verdict, Out last) {
  const bool bad = any(found);
  *verdict.as<float>() = any(losses) ? 2.0f : bad ? 1.0f : 0.0f;
  if (bad) std::copy_n(found.as<float>(), found.size(), last.as<float>());
}

// A loss that is not finite says nothing about the scale: neither good nor bad.
void scaler_update(Launch&, std::span<const View> found, std::span<const View> losses,
                   const ScalerRule& rule, Out scale, Out counts, Out history) {
  const auto count = [&](ScalerCount c) -> int32_t& { return counts.as<int32_t>()[int(c)]; };
  float& s = *scale.as<float>();
  const bool broken = any(losses), bad = !broken && any(found);
  count(ScalerCount::AtFloor) = 0;
  if (bad) {
    count(ScalerCount::Growth) = 0;
    if (++count(ScalerCount::Bad) >= rule.hysteresis) {
      const double floor = std::max<double>(rule.min_scale, std::numeric_limits<float>::min());
      const double next = s * rule.backoff;
      count(ScalerCount::AtFloor) = next < floor;
      s = static_cast<float>(std::max(next, floor));
    }
  } else if (!broken) {
    count(ScalerCount::Bad) = 0;
    if (++count(ScalerCount::Growth) >= rule.interval) {
      count(ScalerCount::Growth) = 0;
      const float next = static_cast<float>(s * rule.growth);
      if (std::isfinite(next) && next <= rule.max_scale) s = next;
    }
  }
  const bool skipped = bad || broken;
  count(ScalerCount::Skips) = skipped ? count(ScalerCount::Skips) + 1 : 0;
  count(ScalerCount::Skipped) += skipped;
  scale.as<float>()[1] = static_cast<float>(1.0 / s);
  history.as<float>()[count(ScalerCount::Updates)++ % history.size()] = s;
}

}  // namespace mixtape::kernels::cpu
