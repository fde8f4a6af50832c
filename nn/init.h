#pragma once
// Starting values, written into tensors that are there. Drawn from generator(); never recorded. All
// return t.

#include "core/tensor.h"

namespace mixtape::nn::init {

Tensor uniform_(const Tensor& t, double low = 0, double high = 1);
Tensor normal_(const Tensor& t, double mean = 0, double std = 1);
// Normal, but only values from low to high. Waits for the device.
struct TruncNormalOptions {
  double mean = 0, std = 1, low = -2, high = 2;
};
Tensor trunc_normal_(const Tensor& t, const TruncNormalOptions& options = {});
Tensor constant_(const Tensor& t, double value);
Tensor zeros_(const Tensor& t);
Tensor ones_(const Tensor& t);
// [n, m]: ones on the diagonal, zeros elsewhere.
Tensor eye_(const Tensor& t);
// A convolution's weight [out, in / groups, ...] that passes its input on, channel by channel.
Tensor dirac_(const Tensor& t, int64_t groups = 1);

// How many inputs feed one output of a weight [out, in, ...], and how many outputs one input feeds.
// Throws Error below two dimensions.
struct Fan {
  int64_t in, out;
};
Fan fan(const Tensor& weight);

// By how much the weights before a function are to be larger, so that it keeps the variance of what
// goes through; `slope` is leaky ReLU's below zero.
enum class Function { Linear, Sigmoid, Tanh, Relu, LeakyRelu, Selu };
double calculate_gain(Function f, double slope = 0.01);

// He et al. 2015 (arXiv 1502.01852): keeps the variance through leaky ReLUs of slope `a` below zero
// (0: ReLU, 1: no activation). Standard deviation gain / sqrt(fan), gain = sqrt(2 / (1 + a^2)).
struct KaimingOptions {
  double a = 0;
  bool fan_out = false;  // keep the variance of gradients instead of activations
};
Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options = {});
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options = {});

// Glorot and Bengio 2010: standard deviation gain * sqrt(2 / (fan in + fan out)).
Tensor xavier_uniform_(const Tensor& t, double gain = 1);
Tensor xavier_normal_(const Tensor& t, double gain = 1);

// Saxe et al. 2013 (arXiv 1312.6120): as a matrix [out, the rest], its rows, or its columns if
// there are fewer, are orthogonal and of length `gain`. Every such matrix is as likely as another.
Tensor orthogonal_(const Tensor& t, double gain = 1);

// Parameters of linear layers and convolutions as they start, uniform within 1 / sqrt(fan in of the
// weight); no bias unless it is wanted.
Tensor starting_weight(const Shape& shape);
Tensor starting_bias(const Tensor& weight, int64_t out, bool wanted);

}  // namespace mixtape::nn::init
