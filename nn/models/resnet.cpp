#include "nn/models/resnet.h"

#include "nn/init.h"

namespace mixtape::models {
namespace {

// A convolution before a norm, which therefore needs no bias.
nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return {in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false}};
}

struct PadShortcut : nn::Module<PadShortcut> {
  PadShortcut(int64_t in, int64_t out, int64_t stride)
      : before_((out - in) / 2), after_(out - in - before_), stride_(stride) {}
  Tensor forward(const Tensor& x) const {
    const Tensor y = slice(slice(x, 2, 0, x.size(2), stride_), 3, 0, x.size(3), stride_);
    return pad(y, {0, 0, 0, 0, before_, after_});
  }
  MIXTAPE_FIELDS()

 private:
  int64_t before_, after_, stride_;
};

nn::Any shortcut(Shortcut kind, int64_t in, int64_t out, int64_t stride) {
  if (stride == 1 && in == out) return {};
  if (kind == Shortcut::Pad) return PadShortcut(in, out, stride);
  return nn::Sequential(conv(in, out, 1, stride), nn::BatchNorm2d(out));
}

// A layer of blocks, of which the first changes the shape.
template <class B>
nn::Sequential layer(int64_t in, int64_t channels, int64_t blocks, int64_t stride, Shortcut kind) {
  check(blocks > 0, "blocks must be > 0, got {}", blocks);
  const int64_t out = channels * B::expansion;
  nn::Sequential row(B(in, channels, stride, shortcut(kind, in, out, stride)));
  for (int64_t i = 1; i < blocks; ++i) row.push_back(B(out, channels));
  return row;
}

// Layer 1, 2, 3 or 4 of a ResNet.
nn::Sequential layer(int number, ResidualBlock block, int64_t blocks, int64_t width) {
  const int64_t channels = width << (number - 1), stride = number == 1 ? 1 : 2;
  if (block == ResidualBlock::Basic)
    return layer<BasicBlock>(channels / stride, channels, blocks, stride, Shortcut::Project);
  const int64_t in = number == 1 ? width : channels / 2 * Bottleneck::expansion;
  return layer<Bottleneck>(in, channels, blocks, stride, Shortcut::Project);
}

void start(nn::ModuleBase& net, bool zero_init_residual = false) {
  for (const auto& [path, m] : net.named_modules()) {
    if (auto* c = dynamic_cast<nn::Conv2d*>(m))
      nn::init::kaiming_normal_(c->weight, {.fan_out = true});
    if (!zero_init_residual) continue;
    if (auto* b = dynamic_cast<BasicBlock*>(m)) nn::init::zeros_(b->bn2.weight);
    if (auto* b = dynamic_cast<Bottleneck*>(m)) nn::init::zeros_(b->bn3.weight);
  }
}

int64_t blocks_of(const CifarResNetOptions& o) {
  check(o.depth >= 8 && o.depth % 6 == 2, "depth must be 6 n + 2, got {}", o.depth);
  return (o.depth - 2) / 6;
}

}  // namespace

BasicBlock::BasicBlock(int64_t in, int64_t channels, int64_t stride, nn::Any downsample)
    : conv1(conv(in, channels, 3, stride)),
      bn1(channels),
      conv2(conv(channels, channels, 3)),
      bn2(channels),
      downsample(std::move(downsample)) {}

Bottleneck::Bottleneck(int64_t in, int64_t channels, int64_t stride, nn::Any downsample)
    : conv1(conv(in, channels, 1)),
      bn1(channels),
      conv2(conv(channels, channels, 3, stride)),
      bn2(channels),
      conv3(conv(channels, channels * expansion, 1)),
      bn3(channels * expansion),
      downsample(std::move(downsample)) {}

ResNet::ResNet(ResidualBlock block, const std::array<int64_t, 4>& blocks, const ResNetOptions& o)
    : conv1(conv(o.in_channels, o.width, 7, 2)),
      bn1(o.width),
      layer1(layer(1, block, blocks[0], o.width)),
      layer2(layer(2, block, blocks[1], o.width)),
      layer3(layer(3, block, blocks[2], o.width)),
      layer4(layer(4, block, blocks[3], o.width)),
      fc(o.width * 8 *
             (block == ResidualBlock::Basic ? BasicBlock::expansion : Bottleneck::expansion),
         o.num_classes) {
  start(*this, o.zero_init_residual);
}

ResNet resnet18(const ResNetOptions& o) { return {ResidualBlock::Basic, {2, 2, 2, 2}, o}; }
ResNet resnet34(const ResNetOptions& o) { return {ResidualBlock::Basic, {3, 4, 6, 3}, o}; }
ResNet resnet50(const ResNetOptions& o) { return {ResidualBlock::Bottleneck, {3, 4, 6, 3}, o}; }
ResNet resnet101(const ResNetOptions& o) { return {ResidualBlock::Bottleneck, {3, 4, 23, 3}, o}; }
ResNet resnet152(const ResNetOptions& o) { return {ResidualBlock::Bottleneck, {3, 8, 36, 3}, o}; }

CifarResNet::CifarResNet(const CifarResNetOptions& o)
    : conv1(conv(o.in_channels, o.width, 3)),
      bn1(o.width),
      layer1(layer<BasicBlock>(o.width, o.width, blocks_of(o), 1, o.shortcut)),
      layer2(layer<BasicBlock>(o.width, 2 * o.width, blocks_of(o), 2, o.shortcut)),
      layer3(layer<BasicBlock>(2 * o.width, 4 * o.width, blocks_of(o), 2, o.shortcut)),
      fc(4 * o.width, o.num_classes) {
  start(*this);
}

Tensor BasicBlock::forward(const Tensor& x) const {
  const Tensor y = bn2(conv2(relu(bn1(conv1(x)))));
  return relu(y + (downsample ? downsample(x) : x));
}

Tensor Bottleneck::forward(const Tensor& x) const {
  const Tensor y = bn3(conv3(relu(bn2(conv2(relu(bn1(conv1(x))))))));
  return relu(y + (downsample ? downsample(x) : x));
}

Tensor ResNet::forward(const Tensor& x) const {
  const Tensor h = max_pool2d(relu(bn1(conv1(x))), {3, 3}, {.stride = {2, 2}, .padding = {1, 1}});
  const Tensor y = layer4(layer3(layer2(layer1(h))));
  return fc(flatten(adaptive_avg_pool2d(y, {1, 1}), 1));
}

Tensor CifarResNet::forward(const Tensor& x) const {
  const Tensor y = layer3(layer2(layer1(relu(bn1(conv1(x))))));
  return fc(flatten(adaptive_avg_pool2d(y, {1, 1}), 1));
}

}  // namespace mixtape::models
