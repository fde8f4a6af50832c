#pragma once
// A U-Net (Ronneberger et al. 2015) with padded convolutions and batch norm, and the names of the
// widely used PyTorch implementation (milesial/Pytorch-UNet).

#include "nn/conv.h"
#include "nn/norm.h"
#include "nn/sequential.h"

namespace mixtape::models {

struct UNetOptions {
  int64_t in_channels = 3, num_classes = 2;
  int64_t width = 64;  // channels at full size; 16 times as many at the smallest
};
// images [n, in_channels, h, w], of at least 16 x 16 pixels -> logits [n, num_classes, h, w]. Sizes
// are halved four times and doubled again, and each doubled image is joined to the halved one of
// its size.
struct UNet : nn::Module<UNet> {
  struct DoubleConv : nn::Module<DoubleConv> {
    nn::Sequential double_conv;
    DoubleConv(int64_t in, int64_t out);
    Tensor forward(const Tensor& x) const;
    MIXTAPE_FIELDS(double_conv)
  };
  struct Down : nn::Module<Down> {
    nn::Sequential maxpool_conv;
    Down(int64_t in, int64_t out);
    Tensor forward(const Tensor& x) const;
    MIXTAPE_FIELDS(maxpool_conv)
  };
  struct Up : nn::Module<Up> {
    nn::ConvTranspose2d up;
    DoubleConv conv;
    Up(int64_t in, int64_t out);
    // Pads x to the size of `beside`, which is needed for odd sizes.
    Tensor forward(const Tensor& x, const Tensor& beside) const;
    MIXTAPE_FIELDS(up, conv)
  };
  struct Out : nn::Module<Out> {
    nn::Conv2d conv;
    Out(int64_t in, int64_t out) : conv(in, out, 1) {}
    Tensor forward(const Tensor& x) const;
    MIXTAPE_FIELDS(conv)
  };

  DoubleConv inc;
  Down down1, down2, down3, down4;
  Up up1, up2, up3, up4;
  Out outc;

  explicit UNet(const UNetOptions& o = {});
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS(inc, down1, down2, down3, down4, up1, up2, up3, up4, outc)
};

}  // namespace mixtape::models
