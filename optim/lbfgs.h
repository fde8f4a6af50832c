#pragma once
// L-BFGS (Liu & Nocedal 1989), for few parameters and a loss that is not random. A step evaluates
// the loss several times, so it takes a closure.
//
//   optim::LBFGS opt(net.parameters(), {.line_search = optim::LineSearch::StrongWolfe});
//   for (int i = 0; i < 20; ++i)
//     opt.step([&] {
//       opt.zero_grad();
//       const Tensor loss = mse_loss(net(x), y);
//       loss.backward();
//       return loss;
//     });

#include <functional>
#include <vector>

#include "core/tensor.h"
#include "kernels/common/update.h"
#include "optim/state.h"

namespace mixtape::optim {

enum class LineSearch { None, StrongWolfe };

struct LBFGSOptions {
  double lr = 1;  // length of a step; with a line search, of its first trial
  int64_t max_iter = 20;
  int64_t max_eval = 0;  // evaluations; 0: 1.25 max_iter
  double tolerance_grad = 1e-7, tolerance_change = 1e-9;
  int64_t history_size = 100;
  LineSearch line_search = LineSearch::None;
  // The rounding of f16 and bf16 parameters, which may keep steps below their precision.
  kernels::Rounding rounding = kernels::Rounding::Nearest;
  uint64_t seed = 0;  // of Rounding::Stochastic
};

// PyTorch's LBFGS. Vectors of all parameters (the history, and what Rounding::Kahan has lost) are
// f64 on the CPU, whatever the device.
class LBFGS : NoCopy {
 public:
  // Computes the loss (one number) and its gradients, which must not be multiplied by a loss scale.
  using Closure = std::function<Tensor()>;

  // Throws Error if a parameter is not a float leaf, or if an option is out of range.
  explicit LBFGS(std::vector<Tensor> params, const LBFGSOptions& options = {});

  double step(const Closure& closure);                           // returns the loss before the step
  void zero_grad();                                              // drops the gradients
  const std::vector<Tensor>& params() const { return params_; }  // in the order given
  double lr() const { return options_.lr; }                      // the length of a step, as set
  void set_lr(double lr);                               // throws Error unless it is > 0 and finite
  int64_t evaluations() const { return evaluations_; }  // of the closure, in all steps

  // If names or shapes do not fit, loading throws Error and changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& dict);

 private:
  using Vector = std::vector<double>;
  struct Point {  // on the line of a step
    double t, loss;
    Vector grad;
    double slope;  // along the line
  };
  struct Pair {  // of the history
    Vector y, s;
    double rho;
  };
  double evaluate(const Closure& closure);
  Vector gradient() const;
  Vector values() const;
  void set_values(const Vector& x, double t, const Vector& d);  // to x + t d
  void remember(const Vector& grad);
  Vector direction(const Vector& grad) const;
  Point search(const Closure& closure, const Vector& x, const Point& start, double t);

  LBFGSOptions options_;
  std::vector<Tensor> params_;
  int64_t size_ = 0, iterations_ = 0, evaluations_ = 0;
  std::vector<Pair> history_;
  Vector direction_, last_grad_, lost_;  // lost_: by Kahan's rounding
  double step_ = 0, diagonal_ = 1;
};

}  // namespace mixtape::optim
