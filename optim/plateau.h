#pragma once
// Plateau: lowers the rate when a metric no longer gets better.

#include <cstdint>

#include "optim/optimizer.h"
#include "optim/outcome.h"

namespace mixtape::optim {

enum class Better { Lower, Higher };
enum class Threshold { Relative, Absolute };

struct PlateauOptions {
  Better better = Better::Lower;  // of two metrics
  double factor = 0.1;            // what multiplies the rate
  int64_t patience = 10;          // steps in a row that may bring nothing better
  double threshold = 1e-4;        // by how much better counts
  Threshold threshold_mode = Threshold::Relative;
  int64_t cooldown = 0;  // steps after lowering that do not count as bad
  double min_lr = 0;
  double eps = 1e-8;  // a smaller change of the rate is not made
};

// torch's ReduceLROnPlateau. Refers to its optimizer, which must stay where it is. The metric is a
// number of the host, so to step waits for the device if it comes from there.
class Plateau : NoCopy {
 public:
  // Throws Error if an option is out of range.
  Plateau(Optimizer& optimizer, const PlateauOptions& options = {});

  std::string_view name() const { return "plateau"; }
  // Once for each evaluation. NaN is no better than anything. Given the result of an optimizer's
  // step, does nothing if that was skipped.
  void step(double metric);
  template <StepOutcome R>
  void step(double metric, const R& stepped) {
    if (static_cast<bool>(stepped)) step(metric);
  }
  int64_t steps() const { return steps_; }
  double best() const { return best_; }
  double lr(size_t group = 0) const { return optimizer_->lr(group); }

  // "kind", "step", "best", "bad_steps", "cooldown", and "group.0.lr" and so on, which loading
  // sets. Loading throws Error, and changes nothing, if the kind, names or values do not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  bool is_better(double metric) const;
  void lower();

  Optimizer* optimizer_;
  const PlateauOptions options_;
  double best_;
  int64_t steps_ = 0, bad_steps_ = 0, cooldown_ = 0;
};

}  // namespace mixtape::optim
