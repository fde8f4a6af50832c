// One closed form from several.
#include "optim/sequence.h"

#include <algorithm>

#include "core/check.h"

namespace mixtape::optim {

void SequentialOptions::validate() const {
  check(parts.size() == milestones.size() + 1, "{} milestones between {} parts", milestones.size(),
        parts.size());
  int64_t last = 0;
  for (const int64_t m : milestones) {
    check(m > last, "a milestone must be > {}, got {}", m, last);
    last = m;
  }
}

double SequentialOptions::rate(int64_t step, double base_lr) const {
  const auto next = std::ranges::upper_bound(milestones, step);
  const int64_t begin = next == milestones.begin() ? 0 : *(next - 1);
  return parts[static_cast<size_t>(next - milestones.begin())].rate(step - begin, base_lr);
}

void ChainedOptions::validate() const { check(!parts.empty(), "there are no parts"); }

double ChainedOptions::rate(int64_t step, double base_lr) const {
  for (const Curve& part : parts) base_lr = part.rate(step, base_lr);
  return base_lr;
}

}  // namespace mixtape::optim
