#include "nn/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/module.h"

namespace mixtape::nn::init {
namespace {

// The bound of a uniform distribution with standard deviation 1.
const double unit_bound = std::sqrt(3.0);

double normal_probability(double z) { return std::erfc(-z / std::numbers::sqrt2) / 2; }

double kaiming_std(const Tensor& t, const KaimingOptions& o) {
  const Fan f = fan(t);
  return std::sqrt(2 / ((1 + o.a * o.a) * static_cast<double>(o.fan_out ? f.out : f.in)));
}
double xavier_std(const Tensor& t, double gain) {
  const Fan f = fan(t);
  return gain * std::sqrt(2 / static_cast<double>(f.in + f.out));
}

// The z below which a normal variable falls with probability p: a rational approximation
// (Abramowitz and Stegun 26.2.23) and two of Halley's steps from there.
double normal_quantile(double p) {
  if (p <= 0 || p >= 1) return p <= 0 ? -INFINITY : INFINITY;
  const double t = std::sqrt(-2 * std::log(std::min(p, 1 - p)));
  const double tail = t - (2.515517 + t * (0.802853 + t * 0.010328)) /
                              (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  double z = p < 0.5 ? -tail : tail;
  for (int i = 0; i < 2; ++i) {
    const double error = normal_probability(z) - p;
    const double u = error * std::sqrt(2 * std::numbers::pi) * std::exp(z * z / 2);
    z -= u / (1 + z * u / 2);
  }
  return z;
}

// Makes rows orthogonal to the orthonormal `others`; twice, since once leaves rounding errors.
void project_out(const Tensor& rows, const Tensor& others) {
  if (others.size(0) == 0) return;
  for (int i = 0; i < 2; ++i) sub_(rows, matmul(matmul(rows, others.t()), others));
}
// Gram and Schmidt's method on the rows of q, in blocks, so that most of it is matrix products.
void orthonormalise(const Tensor& q) {
  constexpr int64_t size = 32;
  for (int64_t start = 0; start < q.size(0); start += size) {
    const Tensor block = narrow(q, 0, start, std::min(size, q.size(0) - start));
    project_out(block, narrow(q, 0, 0, start));
    for (int64_t i = 0; i < block.size(0); ++i) {
      const Tensor row = narrow(block, 0, i, 1);
      project_out(row, narrow(block, 0, 0, i));
      copy_(row, row / sqrt(sum(square(row))));
    }
  }
}

// Writes values in row-major order.
Tensor assign(const Tensor& t, const std::vector<double>& values) {
  const NoGrad off;
  return copy_(t, from(values, t.shape(), f64).to(t.device()));
}

}  // namespace

Tensor uniform_(const Tensor& t, double low, double high) {
  const NoGrad off;
  return copy_(t, uniform(t.shape(), low, high, t.dtype(), t.device()));
}
Tensor normal_(const Tensor& t, double mean, double std) {
  const NoGrad off;
  return copy_(t, normal(t.shape(), mean, std, t.dtype(), t.device()));
}
Tensor trunc_normal_(const Tensor& t, const TruncNormalOptions& o) {
  check(is_float(t.dtype()), "the tensor must be a float, got {}", t.dtype());
  check(o.low < o.high && o.std > 0, "std must be > 0 and low < high, got {} and {} to {}", o.std,
        o.low, o.high);
  // In standard deviations from the mean. Mirrored if both are above it, since probabilities are
  // more exact near 0 than near 1.
  double low = (o.low - o.mean) / o.std, high = (o.high - o.mean) / o.std;
  const double sign = low > 0 ? -1 : 1;
  if (low > 0) low = -std::exchange(high, -low);
  const double below = normal_probability(low), within = normal_probability(high) - below;
  // (Above 0, whose quantile in an infinite tail is infinite.)
  std::vector<double> values =
      to_vector(uniform(t.shape(), 0x1p-25, 1 + 0x1p-25, f64, Device::cpu()));
  for (double& v : values)
    v = std::clamp(o.mean + sign * o.std * normal_quantile(below + v * within), o.low, o.high);
  return assign(t, values);
}
Tensor constant_(const Tensor& t, double value) {
  const NoGrad off;
  return fill_(t, value);
}
Tensor zeros_(const Tensor& t) { return constant_(t, 0); }
Tensor ones_(const Tensor& t) { return constant_(t, 1); }

Tensor eye_(const Tensor& t) {
  check(t.rank() == 2, "the tensor has shape {}, not [m, n]", t.shape());
  std::vector<double> values(static_cast<size_t>(t.numel()));
  for (int64_t i = 0; i < std::min(t.size(0), t.size(1)); ++i)
    values[static_cast<size_t>(i * t.size(1) + i)] = 1;
  return assign(t, values);
}
Tensor dirac_(const Tensor& t, int64_t groups) {
  check(t.rank() >= 3, "the weight has shape {}, not [out, in, kernel...]", t.shape());
  check(groups > 0 && t.size(0) % groups == 0, "{} channels do not divide into {} groups",
        t.size(0), groups);
  int64_t window = 1, middle = 0;
  for (int d = 2; d < t.rank(); ++d) {
    window *= t.size(d);
    middle = middle * t.size(d) + t.size(d) / 2;
  }
  const int64_t in = t.size(1), out = t.size(0) / groups;  // of a group
  std::vector<double> values(static_cast<size_t>(t.numel()));
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t i = 0; i < std::min(in, out); ++i)
      values[static_cast<size_t>(((g * out + i) * in + i) * window + middle)] = 1;
  return assign(t, values);
}

Fan fan(const Tensor& weight) {
  check(weight.rank() >= 2, "the weight has shape {}, not [out, in, ...]", weight.shape());
  int64_t window = 1;
  for (int d = 2; d < weight.rank(); ++d) window *= weight.size(d);
  return {weight.size(1) * window, weight.size(0) * window};
}

double calculate_gain(Function f, double slope) {
  switch (f) {
    case Function::Tanh:
      return 5.0 / 3;
    case Function::Relu:
      return std::sqrt(2.0);
    case Function::LeakyRelu:
      return std::sqrt(2 / (1 + slope * slope));
    case Function::Selu:
      return 0.75;
    default:
      return 1;
  }
}

Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options) {
  const double bound = unit_bound * kaiming_std(t, options);
  return uniform_(t, -bound, bound);
}
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options) {
  return normal_(t, 0, kaiming_std(t, options));
}
Tensor xavier_uniform_(const Tensor& t, double gain) {
  const double bound = unit_bound * xavier_std(t, gain);
  return uniform_(t, -bound, bound);
}
Tensor xavier_normal_(const Tensor& t, double gain) { return normal_(t, 0, xavier_std(t, gain)); }

Tensor orthogonal_(const Tensor& t, double gain) {
  check(t.rank() >= 2, "the tensor has shape {}, not [m, n]", t.shape());
  if (t.numel() == 0) return t;
  const NoGrad off;
  const int64_t rows = t.size(0), columns = t.numel() / rows;
  const Tensor q = randn({std::min(rows, columns), std::max(rows, columns)}, f64, t.device());
  orthonormalise(q);
  return copy_(t, reshape((rows <= columns ? q : q.t()) * gain, t.shape()));
}

Tensor starting_weight(const Shape& shape) {
  return parameter(kaiming_uniform_(empty(shape), {.a = std::sqrt(5.0)}));
}
Tensor starting_bias(const Tensor& weight, int64_t out, bool wanted) {
  if (!wanted) return {};
  const double bound = 1 / std::sqrt(static_cast<double>(fan(weight).in));
  return parameter(uniform_(empty({out}), -bound, bound));
}

}  // namespace mixtape::nn::init
