// Plateau: the comparison of metrics, the count of bad steps, saving.
#include "optim/plateau.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "core/scope.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
namespace {

std::string rate_name(size_t group) { return fmt::format("group.{}.lr", group); }

}  // namespace

Plateau::Plateau(Optimizer& optimizer, const PlateauOptions& options)
    : optimizer_(optimizer), options_(options) {
  const Scope scope(name());
  check(0 <= options.factor && options.factor < 1, "factor must be in [0, 1), got {}",
        options.factor);
  check(options.patience >= 0, "patience must be >= 0, got {}", options.patience);
  check(options.threshold >= 0, "threshold must be >= 0, got {}", options.threshold);
  check(options.cooldown >= 0, "cooldown must be >= 0, got {}", options.cooldown);
  check(options.min_lr >= 0, "min_lr must be >= 0, got {}", options.min_lr);
  check(options.eps >= 0, "eps must be >= 0, got {}", options.eps);
  best_ = std::numeric_limits<double>::infinity();
  if (options.better == Better::Higher) best_ = -best_;
}

bool Plateau::is_better(double metric) const {
  const bool lower = options_.better == Better::Lower;
  const double by = lower ? -options_.threshold : options_.threshold;
  const double bar = options_.threshold_mode == Threshold::Relative ? best_ * (1 + by) : best_ + by;
  return lower ? metric < bar : metric > bar;
}

void Plateau::step(double metric) {
  ++steps_;
  if (is_better(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_steps_ = 0;
  }
  if (bad_steps_ <= options_.patience) return;
  lower();
  cooldown_ = options_.cooldown;
  bad_steps_ = 0;
}

void Plateau::lower() {
  for (size_t g = 0; g < optimizer_->groups(); ++g) {
    const double now = optimizer_->lr(g), next = std::max(now * options_.factor, options_.min_lr);
    if (now - next > options_.eps) optimizer_->set_lr(next, g);
  }
}

StateDict Plateau::state_dict() const {
  StateDict dict{{"kind", from_text(name())},
                 {"step", from_number(double(steps_))},
                 {"best", from_number(best_)},
                 {"bad_steps", from_number(double(bad_steps_))},
                 {"cooldown", from_number(double(cooldown_))}};
  for (size_t g = 0; g < optimizer_->groups(); ++g)
    dict.emplace_back(rate_name(g), from_number(lr(g)));
  return dict;
}

void Plateau::load_state_dict(const StateDict& dict) {
  const Scope scope(name());
  StateReader reader(dict);
  reader.check_kind(name());
  const double best = reader.number("best");
  const int64_t steps = reader.count("step"), bad_steps = reader.count("bad_steps"),
                cooldown = reader.count("cooldown");
  std::vector<double> rates;
  for (size_t g = 0; g < optimizer_->groups(); ++g) {
    rates.push_back(reader.number(rate_name(g)));
    check(rates[g] >= 0, "{} must be >= 0, got {}", rate_name(g), rates[g]);
  }
  reader.check_all_read();
  best_ = best;
  steps_ = steps;
  bad_steps_ = bad_steps;
  cooldown_ = cooldown;
  for (size_t g = 0; g < rates.size(); ++g)
    if (rates[g] != optimizer_->lr(g)) optimizer_->set_lr(rates[g], g);
}

}  // namespace mixtape::optim
