#pragma once
// Linear: y = x W^T + b, and an activation of it.

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

struct LinearOptions {
  bool bias = true;
  Activation activation = Activation::None;  // of the sums, before they are rounded
};

// [..., in] -> [..., out]. Weight and bias start uniform within 1 / sqrt(in).
struct Linear : Module<Linear> {
  Tensor weight;  // [out, in]
  Tensor bias;    // [out], or none

  Linear(int64_t in, int64_t out, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) const { return linear(x, weight, bias, {activation_}); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  Activation activation_;
};

}  // namespace mixtape::nn
