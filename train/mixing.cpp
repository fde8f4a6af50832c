#include "train/mixing.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "core/random.h"
#include "core/warn.h"
#include "train/learner.h"

namespace mixtape::train {
namespace {

double normal(RandomGenerator& random) {  // Box and Muller's
  const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
  return radius * std::cos(2 * M_PI * random.uniform());
}

// The logarithm of a number drawn from Gamma(alpha), by Marsaglia and Tsang's method; for alpha
// below 1 by alpha + 1. A logarithm, since the number may be tiny.
double log_gamma(double alpha, RandomGenerator& random) {
  if (alpha < 1) return log_gamma(alpha + 1, random) + std::log(1 - random.uniform()) / alpha;
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random), root = 1 + c * x, v = root * root * root;
    if (root > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return std::log(d * v);
  }
}

double beta(double alpha, RandomGenerator& random) {
  const double a = log_gamma(alpha, random), b = log_gamma(alpha, random);
  return 1 / (1 + std::exp(b - a));
}

}  // namespace

Mixing::Mixing(const MixOptions& options) : options_(options) {
  check(options.classes > 0, "classes must be > 0, got {}", options.classes);
  check(options.alpha > 0 && std::isfinite(options.alpha), "alpha must be > 0 and finite, got {}",
        options.alpha);
  check(options.probability >= 0 && options.probability <= 1,
        "probability must be from 0 to 1, got {}", options.probability);
}

void Mixing::on_batch_begin(Learner& learner) {
  auto& state = learner.state;
  if (!state.training) return;
  check(bool(state.y), "a batch has no targets to mix");
  RandomGenerator& random = generator();
  const bool mixes = random.uniform() < options_.probability;
  const double share = beta(options_.alpha, random);
  if (!mixes) return;
  if (state.x.size(0) == 1)
    warn(
        "MixUp and CutMix mix an image with the one before it in the batch, so a batch of one "
        "stays as it is: take larger batches, or fewer chunks");
  const NoGrad off;
  const Tensor y = is_float(state.y.dtype()) ? state.y : one_hot(state.y.to(i64), options_.classes);
  const double kept = mix(state.x, roll(state.x, 1, 0), share);
  state.y = lerp(roll(y, 1, 0), y, kept);
}

double MixUp::mix(Tensor& x, const Tensor& other, double share) const {
  check(is_float(x.dtype()), "inputs must be floats to be mixed, got {}: normalize them",
        x.dtype());
  x = lerp(other, x, share);
  return share;
}

double CutMix::mix(Tensor& x, const Tensor& other, double share) const {
  check(x.rank() >= 3, "images must be [n, ..., height, width], got {}", x.shape());
  RandomGenerator& random = generator();
  struct Span {
    int64_t begin, size;
  };
  const auto span = [&](int64_t side) {
    const int64_t center = random.below(side),
                  half = int64_t(0.5 * std::sqrt(1 - share) * double(side));
    const int64_t begin = std::max<int64_t>(0, center - half);
    return Span{begin, std::min(side, center + half) - begin};
  };
  const Span rows = span(x.size(-2)), columns = span(x.size(-1));
  const auto box = [&](const Tensor& t) {
    return narrow(narrow(t, -2, rows.begin, rows.size), -1, columns.begin, columns.size);
  };
  x = clone(x);  // the data set may keep the loader's
  copy_(box(x), box(other));
  return 1 - double(rows.size * columns.size) / double(x.size(-2) * x.size(-1));
}

}  // namespace mixtape::train
