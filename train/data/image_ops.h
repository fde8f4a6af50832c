#pragma once
// Changes of one image, u8 [channels, height, width] with 1 or 3 channels on the CPU: torchvision's
// functions of the same names, with the same rounding. All throw Error for other tensors.

#include <array>

#include "core/tensor.h"

namespace mixtape::train::images {

struct Box {  // a part of an image, in pixels
  int64_t top, left, height, width;
};
// The box of an image, scaled to height x width by antialiased bilinear interpolation, with the
// same bytes as PIL's. Throws Error unless the box is within the image.
Tensor resized(const Tensor& image, const Box& box, int64_t height, int64_t width);
Tensor resized(const Tensor& image, int64_t height, int64_t width);
// The box of an image, with zeros where it extends beyond the image.
Tensor cropped(const Tensor& image, const Box& box);
Tensor flipped(const Tensor& image);  // left to right

// Mix the image with black, its mean grey, its greyscale or its blurred version. A factor of 0
// gives the other image, 1 the image itself, and more than 1 enhances it.
Tensor adjust_brightness(const Tensor& image, double factor);
Tensor adjust_contrast(const Tensor& image, double factor);
Tensor adjust_saturation(const Tensor& image, double factor);
Tensor adjust_sharpness(const Tensor& image, double factor);
Tensor adjust_hue(const Tensor& image, double turn);  // in turns of the colour circle, [-0.5, 0.5]

Tensor posterize(const Tensor& image, int bits);         // keeps the highest bits
Tensor solarize(const Tensor& image, double threshold);  // inverts values from the threshold on
Tensor autocontrast(const Tensor& image);                // each channel to 0 ... 255
Tensor equalize(const Tensor& image);  // makes each channel's values equally frequent

// The pixel at (x, y) becomes the one nearest to (m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5]),
// or zero outside. Coordinates are those of pixel centres, counted from the image's corner:
// 0.5, 1.5, ...
Tensor warp(const Tensor& image, const std::array<double, 6>& m);

}  // namespace mixtape::train::images
