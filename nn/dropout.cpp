#include "nn/dropout.h"

#include "core/check.h"
#include "core/format.h"

namespace mixtape::nn {
using namespace internal;

double checked_probability(std::string_view module, double p) {
  const Scope scope(module);
  check(0 <= p && p <= 1, "p must be from 0 to 1, got {}", p);
  return p;
}

Tensor drop_channels(const Tensor& x, double p) {
  check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
  if (p == 0) return x;
  Shape channels = x.shape();
  for (int d = 2; d < x.rank(); ++d) channels[d] = 1;
  return x * dropout(ones(channels, x.dtype(), x.device()), p);
}

}  // namespace mixtape::nn
