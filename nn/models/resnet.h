#pragma once
// Residual networks (He et al. 2015, arXiv 1512.03385): ResNet-18 to 152 with torchvision's names
// and initial values, and the paper's smaller ones for CIFAR.

#include <array>

#include "nn/conv.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/sequential.h"

namespace mixtape::models {

// Two 3 x 3 convolutions and a shortcut.
struct BasicBlock : nn::Module<BasicBlock> {
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Any downsample;  // maps x to the shape of the sum; none: identity

  static constexpr int64_t expansion = 1;
  BasicBlock(int64_t in, int64_t channels, int64_t stride = 1, nn::Any downsample = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(conv1, bn1, conv2, bn2, downsample)
};

// A block whose 3 x 3 convolution has a quarter of the channels, and the stride, as in torchvision
// ("v1.5"). In the paper, the convolution before it has the stride.
struct Bottleneck : nn::Module<Bottleneck> {
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Conv2d conv2;
  nn::BatchNorm2d bn2;
  nn::Conv2d conv3;
  nn::BatchNorm2d bn3;
  nn::Any downsample;

  static constexpr int64_t expansion = 4;  // of the result's channels over the inner `channels`
  Bottleneck(int64_t in, int64_t channels, int64_t stride = 1, nn::Any downsample = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(conv1, bn1, conv2, bn2, conv3, bn3, downsample)
};

enum class ResidualBlock { Basic, Bottleneck };

struct ResNetOptions {
  int64_t num_classes = 1000;
  bool zero_init_residual = false;  // each block starts as its shortcut (arXiv 1706.02677)
  int64_t in_channels = 3;          // of the images
  int64_t width = 64;               // channels after the first convolution
};
// images [n, in_channels, h, w] -> logits [n, num_classes], with `blocks` blocks in each of four
// layers. Convolutions start Kaiming normal by their fan out.
struct ResNet : nn::Module<ResNet> {
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Sequential layer1, layer2, layer3, layer4;
  nn::Linear fc;

  ResNet(ResidualBlock block, const std::array<int64_t, 4>& blocks, const ResNetOptions& o = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(conv1, bn1, layer1, layer2, layer3, layer4, fc)
};

ResNet resnet18(const ResNetOptions& o = {});
ResNet resnet34(const ResNetOptions& o = {});
ResNet resnet50(const ResNetOptions& o = {});
ResNet resnet101(const ResNetOptions& o = {});
ResNet resnet152(const ResNetOptions& o = {});

// The shortcut around a block that has more channels and fewer pixels.
enum class Shortcut {
  Pad,     // every second pixel, zeros in new channels: no parameters (the paper's A)
  Project  // a 1 x 1 convolution and a norm (its B)
};

struct CifarResNetOptions {
  int64_t depth = 20;  // 6 n + 2: ResNet-20, 32, 44, 56, 110
  int64_t num_classes = 10;
  Shortcut shortcut = Shortcut::Pad;
  int64_t in_channels = 3;
  int64_t width = 16;
};
// images [n, in_channels, 32, 32] -> logits [n, num_classes]: three layers of n blocks, without an
// initial pool. Initialised as ResNet.
struct CifarResNet : nn::Module<CifarResNet> {
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  nn::Sequential layer1, layer2, layer3;
  nn::Linear fc;

  explicit CifarResNet(const CifarResNetOptions& o = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(conv1, bn1, layer1, layer2, layer3, fc)
};

}  // namespace mixtape::models
