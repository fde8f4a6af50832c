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
struct Unflatten : Module<Unflatten> {
  Unflatten(int dim, const Shape& sizes) : dim_(dim), sizes_(sizes) {}
  Tensor forward(const Tensor& x) const {
    const int dim = wrap_dim(dim_, x.rank());
    Shape shape;
    for (int d = 0; d < dim; ++d) shape.push_back(x.size(d));
    for (const int64_t size : infer(sizes_, x.size(dim))) shape.push_back(size);
    for (int d = dim + 1; d < x.rank(); ++d) shape.push_back(x.size(d));
    return reshape(x, shape);
  }
  MIXTAPE_FIELDS()

 private:
  int dim_;
  Shape sizes_;
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
// Resizes images [n, c, h, w] to a size, or by a factor.
struct Upsample : Module<Upsample> {
  explicit Upsample(const UpsampleOptions& o) : options_(o) {
    const internal::Scope scope("Upsample");
    check(o.size.has_value() != o.scale_factor.has_value(),
          "size is {} and scale_factor is {}: one of them has to be",
          o.size ? "given" : "not given", o.scale_factor ? "given" : "not given");
    const Size2 given = o.size ? *o.size : *o.scale_factor;
    check(given.h > 0 && given.w > 0, "{} must be > 0, got {} x {}",
          o.size ? "size" : "scale_factor", given.h, given.w);
  }
  Tensor forward(const Tensor& x) const {
    const auto& [size, factor, mode, align_corners] = options_;
    return interpolate(x, size ? *size : Size2(x.size(-2) * factor->h, x.size(-1) * factor->w),
                       {.mode = mode, .align_corners = align_corners});
  }
  MIXTAPE_FIELDS()

 private:
  UpsampleOptions options_;
};

}  // namespace mixtape::nn
