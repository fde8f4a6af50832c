#pragma once
// Linear: y = x W^T + b.

#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

struct LinearOptions {
  bool bias = true;
};

// [..., in] -> [..., out]. Weight and bias start uniform within 1 / sqrt(in).
struct Linear : Module<Linear> {
  Tensor weight;  // [out, in]
  Tensor bias;    // [out], or none

  Linear(int64_t in, int64_t out, const LinearOptions& options = {}) {
    const Scope scope("Linear");
    check(in > 0 && out > 0, "sizes must be positive: in {}, out {}", in, out);
    weight = parameter(empty({out, in}));
    init::kaiming_uniform_(weight, {.a = std::sqrt(5.0)});
    if (!options.bias) return;
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    bias = parameter(empty({out}));
    init::uniform_(bias, -bound, bound);
  }
  Tensor forward(const Tensor& x) const { return linear(x, weight, bias); }
  MIXTAPE_FIELDS(weight, bias)
};

}  // namespace mixtape::nn
