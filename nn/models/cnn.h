#pragma once
// simple_cnn: a minimal network for images, with fastai's layout.

#include <vector>

#include "nn/sequential.h"

namespace mixtape::models {

struct SimpleCnnOptions {                  // lists: one number per convolution; empty: the default
  std::vector<int64_t> kernel_sizes = {};  // 3
  std::vector<int64_t> strides = {};       // 2
  bool batch_norm = false;                 // after each ReLU but the last
};
// images [n, channels.front(), h, w] -> logits [n, channels.back()]. A convolution and a ReLU lead
// from each number of channels to the next; the mean over the remaining image follows. Parameters
// are named "0.0.weight", "0.0.bias", "1.0.weight", ... As in fastai, a ReLU comes last, so no
// logit is negative. Weights start Kaiming normal, biases as zeros.
nn::Sequential simple_cnn(const std::vector<int64_t>& channels, const SimpleCnnOptions& o = {});

}  // namespace mixtape::models
