#pragma once
// simple_cnn: the smallest network worth training on images, laid out as fastai's.

#include <vector>

#include "nn/sequential.h"

namespace mixtape::models {

struct SimpleCnnOptions {  // a number for each convolution, or none: the default for all
  std::vector<int64_t> kernel_sizes = {};  // 3
  std::vector<int64_t> strides = {};       // 2
  bool batch_norm = false;                 // after each ReLU but the last
};

// images [n, channels.front(), h, w] -> logits [n, channels.back()]. From each number of channels
// to the next a convolution and a ReLU, then the mean over what is left of the image: parameters
// are called "0.0.weight", "0.0.bias", "1.0.weight", ... As fastai's, also in that the last ReLU
// lets no logit be negative. Weights start Kaiming normal, biases as zeros.
nn::Sequential simple_cnn(const std::vector<int64_t>& channels, const SimpleCnnOptions& o = {});

}  // namespace mixtape::models
