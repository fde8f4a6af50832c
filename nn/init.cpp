#include "nn/init.h"

#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"

namespace mixtape::nn::init {
namespace {

// Of a uniform distribution with this bound the standard deviation is 1.
const double unit_bound = std::sqrt(3.0);

double kaiming_std(const Tensor& t, const KaimingOptions& o) {
  const Fan f = fan(t);
  return std::sqrt(2 / ((1 + o.a * o.a) * static_cast<double>(o.fan_out ? f.out : f.in)));
}
double xavier_std(const Tensor& t, double gain) {
  const Fan f = fan(t);
  return gain * std::sqrt(2 / static_cast<double>(f.in + f.out));
}

}  // namespace

const Tensor& uniform_(const Tensor& t, double low, double high) {
  const NoGrad off;
  return copy_(t, uniform(t.shape(), low, high, t.dtype(), t.device()));
}
const Tensor& normal_(const Tensor& t, double mean, double std) {
  const NoGrad off;
  return copy_(t, normal(t.shape(), mean, std, t.dtype(), t.device()));
}
const Tensor& constant_(const Tensor& t, double value) {
  const NoGrad off;
  return fill_(t, value);
}
const Tensor& zeros_(const Tensor& t) { return constant_(t, 0); }
const Tensor& ones_(const Tensor& t) { return constant_(t, 1); }

Fan fan(const Tensor& weight) {
  check(weight.rank() >= 2, "a weight of shape {} has no fan: it needs [out, in, ...]",
        weight.shape());
  int64_t window = 1;
  for (int d = 2; d < weight.rank(); ++d) window *= weight.size(d);
  return {weight.size(1) * window, weight.size(0) * window};
}

const Tensor& kaiming_uniform_(const Tensor& t, const KaimingOptions& options) {
  const double bound = unit_bound * kaiming_std(t, options);
  return uniform_(t, -bound, bound);
}
const Tensor& kaiming_normal_(const Tensor& t, const KaimingOptions& options) {
  return normal_(t, 0, kaiming_std(t, options));
}
const Tensor& xavier_uniform_(const Tensor& t, double gain) {
  const double bound = unit_bound * xavier_std(t, gain);
  return uniform_(t, -bound, bound);
}
const Tensor& xavier_normal_(const Tensor& t, double gain) {
  return normal_(t, 0, xavier_std(t, gain));
}

}  // namespace mixtape::nn::init
