#include "nn/linear.h"

#include <cmath>

#include "core/check.h"
#include "nn/init.h"

namespace mixtape::nn {

Linear::Linear(int64_t in, int64_t out, const LinearOptions& options)
    : activation_(options.activation) {
  const Scope scope("Linear");
  check(in > 0 && out > 0, "sizes must be positive: in {}, out {}", in, out);
  weight = parameter(empty({out, in}));
  init::kaiming_uniform_(weight, {.a = std::sqrt(5.0)});
  if (!options.bias) return;
  const double bound = 1 / std::sqrt(static_cast<double>(in));
  bias = parameter(empty({out}));
  init::uniform_(bias, -bound, bound);
}

}  // namespace mixtape::nn
