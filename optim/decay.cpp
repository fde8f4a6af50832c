// The closed forms of schedules that multiply the rate by a factor.
#include "optim/decay.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace mixtape::optim {
namespace {

// The fraction of `total` steps that are done, at most 1.
double fraction_of(int64_t step, int64_t total) {
  return static_cast<double>(std::min(step, total)) / static_cast<double>(total);
}

}  // namespace

void StepLrOptions::validate() const {
  check(step_size > 0, "step_size must be > 0, got {}", step_size);
  check(gamma >= 0, "gamma must be >= 0, got {}", gamma);
}
double StepLrOptions::rate(int64_t step, double base_lr) const {
  return base_lr * std::pow(gamma, static_cast<double>(step / step_size));
}

void MultiStepOptions::validate() const {
  for (const int64_t m : milestones) check(m > 0, "a milestone must be > 0, got {}", m);
  check(gamma >= 0, "gamma must be >= 0, got {}", gamma);
}
double MultiStepOptions::rate(int64_t step, double base_lr) const {
  const auto reached = std::ranges::count_if(milestones, [&](int64_t m) { return m <= step; });
  return base_lr * std::pow(gamma, static_cast<double>(reached));
}

void ExponentialOptions::validate() const { check(gamma > 0, "gamma must be > 0, got {}", gamma); }
double ExponentialOptions::rate(int64_t step, double base_lr) const {
  return base_lr * std::pow(gamma, static_cast<double>(step));
}

void LinearWarmupOptions::validate() const {
  check(total_steps > 0, "total_steps must be > 0, got {}", total_steps);
  check(start_factor >= 0, "start_factor must be >= 0, got {}", start_factor);
  check(end_factor >= 0, "end_factor must be >= 0, got {}", end_factor);
}
double LinearWarmupOptions::rate(int64_t step, double base_lr) const {
  return base_lr * std::lerp(start_factor, end_factor, fraction_of(step, total_steps));
}

void PolynomialOptions::validate() const {
  check(total_steps > 0, "total_steps must be > 0, got {}", total_steps);
  check(power >= 0, "power must be >= 0, got {}", power);
}
double PolynomialOptions::rate(int64_t step, double base_lr) const {
  return base_lr * std::pow(1 - fraction_of(step, total_steps), power);
}

void LambdaOptions::validate() const { check(static_cast<bool>(factor), "there is no factor"); }
double LambdaOptions::rate(int64_t step, double base_lr) const { return base_lr * factor(step); }

}  // namespace mixtape::optim
