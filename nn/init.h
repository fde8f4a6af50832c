#pragma once
// Initial values: each function writes them into t and returns t. They are drawn from generator()
// and never recorded.

#include "core/tensor.h"

namespace mixtape::nn::init {

Tensor uniform_(const Tensor& t, double low = 0, double high = 1);  // in [low, high)
Tensor normal_(const Tensor& t, double mean = 0, double std = 1);   // a normal distribution
// A normal distribution truncated to [low, high]. Waits for the device.
struct TruncNormalOptions {
  double mean = 0, std = 1, low = -2, high = 2;
};
Tensor trunc_normal_(const Tensor& t, const TruncNormalOptions& options = {});
Tensor constant_(const Tensor& t, double value);  // `value` everywhere
Tensor zeros_(const Tensor& t);                   // 0 everywhere
Tensor ones_(const Tensor& t);                    // 1 everywhere
// [n, m]: ones on the diagonal, zeros elsewhere.
Tensor eye_(const Tensor& t);
// A convolution's weight [out, in / groups, ...] that passes its input through, channel by channel.
Tensor dirac_(const Tensor& t, int64_t groups = 1);

// The number of inputs per output, and of outputs per input, of a weight [out, in, ...]. Throws
// Error below rank 2.
struct Fan {
  int64_t in, out;
};
Fan fan(const Tensor& weight);

// The factor for weights that preserves the variance through f; `slope` is leaky ReLU's below zero.
enum class Function { Linear, Sigmoid, Tanh, Relu, LeakyRelu, Selu };
double calculate_gain(Function f, double slope = 0.01);

// He et al. 2015 (arXiv 1502.01852): preserves the variance through leaky ReLUs with slope `a`
// below zero (0: ReLU, 1: no activation). Standard deviation gain / sqrt(fan), gain = sqrt(2 / (1 +
// a^2)).
struct KaimingOptions {
  double a = 0;
  bool fan_out = false;  // preserve the variance of gradients, not of activations
};
Tensor kaiming_uniform_(const Tensor& t, const KaimingOptions& options = {});
Tensor kaiming_normal_(const Tensor& t, const KaimingOptions& options = {});

// Glorot and Bengio 2010: standard deviation gain * sqrt(2 / (fan in + fan out)).
Tensor xavier_uniform_(const Tensor& t, double gain = 1);
Tensor xavier_normal_(const Tensor& t, double gain = 1);

// Saxe et al. 2013 (arXiv 1312.6120): seen as a matrix [out, the rest], the rows (or the columns,
// if there are fewer) are orthogonal with length `gain`. All such matrices are equally likely.
Tensor orthogonal_(const Tensor& t, double gain = 1);

// For linear layers and convolutions: uniform within 1 / sqrt(fan in); no bias unless `wanted`.
Tensor starting_weight(const Shape& shape);
Tensor starting_bias(const Tensor& weight, int64_t out, bool wanted);

}  // namespace mixtape::nn::init
