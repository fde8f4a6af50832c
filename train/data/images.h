#pragma once
// Transforms of single images, u8 [channels, height, width] of any size: torchvision's, with the
// loader's random numbers. Mapped applies them while images still have different sizes.
//
//   DataLoader loader(Mapped(photos.train, images::random_resized_crop(224)), ...);

#include "train/data/transforms.h"

namespace mixtape::train {

// Applies f to the inputs of a data set, one by one. The random numbers of an example depend on the
// loader's seed, the epoch and the position in it.
class Mapped final : public Dataset {
 public:
  // f may change an input's shape.
  Mapped(AnyDataset of, InputTransform f) : of_(std::move(of)), f_(std::move(f)) {}

  std::string name() const override { return of_->name(); }
  std::string name_of(int64_t i) const override { return of_->name_of(i); }
  int64_t size() const override { return of_->size(); }
  Example get(int64_t i) const override;

 private:
  AnyDataset of_;
  InputTransform f_;
};

namespace images {

// Applies transforms one after the other.
InputTransform compose(std::vector<InputTransform> parts);

// Resizes to height x width, or the shorter side to `size`: bilinear, antialiased, as PIL does.
InputTransform resize(int64_t height, int64_t width);
InputTransform resize(int64_t size);
// Keeps the middle, with zeros around an image that is smaller.
InputTransform center_crop(int64_t height, int64_t width);
inline InputTransform center_crop(int64_t size) { return center_crop(size, size); }

struct Range {  // from which numbers are drawn evenly
  double low, high;
};
struct CropOptions {
  Range scale{0.08, 1};           // of the fraction of the area that is kept
  Range ratio{3.0 / 4, 4.0 / 3};  // of width / height
};
// Resizes a part of random area, ratio and place to size x size (Szegedy et al. 2014).
InputTransform random_resized_crop(int64_t size, const CropOptions& options = {});
InputTransform random_flip(double probability = 0.5);  // mirrors left to right

struct ColorOptions {
  double brightness = 0, contrast = 0, saturation = 0;  // factors are within 1 +- these
  double hue = 0;                                       // turns within +- this, at most 0.5
};
// Changes colours in random order by random factors.
InputTransform color_jitter(const ColorOptions& options);

struct RandAugmentOptions {
  int ops = 2;        // changes per image
  int magnitude = 9;  // from 0 to 30
};
// Applies changes drawn from 14: shear, shift, rotation, colours (Cubuk et al. 2019).
InputTransform rand_augment(const RandAugmentOptions& options = {});

}  // namespace images
}  // namespace mixtape::train
