#pragma once
// Dropout: in training, zeros each element with probability p and scales the rest by 1 / (1 - p).

#include "autograd/ops.h"
#include "nn/module.h"

namespace mixtape::nn {

double checked_probability(std::string_view module, double p);  // from 0 to 1

struct Dropout : Module<Dropout> {
  explicit Dropout(double p = 0.5) : p_(checked_probability("Dropout", p)) {}
  Tensor forward(const Tensor& x) const { return dropout(x, p_, is_training()); }
  bool drops() const { return is_training() && p_ > 0; }
  MIXTAPE_FIELDS()

 private:
  double p_;
};

Tensor drop_channels(const Tensor& x, double p);  // of [n, c, ...]

// Dropout of whole channels.
template <class Derived, int alone = 0>  // the rank of an x without n, if it may have one
struct ChannelDropout : Module<Derived> {
  explicit ChannelDropout(double p = 0.5)
      : p_(checked_probability(type_name(typeid(Derived)), p)) {}
  Tensor forward(const Tensor& x) const {
    if (x.rank() == alone) return squeeze(forward(unsqueeze(x, 0)), 0);
    return drop_channels(x, this->is_training() ? p_ : 0);
  }
  MIXTAPE_FIELDS()

 private:
  double p_;
};
struct Dropout2d : ChannelDropout<Dropout2d> {  // [n, c, ...]
  using ChannelDropout::ChannelDropout;
};

}  // namespace mixtape::nn
