// How far a schedule is, and how that is saved.
#include "optim/schedule.h"

#include "core/check.h"
#include "core/op.h"

namespace mixtape::optim {
namespace {

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

void Schedule::settle() {
  int64_t steps = steps_;
  for (; !coming_.empty() && coming_.front().has_arrived(); coming_.pop_front())
    steps -= !coming_.front().stepped();
  if (steps != steps_) go_to(steps);
}

StateDict Schedule::state_dict() const {
  int64_t steps = steps_;  // less what nobody could take back who loads it
  for (const Coming& coming : coming_) steps -= !coming.stepped();
  StateDict dict{{"kind", from_text(name())},
                 {"step", from({static_cast<double>(steps)}, {}, i64)}};
  for (size_t g = 0; g < base_lr_.size(); ++g)
    dict.emplace_back(base_name(g), from({base_lr_[g]}, {}, f64));
  return dict;
}

void Schedule::load_state_dict(const StateDict& dict) {
  const Scope scope("schedule");
  StateReader reader(dict);
  reader.check_kind(name());
  const int64_t step = reader.count("step");
  std::vector<double> rates;
  for (size_t g = 0; g < base_lr_.size(); ++g) rates.push_back(reader.number(base_name(g)));
  reader.check_all_read();
  std::swap(base_lr_, rates);
  try {
    go_to(step);
  } catch (...) {
    std::swap(base_lr_, rates);
    throw;
  }
  coming_.clear();
}

}  // namespace mixtape::optim
