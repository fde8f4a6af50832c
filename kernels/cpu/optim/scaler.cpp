// The loss scaler's decisions from the flags of losses and gradients (kernels/common/scaling.h).

#include <algorithm>

#include "kernels/common/scaling.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

bool any(In flags) {
  const float* const f = flags.as<float>();
  return std::any_of(f, f + flags.size(), [](float x) { return x != 0; });
}
bool any(std::span<const View> all) {
  return std::any_of(all.begin(), all.end(), [](In flags) { return any(flags); });
}

}  // namespace

void scaler_skip_reason(Launch&, In found, std::span<const View> losses, Out reason, Out last) {
  const bool overflow = any(found);
  *reason.as<float>() = skip_reason(any(losses), overflow);
  if (overflow) std::copy_n(found.as<float>(), found.size(), last.as<float>());
}

void find_underflow(Launch&, In exponents, In scale, Out worst) {
  const int parameters = int(exponents.shape()[0]);
  WorstUnderflow all;
  for (int p = 0; p < parameters; ++p) {
    Underflow u;
    for (int e = 0; e < exponent_bins; ++e)
      u.add(e, exponents.as<int32_t>()[p * exponent_bins + e]);
    all.add(u, p);
  }
  all.write(parameters, *scale.as<float>(), worst.as<float>());
}

void scaler_update(Launch&, std::span<const View> found, std::span<const View> losses,
                   const ScalePolicy& policy, Out scale, Out counts, Out history) {
  update_scale(policy, any(losses), any(found), scale.as<float>(), counts.as<int32_t>(),
               history.as<float>(), history.size());
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
