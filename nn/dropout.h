#pragma once
// Dropout: in training, zeros each element with probability p and scales the others by 1 / (1 - p).

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/module.h"

namespace mixtape::nn {

struct Dropout : Module<Dropout> {
  explicit Dropout(double p = 0.5) : p_(p) {
    const Scope scope("Dropout");
    check(0 <= p && p <= 1, "a probability of {}", p);
  }
  Tensor forward(const Tensor& x) const { return is_training() ? dropout(x, p_) : x; }
  MIXTAPE_FIELDS()

 private:
  double p_;
};

}  // namespace mixtape::nn
