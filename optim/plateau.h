#pragma once
// Plateau: lowers the rate when a metric no longer improves.

#include <cstdint>

#include "optim/optimizer.h"

namespace mixtape::optim {

enum class Better { Lower, Higher };
enum class Threshold { Relative, Absolute };

struct PlateauOptions {
  Better better = Better::Lower;
  double factor = 0.1;      // multiplies the rate
  int64_t patience = 10;    // accepted steps in a row without improvement
  double threshold = 1e-4;  // the least improvement that counts
  Threshold threshold_mode = Threshold::Relative;
  int64_t cooldown = 0;  // steps after lowering that do not count as bad
  double min_lr = 0;
  double eps = 1e-8;  // smaller changes of the rate are not made
};

// torch's ReduceLROnPlateau. Refers to its optimizer as a Schedule does. The metric is a number on
// the host; reading it from a device waits.
class Plateau : NoCopy {
 public:
  // Throws Error if an option is out of range.
  Plateau(Optimizer& optimizer, const PlateauOptions& options = {});

  std::string_view name() const { return "plateau"; }  // the "kind" in its state
  // Call it once for each evaluation. NaN counts as no improvement. Given the result of an
  // optimizer's step, it does nothing if the step was skipped.
  void step(double metric);
  template <StepOutcome R>
  void step(double metric, const R& stepped) {
    if (static_cast<bool>(stepped)) step(metric);
  }
  int64_t steps() const { return steps_; }
  double best() const { return best_; }                                // value of the metric so far
  double lr(size_t group = 0) const { return optimizer_->lr(group); }  // the optimizer's now
  bool refers_to(const Optimizer& o) const { return optimizer_.is(o); }  // this very object

  // "kind", "step", "best", "bad_steps", "cooldown", and "group.0.lr" and so on, which loading
  // sets. If the kind, names or values do not fit, loading throws Error and changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  bool is_better(double metric) const;
  void lower();

  OptimizerRef optimizer_;
  const PlateauOptions options_;
  double best_;
  int64_t steps_ = 0, bad_steps_ = 0, cooldown_ = 0;
};

using ReduceLROnPlateau = Plateau;  // PyTorch's name

}  // namespace mixtape::optim
