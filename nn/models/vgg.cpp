#include "nn/models/vgg.h"

#include <array>

#include "nn/activation.h"
#include "nn/conv.h"
#include "nn/dropout.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/pool.h"

namespace mixtape::models {
using namespace internal;
namespace {

// The number of convolutions at each size of the image.
std::array<int, 5> convolutions(int depth) {
  switch (depth) {
    case 11:
      return {1, 1, 2, 2, 2};
    case 13:
      return {2, 2, 2, 2, 2};
    case 16:
      return {2, 2, 3, 3, 3};
    case 19:
      return {2, 2, 4, 4, 4};
    default:
      fail("Vgg: depth must be 11, 13, 16 or 19, got {}", depth);
  }
}

nn::Linear starting_linear(int64_t in, int64_t out) {
  nn::Linear layer(in, out);
  nn::init::normal_(layer.weight, 0, 0.01);
  nn::init::zeros_(layer.bias);
  return layer;
}

}  // namespace

Vgg::Vgg(int depth, const VggOptions& o) {
  int64_t channels = o.in_channels, width = o.width;
  for (const int count : convolutions(depth)) {
    for (int i = 0; i < count; ++i) {
      nn::Conv2d conv(channels, width, 3, {.padding = 1});
      nn::init::kaiming_normal_(conv.weight, {.fan_out = true});
      nn::init::zeros_(conv.bias);
      features.push_back(std::move(conv));
      if (o.batch_norm) features.push_back(nn::BatchNorm2d(width));
      features.push_back(nn::ReLU());
      channels = width;
    }
    features.push_back(nn::MaxPool2d(2));
    width = std::min(2 * width, 8 * o.width);
  }
  classifier.push_back(starting_linear(channels * 7 * 7, o.hidden));
  for (const int64_t out : {o.hidden, o.num_classes}) {
    classifier.push_back(nn::ReLU());
    classifier.push_back(nn::Dropout(o.dropout));
    classifier.push_back(starting_linear(o.hidden, out));
  }
}

Tensor Vgg::forward(const Tensor& x) const {
  return classifier(flatten(adaptive_avg_pool2d(features(x), 7), 1));
}

}  // namespace mixtape::models
