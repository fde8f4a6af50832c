#pragma once
// Dropout: in training, zeros each element with probability p and scales the rest by 1 / (1 - p).

#include "autograd/ops.h"
#include "core/check.h"
#include "core/format.h"
#include "nn/module.h"

namespace mixtape::nn {

inline double checked_probability(std::string_view module, double p) {
  const internal::Scope scope(module);
  check(0 <= p && p <= 1, "p must be from 0 to 1, got {}", p);
  return p;
}

struct Dropout : Module<Dropout> {
  explicit Dropout(double p = 0.5) : p_(checked_probability("Dropout", p)) {}
  Tensor forward(const Tensor& x) const { return is_training() ? dropout(x, p_) : x; }
  bool drops() const { return is_training() && p_ > 0; }
  MIXTAPE_FIELDS()

 private:
  double p_;
};

// Dropout of whole channels of [n, c, ...].
struct Dropout2d : Module<Dropout2d> {
  explicit Dropout2d(double p = 0.5) : p_(checked_probability("Dropout2d", p)) {}
  Tensor forward(const Tensor& x) const {
    check(x.rank() >= 2, "the input has shape {}, not [n, c, ...]", x.shape());
    if (!is_training()) return x;
    Shape channels = x.shape();
    for (int d = 2; d < x.rank(); ++d) channels[d] = 1;
    return x * dropout(ones(channels, x.dtype(), x.device()), p_);
  }
  MIXTAPE_FIELDS()

 private:
  double p_;
};

}  // namespace mixtape::nn
