#pragma once
// The mixed-precision training step of device tests and benchmarks.

#include "amp/autocast.h"
#include "amp/scaler.h"
#include "autograd/ops.h"
#include "optim/optimizer.h"

namespace mixtape::test {

struct TrainingStep {
  Tensor loss;
  amp::StepResult result;
};

// `low` is the dtype of autocast; f32 disables it.
template <class Net>
TrainingStep training_step(const Net& net, optim::Optimizer& opt, amp::GradScaler& scaler,
                           DType low, const Tensor& x, const Tensor& y,
                           const amp::StepOptions& options = {}) {
  opt.zero_grad();
  TrainingStep step;
  {
    const amp::Autocast on({.low = low});
    step.loss = cross_entropy(net(x), y);
  }
  scaler.scale(step.loss).backward();
  step.result = scaler.step(opt, options);
  scaler.update();
  return step;
}

}  // namespace mixtape::test
