#include "nn/models/resnet_v2.h"

#include "nn/init.h"

namespace mixtape::models {
using namespace internal;
namespace {

nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  nn::Conv2d layer(in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false});
  nn::init::kaiming_normal_(layer.weight, {.fan_out = true});
  return layer;
}

constexpr int64_t expansion_of(bool bottleneck) { return bottleneck ? 4 : 1; }

std::vector<int64_t> blocks_of_depth(int depth) {
  switch (depth) {
    case 18:
      return {2, 2, 2, 2};
    case 34:
    case 50:
      return {3, 4, 6, 3};
    case 101:
      return {3, 4, 23, 3};
    case 152:
      return {3, 8, 36, 3};
    default:
      fail("ResNetV2: depth must be 18, 34, 50, 101 or 152, got {}", depth);
  }
}

nn::Sequential stage(int64_t in, int64_t channels, int64_t blocks, int64_t stride,
                     bool bottleneck) {
  nn::Sequential row;
  for (int64_t i = 0; i < blocks; ++i) {
    row.push_back(PreActivationBlock(in, channels, i == 0 ? stride : 1, bottleneck));
    in = channels * expansion_of(bottleneck);
  }
  return row;
}

}  // namespace

PreActivationBlock::PreActivationBlock(int64_t in, int64_t channels, int64_t stride,
                                       bool bottleneck)
    : bn1(in),
      conv1(convolution(in, channels, bottleneck ? 1 : 3, bottleneck ? 1 : stride)),
      bn2(channels),
      conv2(convolution(channels, channels, 3, bottleneck ? stride : 1)) {
  const int64_t out = channels * expansion_of(bottleneck);
  if (bottleneck) {
    bn3.emplace(channels);
    conv3.emplace(convolution(channels, out, 1));
  }
  if (stride != 1 || in != out) downsample.emplace(convolution(in, out, 1, stride));
}

Tensor PreActivationBlock::forward(const Tensor& x) const {
  const Tensor in = relu(bn1(x));
  Tensor y = conv2(relu(bn2(conv1(in))));
  if (conv3) y = (*conv3)(relu((*bn3)(y)));
  return y + (downsample ? (*downsample)(in) : x);
}

ResNetV2::ResNetV2(int depth, const ResNetV2Options& o)
    : ResNetV2(blocks_of_depth(depth), depth >= 50, o) {}

ResNetV2::ResNetV2(const std::vector<int64_t>& blocks, bool bottleneck, const ResNetV2Options& o)
    : conv1(convolution(o.in_channels, o.width, 7, 2)),
      bn(8 * o.width * expansion_of(bottleneck)),
      fc(8 * o.width * expansion_of(bottleneck), o.num_classes) {
  check(blocks.size() == 4, "ResNetV2: blocks for 4 layers, got {}", blocks.size());
  int64_t in = o.width, channels = o.width, stride = 1;
  nn::Sequential* const layers[] = {&layer1, &layer2, &layer3, &layer4};
  for (size_t i = 0; i < 4; ++i) {
    *layers[i] = stage(in, channels, blocks[i], stride, bottleneck);
    in = channels * expansion_of(bottleneck);
    channels *= 2;
    stride = 2;
  }
}

Tensor ResNetV2::forward(const Tensor& x) const {
  const Tensor y = max_pool2d(conv1(x), 3, {.stride = 2, .padding = 1});
  const Tensor z = relu(bn(layer4(layer3(layer2(layer1(y))))));
  return fc(mean(z, {2, 3}));
}

}  // namespace mixtape::models
