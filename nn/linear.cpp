#include "nn/linear.h"

#include "core/check.h"
#include "nn/init.h"

namespace mixtape::nn {

Linear::Linear(int64_t in, int64_t out, const Options& options) : activation_(options.activation) {
  const Scope scope("Linear");
  check(in > 0 && out > 0, "sizes must be positive: in {}, out {}", in, out);
  weight = init::starting_weight({out, in});
  bias = init::starting_bias(weight, out, options.bias);
}

}  // namespace mixtape::nn
