#pragma once
// Gradients of softmax, its logarithm and cross-entropy. Where one class is nearly certain, p - 1
// comes from expm1(log p) or from the other classes: a p that rounds to 1 would leave nothing.

#include "kernels/common/scalar.h"

namespace mixtape::kernels {

// A class with a larger probability outweighs all others. Two classes never do, despite rounding.
inline constexpr double likely_log = -0.6, likely_share = 0.5488116360940264;

template <class T>
MIXTAPE_HD auto is_likely(bool log, T y) {
  return y > (log ? T(likely_log) : T(likely_share));
}

// p sum(q) - q of a class. `others` is the sum of q over the other classes; it counts only where p
// outweighs them.
template <class T>
MIXTAPE_HD T logit_slope(T log_p, T q, T total, T others) {
  const T slope = exp(log_p) * total - q;
  const auto likely = is_likely(true, log_p);
  return any(likely) ? select(likely, expm1(log_p) * total + others, slope) : slope;
}

// Adds a class to the sums over a row: of y and of y dy (of dy for log_softmax) in sums[0] and [1],
// or in [2] and [3] if the class outweighs the others.
template <class T, class Sums>
MIXTAPE_HD void add_to_slope(bool log, T y, T dy, Sums& sums) {
  const auto likely = is_likely(log, y);
  const T part = log ? dy : y * dy;
  sums[0] += select(likely, T(0), y);
  sums[1] += select(likely, T(0), part);
  if (!any(likely)) return;
  sums[2] += select(likely, y, T(0));
  sums[3] += select(likely, part, T(0));
}

// dx of softmax, y (dy - sum(y dy) / sum(y)), or of log_softmax, dy - exp(y) sum(dy), from these
// sums. (A rounded y has a sum near 1, and a dy of equal elements must give 0.)
template <class T>
class SoftmaxSlope {
 public:
  MIXTAPE_HD SoftmaxSlope(bool log, T others, T others_dy, T likely, T likely_dy)
      : log_(log), others_(others), others_dy_(others_dy), total_(others_dy + likely_dy) {
    if (log) return;
    const T whole = others + likely, share = T(1) / select(whole > T(0), whole, T(1));
    total_ = total_ * share;
    others_ = others * share;
    others_dy_ = others_dy * share;
  }
  MIXTAPE_HD T operator()(T y, T dy) const {
    if (log_) return -logit_slope(y, dy, total_, others_dy_);
    const T slope = y * (dy - total_);
    const auto likely = is_likely(false, y);
    return any(likely) ? select(likely, y * (dy * others_ - others_dy_), slope) : slope;
  }

 private:
  bool log_;
  T others_, others_dy_, total_;
};

}  // namespace mixtape::kernels
