#pragma once
// Modules that rearrange, pad or resample elements.

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/op_module.h"

namespace mixtape::nn {

struct Flatten : OpModule<Flatten, flatten, int, int> {  // all dimensions but the batch
  explicit Flatten(int from = 1, int to = -1) : OpModule(from, to) {}
};
struct Identity : Module<Identity> {
  Tensor forward(const Tensor& x) const { return x; }
  MIXTAPE_FIELDS()
};
// Splits dimension dim into the given sizes.
struct Unflatten : OpModule<Unflatten, unflatten, int, Shape> {
  Unflatten(int dim, const Shape& sizes) : OpModule(dim, sizes) {}
};
// Pads images [..., h, w] by `size` pixels on each side, or by left, right, top and bottom.
template <class Derived, PadMode mode>
struct Pad2d : OpModule<Derived, pad, std::vector<int64_t>, PadMode, double> {
  explicit Pad2d(int64_t size) : Pad2d(size, size, size, size) {}
  Pad2d(int64_t left, int64_t right, int64_t top, int64_t bottom)
      : Pad2d::OpModule({left, right, top, bottom}, mode, 0) {}
};
struct ZeroPad2d : Pad2d<ZeroPad2d, PadMode::Constant> {
  using Pad2d::Pad2d;
};
struct ReflectionPad2d : Pad2d<ReflectionPad2d, PadMode::Reflect> {
  using Pad2d::Pad2d;
};
struct ReplicationPad2d : Pad2d<ReplicationPad2d, PadMode::Replicate> {
  using Pad2d::Pad2d;
};
// [n, c f f, h, w] -> [n, c, h f, w f]
struct PixelShuffle : OpModule<PixelShuffle, pixel_shuffle, int64_t> {
  explicit PixelShuffle(int64_t factor) : OpModule(factor) {}
};
// [n, c, h f, w f] -> [n, c f f, h, w]
struct PixelUnshuffle : OpModule<PixelUnshuffle, pixel_unshuffle, int64_t> {
  explicit PixelUnshuffle(int64_t factor) : OpModule(factor) {}
};

struct UpsampleOptions {  // give one of the first two
  std::optional<Size2> size = {}, scale_factor = {};
  Interpolation mode = Interpolation::Nearest;
  bool align_corners = false;
};
// Resizes images [n, c, h, w] or lines [n, c, l] to a size, or by a factor.
struct Upsample : Module<Upsample> {
  explicit Upsample(const UpsampleOptions& o);
  Tensor forward(const Tensor& x) const;
  MIXTAPE_FIELDS()

 private:
  UpsampleOptions options_;
};

}  // namespace mixtape::nn
