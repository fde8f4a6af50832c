#include "nn/models/cnn.h"

#include "core/check.h"
#include "nn/activation.h"
#include "nn/conv.h"
#include "nn/init.h"
#include "nn/norm.h"
#include "nn/pool.h"
#include "nn/shape.h"

namespace mixtape::models {
using namespace internal;

nn::Sequential simple_cnn(const std::vector<int64_t>& channels, const SimpleCnnOptions& o) {
  const Scope scope("simple_cnn");
  check(channels.size() >= 2, "channels must have the images' and the classes', got {} numbers",
        channels.size());
  const size_t layers = channels.size() - 1;
  const auto one_each = [&](const char* what, const std::vector<int64_t>& given, int64_t usual) {
    check(given.empty() || given.size() == layers,
          "there must be as many {1} as convolutions, {2}, got {0}", given.size(), what, layers);
    return given.empty() ? std::vector(layers, usual) : given;
  };
  const auto kernels = one_each("kernel sizes", o.kernel_sizes, 3);
  const auto strides = one_each("strides", o.strides, 2);

  nn::Sequential net;
  for (size_t i = 0; i < layers; ++i) {
    const bool norm = o.batch_norm && i + 1 < layers;
    nn::Conv2d conv(channels[i], channels[i + 1], kernels[i],
                    {.stride = strides[i], .padding = (kernels[i] - 1) / 2, .bias = !norm});
    nn::init::kaiming_normal_(conv.weight);
    if (conv.bias) nn::init::zeros_(conv.bias);
    nn::Sequential layer(std::move(conv), nn::ReLU());
    if (norm) layer.push_back(nn::BatchNorm2d(channels[i + 1]));
    net.push_back(std::move(layer));
  }
  net.push_back(nn::Sequential(nn::AdaptiveAvgPool2d(1), nn::Flatten()));
  return net;
}

}  // namespace mixtape::models
