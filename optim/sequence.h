#pragma once
// Schedules composed of schedules. Their parts are options, which define closed forms:
//   optim::Sequential schedule(opt, {.parts = {optim::LinearWarmupOptions{.total_steps = 100},
//                                              optim::CosineOptions{.total_steps = 900}},
//                                    .milestones = {100}});

#include <concepts>
#include <functional>
#include <vector>

#include "optim/schedule.h"

namespace mixtape::optim {

// The options of any ClosedForm, checked.
class Curve {
 public:
  template <class Options>
    requires requires(const Options& o) {
      { o.rate(int64_t{}, 1.0) } -> std::same_as<double>;
    }
  Curve(const Options& options)
      : rate_([options](int64_t step, double base_lr) { return options.rate(step, base_lr); }) {
    const Scope scope(Options::name);
    options.validate();
  }
  double rate(int64_t step, double base_lr) const { return rate_(step, base_lr); }

 private:
  std::function<double(int64_t, double)> rate_;
};

// Part 0 until the first milestone, then part 1 from its own beginning, and so on: torch's
// SequentialLR.
struct SequentialOptions {
  static constexpr std::string_view name = "sequential";
  std::vector<Curve> parts = {};
  std::vector<int64_t> milestones = {};  // one fewer than parts, ascending

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Sequential = ClosedForm<SequentialOptions>;

// Each part takes the rate of the part before it as its base: factors multiply. torch's
// ChainedScheduler.
struct ChainedOptions {
  static constexpr std::string_view name = "chained";
  std::vector<Curve> parts = {};

  void validate() const;
  double rate(int64_t step, double base_lr) const;
};
using Chained = ClosedForm<ChainedOptions>;

}  // namespace mixtape::optim
