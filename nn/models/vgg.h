#pragma once
// VGG (Simonyan and Zisserman 2015), with torchvision's names and initial values. Like unet.h and
// resnet_v2.h not in <mixtape.h>.

#include "autograd/ops.h"
#include "nn/sequential.h"

namespace mixtape::models {

struct VggOptions {
  int64_t num_classes = 1000, in_channels = 3;
  bool batch_norm = false;  // after each convolution
  double dropout = 0.5;     // before the last two linear layers, in training
  int64_t width = 64;       // channels of the first layer; the last have eight times as many
  int64_t hidden = 4096;    // of the linear layers
};
// images [n, in_channels, h, w], of at least 32 x 32 pixels -> logits [n, num_classes]. 3 x 3
// convolutions, halving the size five times, then three linear layers on 7 x 7 means.
struct Vgg : nn::Module<Vgg> {
  nn::Sequential features, classifier;

  // depth 11, 13, 16 or 19; throws Error for others
  explicit Vgg(int depth, const VggOptions& o = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(features, classifier)
};

}  // namespace mixtape::models
