#include "nn/models/unet.h"

#include "core/format.h"
#include "nn/activation.h"
#include "nn/pool.h"

namespace mixtape::models {
using namespace internal;

UNet::DoubleConv::DoubleConv(int64_t in, int64_t out) {
  for (const int64_t from : {in, out}) {
    double_conv.push_back(nn::Conv2d(from, out, 3, {.padding = 1, .bias = false}));
    double_conv.push_back(nn::BatchNorm2d(out));
    double_conv.push_back(nn::ReLU());
  }
}

UNet::Down::Down(int64_t in, int64_t out) : maxpool_conv(nn::MaxPool2d(2), DoubleConv(in, out)) {}

UNet::Up::Up(int64_t in, int64_t out) : up(in, in / 2, 2, {.stride = 2}), conv(in, out) {}

Tensor UNet::Up::forward(const Tensor& x, const Tensor& beside) const {
  const Tensor y = up(x);
  const int64_t rows = beside.size(2) - y.size(2), columns = beside.size(3) - y.size(3);
  const Tensor padded = pad(y, {columns / 2, columns - columns / 2, rows / 2, rows - rows / 2});
  return conv(cat({beside, padded}, 1));
}

UNet::UNet(const UNetOptions& o)
    : inc(o.in_channels, o.width),
      down1(o.width, 2 * o.width),
      down2(2 * o.width, 4 * o.width),
      down3(4 * o.width, 8 * o.width),
      down4(8 * o.width, 16 * o.width),
      up1(16 * o.width, 8 * o.width),
      up2(8 * o.width, 4 * o.width),
      up3(4 * o.width, 2 * o.width),
      up4(2 * o.width, o.width),
      outc(o.width, o.num_classes) {}

Tensor UNet::forward(const Tensor& x) const {
  check(x.rank() == 4 && x.size(2) >= 16 && x.size(3) >= 16,
        "the input has shape {}, not [n, c, h, w] with at least 16 x 16 pixels", x.shape());
  const Tensor x1 = inc(x), x2 = down1(x1), x3 = down2(x2), x4 = down3(x3);
  return outc(up4(up3(up2(up1(down4(x4), x4), x3), x2), x1));
}

Tensor UNet::DoubleConv::forward(const Tensor& x) const { return double_conv(x); }

Tensor UNet::Down::forward(const Tensor& x) const { return maxpool_conv(x); }

Tensor UNet::Out::forward(const Tensor& x) const { return conv(x); }

}  // namespace mixtape::models
