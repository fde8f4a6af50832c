#include "train/data/images.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"
#include "core/format.h"
#include "train/data/image_ops.h"

namespace mixtape::train {

Example Mapped::get(int64_t i) const {
  Example e = of_->get(i);
  e.x = f_(e.x, generator());
  return e;
}

namespace images {
namespace {

constexpr int64_t most_pixels = int64_t(1) << 26;  // the same limit as for files

double between(const Range& range, RandomGenerator& random) {
  return range.low + (range.high - range.low) * random.uniform();
}

void require_size(int64_t height, int64_t width) {
  check(std::min(height, width) > 0 && std::max(height, width) <= most_pixels,
        "an image must have sides of 1 to {} pixels, got {} x {}", most_pixels, height, width);
}

void require_image(const Tensor& x) {
  check(x.rank() == 3, "an image must be [channels, height, width], got {}", x.shape());
}

// The part that torchvision's RandomResizedCrop would take: after ten failed trials the middle.
Box random_box(int64_t height, int64_t width, const CropOptions& o, RandomGenerator& random) {
  const Range ratios{std::log(o.ratio.low), std::log(o.ratio.high)};
  for (int trial = 0; trial < 10; ++trial) {
    const double area = double(height * width) * between(o.scale, random),
                 ratio = std::exp(between(ratios, random));
    const auto w = int64_t(std::nearbyint(std::sqrt(area * ratio))),
               h = int64_t(std::nearbyint(std::sqrt(area / ratio)));
    if (0 < w && w <= width && 0 < h && h <= height) {
      const int64_t top = random.below(height - h + 1);
      return {top, random.below(width - w + 1), h, w};
    }
  }
  const double ratio = std::clamp(double(width) / double(height), o.ratio.low, o.ratio.high);
  const int64_t w = std::min(width, int64_t(std::nearbyint(double(height) * ratio))),
                h = std::min(height, int64_t(std::nearbyint(double(width) / ratio)));
  const int64_t kept_h = std::max<int64_t>(1, h), kept_w = std::max<int64_t>(1, w);
  return {(height - kept_h) / 2, (width - kept_w) / 2, kept_h, kept_w};
}

Tensor rotated(const Tensor& x, double degrees) {  // counter-clockwise
  const double angle = degrees * std::numbers::pi / 180, c = std::cos(angle), s = std::sin(angle);
  const double cx = double(x.size(2)) / 2, cy = double(x.size(1)) / 2;
  return warp(x, {c, -s, cx - c * cx + s * cy, s, c, cy - s * cx - c * cy});
}

// A change of RandAugment, by a strength from 0 to 1 and a sign, which only some use.
using Change = Tensor (*)(const Tensor& x, double strength, double sign);
constexpr double most_color = 0.9, most_shear = 0.3, most_shift = 150.0 / 331, most_degrees = 30;
constexpr Change changes[] = {
    [](const Tensor& x, double, double) { return x; },
    [](const Tensor& x, double s, double sign) {
      return warp(x, {1, sign * most_shear * s, 0, 0, 1, 0});
    },
    [](const Tensor& x, double s, double sign) {
      return warp(x, {1, 0, 0, sign * most_shear * s, 1, 0});
    },
    [](const Tensor& x, double s, double sign) {
      return warp(x, {1, 0, -std::trunc(sign * most_shift * s * double(x.size(2))), 0, 1, 0});
    },
    [](const Tensor& x, double s, double sign) {
      return warp(x, {1, 0, 0, 0, 1, -std::trunc(sign * most_shift * s * double(x.size(1)))});
    },
    [](const Tensor& x, double s, double sign) { return rotated(x, sign * most_degrees * s); },
    [](const Tensor& x, double s, double sign) {
      return adjust_brightness(x, 1 + sign * most_color * s);
    },
    [](const Tensor& x, double s, double sign) {
      return adjust_saturation(x, 1 + sign * most_color * s);
    },
    [](const Tensor& x, double s, double sign) {
      return adjust_contrast(x, 1 + sign * most_color * s);
    },
    [](const Tensor& x, double s, double sign) {
      return adjust_sharpness(x, 1 + sign * most_color * s);
    },
    [](const Tensor& x, double s, double) { return posterize(x, 8 - int(std::nearbyint(4 * s))); },
    [](const Tensor& x, double s, double) { return solarize(x, 255 * (1 - s)); },
    [](const Tensor& x, double, double) { return autocontrast(x); },
    [](const Tensor& x, double, double) { return equalize(x); },
};

}  // namespace

InputTransform compose(std::vector<InputTransform> parts) {
  return [parts = std::move(parts)](const Tensor& x, RandomGenerator& random) {
    Tensor y = x;
    for (const InputTransform& part : parts) y = part(y, random);
    return y;
  };
}

InputTransform resize(int64_t height, int64_t width) {
  require_size(height, width);
  return [=](const Tensor& x, RandomGenerator&) { return resized(x, height, width); };
}

InputTransform resize(int64_t size) {
  require_size(size, size);
  return [size](const Tensor& x, RandomGenerator&) {
    require_image(x);
    const int64_t height = x.size(1), width = x.size(2), shorter = std::min(height, width);
    const auto scaled = [&](int64_t side) {
      return side == shorter ? size : size * side / std::max<int64_t>(1, shorter);
    };
    const int64_t tall = scaled(height), wide = scaled(width);
    check(tall <= most_pixels / wide,
          "an image of {} x {} would become one of {} x {}, above {} pixels", height, width, tall,
          wide, most_pixels);
    return resized(x, tall, wide);
  };
}

InputTransform center_crop(int64_t height, int64_t width) {
  require_size(height, width);
  return [=](const Tensor& x, RandomGenerator&) {
    require_image(x);
    const auto before = [](int64_t side, int64_t kept) {
      return side < kept ? -((kept - side) / 2) : int64_t(std::nearbyint(double(side - kept) / 2));
    };
    return cropped(x, {before(x.size(1), height), before(x.size(2), width), height, width});
  };
}

InputTransform random_resized_crop(int64_t size, const CropOptions& o) {
  require_size(size, size);
  check(0 < o.scale.low && o.scale.low <= o.scale.high && o.scale.high <= 1,
        "scale must be within 0 and 1, got {} to {}", o.scale.low, o.scale.high);
  check(0 < o.ratio.low && o.ratio.low <= o.ratio.high && std::isfinite(o.ratio.high),
        "ratio must be > 0 and finite, got {} to {}", o.ratio.low, o.ratio.high);
  return [=](const Tensor& x, RandomGenerator& random) {
    require_image(x);
    return resized(x, random_box(x.size(1), x.size(2), o, random), size, size);
  };
}

InputTransform random_flip(double probability) {
  check(probability >= 0 && probability <= 1, "probability must be from 0 to 1, got {}",
        probability);
  return [probability](const Tensor& x, RandomGenerator& random) {
    return random.uniform() < probability ? flipped(x) : x;
  };
}

InputTransform color_jitter(const ColorOptions& o) {
  const auto range = [](const char* name, double width) {
    check(width >= 0 && std::isfinite(width), "{} must be >= 0 and finite, got {}", name, width);
    return Range{std::max(0.0, 1 - width), 1 + width};
  };
  check(0 <= o.hue && o.hue <= 0.5, "hue must be from 0 to 0.5, got {}", o.hue);
  struct Adjustment {
    Tensor (*adjust)(const Tensor&, double);
    Range range;
  };
  std::vector<Adjustment> all;
  if (o.brightness != 0) all.push_back({adjust_brightness, range("brightness", o.brightness)});
  if (o.contrast != 0) all.push_back({adjust_contrast, range("contrast", o.contrast)});
  if (o.saturation != 0) all.push_back({adjust_saturation, range("saturation", o.saturation)});
  if (o.hue != 0) all.push_back({adjust_hue, {-o.hue, o.hue}});
  return [all](const Tensor& x, RandomGenerator& random) {
    std::vector<Adjustment> left = all;
    Tensor y = x;
    while (!left.empty()) {
      const auto next = left.begin() + random.below(std::ssize(left));
      y = next->adjust(y, between(next->range, random));
      left.erase(next);
    }
    return y;
  };
}

InputTransform rand_augment(const RandAugmentOptions& o) {
  constexpr int largest = 30;
  check(o.ops >= 0, "ops must be >= 0, got {}", o.ops);
  check(0 <= o.magnitude && o.magnitude <= largest, "magnitude must be from 0 to {}, got {}",
        largest, o.magnitude);
  return [o](const Tensor& x, RandomGenerator& random) {
    Tensor y = x;
    for (int i = 0; i < o.ops; ++i) {
      const Change change = changes[random.below(std::ssize(changes))];
      y = change(y, double(o.magnitude) / largest, random.below(2) == 0 ? 1 : -1);
    }
    return y;
  };
}

}  // namespace images
}  // namespace mixtape::train
