// The closed forms along a cosine.
#include "optim/cosine.h"

#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/scope.h"

namespace mixtape::optim {
namespace {

// Half a cosine from a at part = 0 to b at part = 1.
double cosine(double a, double b, double part) {
  return b + (a - b) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

void CosineOptions::validate() const {
  check(total_steps > 0, "total_steps must be > 0, got {}", total_steps);
  check(min_lr >= 0, "min_lr must be >= 0, got {}", min_lr);
}
double CosineOptions::rate(int64_t step, double base_lr) const {
  return cosine(base_lr, min_lr, static_cast<double>(step) / static_cast<double>(total_steps));
}

void CosineRestartsOptions::validate() const {
  check(first_steps > 0, "first_steps must be > 0, got {}", first_steps);
  check(factor > 0, "factor must be > 0, got {}", factor);
  check(min_lr >= 0, "min_lr must be >= 0, got {}", min_lr);
}
double CosineRestartsOptions::rate(int64_t step, double base_lr) const {
  int64_t length = first_steps;
  if (factor == 1) step %= length;
  while (step >= length) {
    step -= length;
    if (__builtin_mul_overflow(length, factor, &length)) length = INT64_MAX;
  }
  return cosine(base_lr, min_lr, static_cast<double>(step) / static_cast<double>(length));
}

OneCycle::OneCycle(Optimizer& optimizer, const OneCycleOptions& options)
    : Schedule(optimizer), options_(options) {
  const Scope scope(OneCycle::name());
  for (size_t g = 0; g < optimizer.groups(); ++g)
    check(max_lr(g) > 0, "max_lr of group {} must be > 0, got {}", g, max_lr(g));
  check(options.total_steps > 0, "total_steps must be > 0, got {}", options.total_steps);
  check(0 <= options.pct_start && options.pct_start <= 1, "pct_start must be in [0, 1], got {}",
        options.pct_start);
  check(options.div_factor > 0, "div_factor must be > 0, got {}", options.div_factor);
  check(options.final_div_factor > 0, "final_div_factor must be > 0, got {}",
        options.final_div_factor);
  check(0 <= options.base_momentum && options.base_momentum <= options.max_momentum &&
            options.max_momentum < 1,
        "base_momentum and max_momentum must be a range in [0, 1), got {} and {}",
        options.base_momentum, options.max_momentum);
  for (size_t g = 0; options.cycle_momentum && g < optimizer.groups(); ++g) {
    const std::string_view momentum = optimizer.momentum_name(g);
    check(!momentum.empty(), "{} has no momentum to cycle", optimizer.name());
    const double before = optimizer.option(momentum, g);
    optimizer.set_option(momentum, options.base_momentum, g);  // throws now rather than at the peak
    optimizer.set_option(momentum, before, g);
  }
  OneCycle::apply(0);
}

// The value at a step of a curve from start over peak to end.
double OneCycle::between(int64_t step, double start, double peak, double end) const {
  const double last = static_cast<double>(options_.total_steps) - 1;
  const double top = options_.pct_start * static_cast<double>(options_.total_steps) - 1;
  const double now = std::min(static_cast<double>(step), last);
  const bool rises = now <= top;
  const double a = rises ? start : peak, b = rises ? peak : end;
  const double length = rises ? top : last - top;
  const double part = length > 0 ? (rises ? now : now - top) / length : 1;
  return options_.anneal == Anneal::Cosine ? cosine(a, b, part) : a + (b - a) * part;
}

double OneCycle::at(int64_t step, size_t group) const {
  const double start = max_lr(group) / options_.div_factor;
  return between(step, start, max_lr(group), start / options_.final_div_factor);
}

double OneCycle::momentum_at(int64_t step) const {
  return between(step, options_.max_momentum, options_.base_momentum, options_.max_momentum);
}

void OneCycle::apply(int64_t step) {
  check(step <= options_.total_steps, "step {} of a one_cycle of {} total_steps", step,
        options_.total_steps);
  Schedule::apply(step);
  if (!options_.cycle_momentum) return;
  for (size_t g = 0; g < groups(); ++g)
    optimizer().set_option(optimizer().momentum_name(g), momentum_at(step), g);
}

}  // namespace mixtape::optim
