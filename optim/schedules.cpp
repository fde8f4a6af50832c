// The formulas of the schedules.
#include "optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/scope.h"

namespace mixtape::optim {
using namespace internal;
namespace {

// The fraction of `total` steps that is done, at most 1.
double fraction_of(int64_t step, int64_t total) {
  return static_cast<double>(std::min(step, total)) / static_cast<double>(total);
}

// Half a cosine from a at part = 0 to b at part = 1.
double cosine(double a, double b, double part) {
  return b + (a - b) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

// Throws Error unless it is a range in [0, 1) and, if momentum cycles, every group has a momentum.
void check_momentum(Optimizer& optimizer, double base, double max, bool cycles) {
  check(0 <= base && base <= max && max < 1,
        "base_momentum and max_momentum must be a range in [0, 1), got {} and {}", base, max);
  for (size_t g = 0; cycles && g < optimizer.groups(); ++g) {
    const std::string_view momentum = optimizer.momentum_name(g);
    check(!momentum.empty(), "{} has no momentum to cycle", optimizer.name());
    const double before = optimizer.option(momentum, g);
    optimizer.set_option(momentum, base, g);  // throws now instead of at the peak
    optimizer.set_option(momentum, before, g);
  }
}
// Sets the first `groups` groups, those with which the schedule began; others may have been added.
void set_momentum(Optimizer& optimizer, size_t groups, double momentum) {
  for (size_t g = 0; g < groups; ++g) optimizer.set_option(optimizer.momentum_name(g), momentum, g);
}

}  // namespace

void ConstantOptions::validate() const {
  check(factor >= 0, "factor must be >= 0, got {}", factor);
  check(total_steps >= 0, "total_steps must be >= 0, got {}", total_steps);
}
double ConstantOptions::rate(int64_t step, double base_lr) const {
  return step < total_steps ? base_lr * factor : base_lr;
}

void MultiplicativeOptions::validate() const {
  check(static_cast<bool>(factor), "there is no factor");
}
double MultiplicativeOptions::rate(int64_t step, double base_lr) const {
  for (int64_t i = 1; i <= step; ++i) base_lr *= factor(i);
  return base_lr;
}

void WarmupStableDecayOptions::validate() const {
  check(total_steps > 0, "total_steps must be > 0, got {}", total_steps);
  check(warmup_steps >= 0 && decay_steps >= 0 && warmup_steps <= total_steps - decay_steps,
        "warmup_steps and decay_steps must fit into {} total_steps, got {} and {}", total_steps,
        warmup_steps, decay_steps);
  check(min_lr >= 0, "min_lr must be >= 0, got {}", min_lr);
}
double WarmupStableDecayOptions::rate(int64_t step, double base_lr) const {
  if (step < warmup_steps) return base_lr * fraction_of(step + 1, warmup_steps + 1);
  const int64_t decaying = step - (total_steps - decay_steps);
  if (decaying < 0 || (decay_steps == 0 && step < total_steps)) return base_lr;
  const double part = decay_steps == 0 ? 1 : fraction_of(decaying, decay_steps);
  if (decay == Decay::Cosine) return cosine(base_lr, min_lr, part);
  return std::lerp(base_lr, min_lr, decay == Decay::Sqrt ? std::sqrt(part) : part);
}

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
  check(0 <= options.pct_start && options.pct_start <= 1, "pct_start must be from 0 to 1, got {}",
        options.pct_start);
  check(options.div_factor > 0, "div_factor must be > 0, got {}", options.div_factor);
  check(options.final_div_factor > 0, "final_div_factor must be > 0, got {}",
        options.final_div_factor);
  check_momentum(optimizer, options.base_momentum, options.max_momentum, options.cycle_momentum);
  OneCycle::apply(0);
}

// A curve from start over peak to end.
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
  check(step <= options_.total_steps, "step {} is beyond the {} total_steps of a one_cycle", step,
        options_.total_steps);
  Schedule::apply(step);
  if (options_.cycle_momentum) set_momentum(optimizer(), groups(), momentum_at(step));
}

Cyclic::Cyclic(Optimizer& optimizer, const CyclicOptions& options)
    : Schedule(optimizer), options_(options) {
  const Scope scope(Cyclic::name());
  check(options.max_lr > 0, "max_lr must be > 0, got {}", options.max_lr);
  check(options.steps_up > 0 && options.steps_down >= 0,
        "steps_up must be > 0 and steps_down >= 0, got {} and {}", options.steps_up,
        options.steps_down);
  check(options.gamma > 0, "gamma must be > 0, got {}", options.gamma);
  check_momentum(optimizer, options.base_momentum, options.max_momentum, options.cycle_momentum);
  Cyclic::apply(0);
}

double Cyclic::height(int64_t step) const {
  const int64_t up = options_.steps_up, down = options_.steps_down > 0 ? options_.steps_down : up;
  const int64_t cycle = step / (up + down), now = step % (up + down);
  const double part = now <= up ? double(now) / double(up) : double(up + down - now) / double(down);
  if (options_.cycle == Cycle::Halving)
    return std::ldexp(part, -int(std::min<int64_t>(cycle, 1100)));
  return options_.cycle == Cycle::Decaying ? part * std::pow(options_.gamma, double(step)) : part;
}

double Cyclic::at(int64_t step, size_t group) const {
  return std::lerp(base_lr(group), options_.max_lr, height(step));
}

double Cyclic::momentum_at(int64_t step) const {
  return std::lerp(options_.max_momentum, options_.base_momentum, height(step));
}

void Cyclic::apply(int64_t step) {
  Schedule::apply(step);
  if (options_.cycle_momentum) set_momentum(optimizer(), groups(), momentum_at(step));
}

void SequentialOptions::validate() const {
  check(parts.size() == milestones.size() + 1,
        "there must be a milestone between any two of {1} parts, got {0}", milestones.size(),
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
