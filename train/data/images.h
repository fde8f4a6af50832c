#pragma once
// Transforms of one image at a time, u8 [channels, height, width] of any size: torchvision's, with
// the loader's random numbers. Mapped applies them where images still have different sizes.
//
//   DataLoader loader(Mapped(photos.train, images::random_resized_crop(224)), ...);

#include "train/data/transforms.h"

namespace mixtape::train {

// A data set whose inputs f changes one by one. The random numbers of an example depend on the
// loader's seed, the epoch and the position in it.
class Mapped final : public Dataset {
 public:
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

// To height x width, or the shorter side to `size`: bilinear, antialiased, as PIL.
InputTransform resize(int64_t height, int64_t width);
InputTransform resize(int64_t size);
// The middle, with zeros around an image that is smaller.
InputTransform center_crop(int64_t height, int64_t width);
inline InputTransform center_crop(int64_t size) { return center_crop(size, size); }

struct Range {  // drawn from evenly
  double low, high;
};
struct CropOptions {
  Range scale{0.08, 1};           // of the area that is kept
  Range ratio{3.0 / 4, 4.0 / 3};  // width by height
};
// A part of random area, ratio and place, resized to size x size (Szegedy et al. 2014).
InputTransform random_resized_crop(int64_t size, const CropOptions& options = {});
InputTransform random_flip(double probability = 0.5);  // left to right

struct ColorOptions {
  double brightness = 0, contrast = 0, saturation = 0;  // factors are within 1 +- these
  double hue = 0;                                       // turns within +- this, at most 0.5
};
// Changes colours in random order by random factors.
InputTransform color_jitter(const ColorOptions& options);

struct RandAugmentOptions {
  int ops = 2;        // changes of each image
  int magnitude = 9;  // of 0 to 30
};
// Applies random ones of 14 changes: shear, shift, rotation, colours (Cubuk et al. 2019).
InputTransform rand_augment(const RandAugmentOptions& options = {});

}  // namespace images
}  // namespace mixtape::train
