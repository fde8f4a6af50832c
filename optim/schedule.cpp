// The closed forms, and how far a schedule is.
#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/op.h"

namespace mixtape::optim {
namespace {

// From a at part = 0 to b at part = 1 along half a cosine.
double cosine(double a, double b, double part) {
  return b + (a - b) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

std::string base_name(size_t group) { return fmt::format("group.{}.base_lr", group); }

}  // namespace

Schedule::Schedule(Optimizer& optimizer) : optimizer_(&optimizer) {
  for (size_t g = 0; g < optimizer.groups(); ++g) base_lr_.push_back(optimizer.lr(g));
}

void Schedule::apply(int64_t step) {
  for (size_t g = 0; g < base_lr_.size(); ++g) optimizer_->set_lr(at(step, g), g);
}

void Schedule::go_to(int64_t step) {
  apply(step);
  steps_ = step;
}

StateDict Schedule::state_dict() const {
  StateDict dict{{"step", from({static_cast<double>(steps_)}, {}, i64)}};
  for (size_t g = 0; g < base_lr_.size(); ++g)
    dict.emplace_back(base_name(g), from({base_lr_[g]}, {}, f64));
  return dict;
}

void Schedule::load_state_dict(const StateDict& dict) {
  const Scope scope("schedule");
  check(dict.size() == base_lr_.size() + 1, "{} values for {} groups and a step", dict.size(),
        base_lr_.size());
  const auto read = [&](size_t i, const std::string& name) {
    const auto& [key, value] = dict[i];
    check(key == name, "'{}' where {} is expected", key, name);
    check(static_cast<bool>(value), "{} is no tensor", name);
    return value.item();
  };
  const double step = read(0, "step");
  check(step >= 0, "step is {}, not a number from 0", step);
  std::vector<double> rates;
  for (size_t g = 0; g < base_lr_.size(); ++g) rates.push_back(read(g + 1, base_name(g)));
  std::swap(base_lr_, rates);
  try {
    go_to(static_cast<int64_t>(step));
  } catch (...) {
    std::swap(base_lr_, rates);
    throw;
  }
}

OneCycle::OneCycle(Optimizer& optimizer, const OneCycleOptions& options)
    : Schedule(optimizer), options_(options) {
  const Scope scope("one_cycle");
  check(options.max_lr > 0, "max_lr is {}, not a positive number", options.max_lr);
  check(options.total_steps > 0, "total_steps is {}, not a positive number", options.total_steps);
  check(0 <= options.pct_start && options.pct_start <= 1, "pct_start is {}, not in [0, 1]",
        options.pct_start);
  check(options.div_factor > 0, "div_factor is {}, not a positive number", options.div_factor);
  check(options.final_div_factor > 0, "final_div_factor is {}, not a positive number",
        options.final_div_factor);
  check(0 <= options.base_momentum && options.base_momentum <= options.max_momentum &&
            options.max_momentum < 1,
        "momentum from {} to {} is not a range in [0, 1)", options.base_momentum,
        options.max_momentum);
  OneCycle::apply(0);
}

// The value of what goes from start over peak to end.
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

double OneCycle::at(int64_t step, size_t) const {
  const double start = options_.max_lr / options_.div_factor;
  return between(step, start, options_.max_lr, start / options_.final_div_factor);
}

double OneCycle::momentum_at(int64_t step) const {
  return between(step, options_.max_momentum, options_.base_momentum, options_.max_momentum);
}

void OneCycle::apply(int64_t step) {
  check(step <= options_.total_steps, "step {} of a schedule of {}", step, options_.total_steps);
  Schedule::apply(step);
  if (!options_.cycle_momentum) return;
  for (size_t g = 0; g < optimizer().groups(); ++g)
    optimizer().set_option(optimizer().momentum_name(), momentum_at(step), g);
}

Cosine::Cosine(Optimizer& optimizer, const CosineOptions& options)
    : Schedule(optimizer), options_(options) {
  const Scope scope("cosine");
  check(options.total_steps > 0, "total_steps is {}, not a positive number", options.total_steps);
  check(options.min_lr >= 0, "min_lr is {}, not a number from 0", options.min_lr);
}

double Cosine::at(int64_t step, size_t group) const {
  const double part = static_cast<double>(step) / static_cast<double>(options_.total_steps);
  return cosine(base_lr(group), options_.min_lr, part);
}

}  // namespace mixtape::optim
