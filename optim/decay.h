#pragma once
// Schedules that multiply the rate by a factor. Names and values are those of
// torch.optim.lr_scheduler.

#include <functional>
#include <vector>

#include "optim/schedule.h"

namespace mixtape::optim {

// base_lr gamma^floor(step / step_size)
struct StepLrOptions {
  static constexpr std::string_view name = "step_lr";
  int64_t step_size = 0;
  double gamma = 0.1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using StepLr = ClosedForm<StepLrOptions>;

// base_lr gamma^n, where n milestones are reached
struct MultiStepOptions {
  static constexpr std::string_view name = "multi_step";
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using MultiStep = ClosedForm<MultiStepOptions>;

// base_lr gamma^step
struct ExponentialOptions {
  static constexpr std::string_view name = "exponential";
  double gamma = 0;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Exponential = ClosedForm<ExponentialOptions>;

// base_lr times a factor that goes linearly from start_factor to end_factor in total_steps and
// stays there: torch's LinearLR
struct LinearWarmupOptions {
  static constexpr std::string_view name = "linear_warmup";
  int64_t total_steps = 5;
  double start_factor = 1.0 / 3, end_factor = 1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using LinearWarmup = ClosedForm<LinearWarmupOptions>;

// base_lr (1 - step / total_steps)^power, and then 0
struct PolynomialOptions {
  static constexpr std::string_view name = "polynomial";
  int64_t total_steps = 5;
  double power = 1;

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Polynomial = ClosedForm<PolynomialOptions>;

// base_lr factor(step)
struct LambdaOptions {
  static constexpr std::string_view name = "lambda";
  std::function<double(int64_t step)> factor = {};

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Lambda = ClosedForm<LambdaOptions>;

}  // namespace mixtape::optim
