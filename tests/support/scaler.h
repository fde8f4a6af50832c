#pragma once
// Helpers for the tests of GradScaler.

#include <bit>

#include "core/stream.h"
#include "tests/support/amp.h"
#include "tests/support/optim.h"

namespace mixtape::amp {

using Cause = StepResult::Cause;
using State = StepResult::State;

inline Tensor parameter(std::initializer_list<double> v, DType t = f32) {
  return from(v, {static_cast<int64_t>(v.size())}, t).set_requires_grad();
}
inline std::vector<uint32_t> bits(const Tensor& t) {
  const Tensor here = t.contiguous().copied_to(Device::cpu());
  const float* p = here.data<float>();
  std::vector<uint32_t> b;
  for (int64_t i = 0; i < t.numel(); ++i) b.push_back(std::bit_cast<uint32_t>(p[i]));
  return b;
}

// Waits for the device and lets the scaler read its counters now, not some updates later.
inline void hear(GradScaler& scaler) {
  if (DefaultDevice::current().is_host()) return;
  synchronize(DefaultDevice::current());
  scaler.update();
}

// One optimizer over one parameter whose gradients a test sets by hand.
struct Loop {
  Tensor p = parameter({1, 2, 3});
  optim::SGD sgd{{p}, {.lr = 0.125}};
  GradScaler scaler;

  explicit Loop(const ScalerOptions& options) : scaler(options) {}
  StepResult run(double grad, double loss = 1) {
    const StepResult result = run_ahead(grad, loss);
    hear(scaler);
    return result;
  }
  StepResult run_ahead(double grad, double loss = 1) {  // does not wait
    scaler.scale(sum(p) * loss).backward();
    p.set_grad(full({3}, grad));
    const StepResult result = scaler.step(sgd);
    scaler.update();
    return result;
  }
};

}  // namespace mixtape::amp
