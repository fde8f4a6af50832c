#pragma once
// Dropout: in training, zeros each element with probability p and scales the rest by 1 / (1 - p).

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

double checked_probability(std::string_view module, double p);  // from 0 to 1

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
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS()

 private:
  double p_;
};

}  // namespace mixtape::nn
