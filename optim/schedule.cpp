// The position of a schedule: advancing, taking back skipped steps, saving.
#include "optim/schedule.h"

#include <fmt/format.h>

#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
namespace {

std::string base_name(size_t group) { return fmt::format("group.{}.base_lr", group); }

}  // namespace

Schedule::Schedule(Optimizer& optimizer) : optimizer_(optimizer) {
  for (size_t g = 0; g < optimizer.groups(); ++g) base_lr_.push_back(optimizer.base_lr(g));
}

void Schedule::apply(int64_t step) {
  for (size_t g = 0; g < groups(); ++g) optimizer_->set_scheduled_lr(at(step, g), base_lr_[g], g);
}

void Schedule::advance(int64_t by, size_t most) {
  check_no_capture("a schedule steps between replays");
  int64_t steps = steps_ + by;
  for (; pending_.size() > most; pending_.erase(pending_.begin())) steps -= !pending_.front()();
  if (steps == steps_) return;
  const void* const other = std::exchange(optimizer_->stepped_by_, this);
  if (other && other != this && steps_ > 0)
    warn("two schedules step in turn, and the last decides the rate: make one Chained of both");
  try {
    apply(steps);
    steps_ = steps;
  } catch (const Error&) {
    // Beyond the end, unless some pending steps did not happen.
    if (pending_.empty()) throw;
    advance(steps - steps_, 0);
  }
}

std::vector<double> Schedule::get_last_lr() const {
  std::vector<double> rates;
  for (size_t group = 0; group < optimizer_->groups(); ++group) rates.push_back(lr(group));
  return rates;
}

double Schedule::base_lr(size_t group) const {
  check(group < base_lr_.size(), "group {} is out of range for the {} groups that {} began with",
        group, base_lr_.size(), name());
  return base_lr_[group];
}

StateDict Schedule::state_dict() const {
  StateDict dict{{"kind", from_text(name())}, {"step", from_number(static_cast<double>(steps_))}};
  for (size_t g = 0; g < base_lr_.size(); ++g)
    dict.emplace_back(base_name(g), from_number(base_lr_[g]));
  if (pending_.empty()) return dict;
  std::vector<double> happened;
  for (const auto& step_happened : pending_) happened.push_back(step_happened());
  const DefaultDevice here(Device::cpu());
  dict.emplace_back("coming", from(happened, {int64_t(happened.size())}));
  return dict;
}

void Schedule::load_state_dict(const StateDict& dict) {
  const Scope scope("schedule");
  StateReader reader(dict);
  reader.check_kind(name());
  const int64_t step = reader.count("step");
  std::vector<double> rates, before, bases;
  for (size_t g = 0; g < base_lr_.size(); ++g) {
    rates.push_back(reader.number(base_name(g)));
    before.push_back(lr(g));  // a user may have set it
    bases.push_back(optimizer_->base_lr(g));
  }
  decltype(pending_) pending;
  if (const Tensor* const of = reader.find("coming")) {
    check(of->rank() == 1 && of->numel() <= int64_t(lag),
          "coming must have shape [n], n <= {}, got {}", lag, of->shape());
    for (int64_t i = 0; i < of->numel(); ++i)
      pending.push_back([happened = of->at(i) != 0] { return happened; });
  }
  reader.check_all_read();
  std::swap(base_lr_, rates);
  try {
    apply(step);
    steps_ = step;
  } catch (...) {
    std::swap(base_lr_, rates);
    for (size_t g = 0; g < before.size(); ++g) optimizer_->set_scheduled_lr(before[g], bases[g], g);
    throw;
  }
  pending_ = std::move(pending);
  optimizer_->stepped_by_ = this;
}

}  // namespace mixtape::optim
