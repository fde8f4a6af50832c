#pragma once
// ResNet v2 (He et al. 2016, arXiv 1603.05027): norm and ReLU come before each convolution, so
// shortcuts pass x on unchanged.

#include <optional>
#include <vector>

#include "nn/conv.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/sequential.h"

namespace mixtape::models {

// Two 3 x 3 convolutions, or for a bottleneck 1 x 1, 3 x 3 and 1 x 1 to four times the channels.
struct PreActivationBlock : nn::Module<PreActivationBlock> {
  nn::BatchNorm2d bn1;
  nn::Conv2d conv1;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv2;
  std::optional<nn::BatchNorm2d> bn3;  // of a bottleneck
  std::optional<nn::Conv2d> conv3;
  std::optional<nn::Conv2d> downsample;  // where the shape changes: 1 x 1, of the normed x

  PreActivationBlock(int64_t in, int64_t channels, int64_t stride, bool bottleneck);
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(bn1, conv1, bn2, conv2, bn3, conv3, downsample)
};

struct ResNetV2Options {
  int64_t num_classes = 1000, in_channels = 3, width = 64;
};
// images [n, in_channels, h, w] -> logits [n, num_classes]. Depths 18 and 34 have basic blocks, 50,
// 101 and 152 have bottlenecks.
struct ResNetV2 : nn::Module<ResNetV2> {
  nn::Conv2d conv1;
  nn::Sequential layer1, layer2, layer3, layer4;
  nn::BatchNorm2d bn;
  nn::Linear fc;

  explicit ResNetV2(int depth, const ResNetV2Options& o = {});  // throws Error for other depths
  ResNetV2(const std::vector<int64_t>& blocks, bool bottleneck, const ResNetV2Options& o = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(conv1, layer1, layer2, layer3, layer4, bn, fc)
};

}  // namespace mixtape::models
