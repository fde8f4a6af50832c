#pragma once
// Modules that only rearrange elements or change how many there are.

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/module.h"
#include "nn/size.h"

namespace mixtape::nn {

struct Flatten : Module<Flatten> {  // all dimensions but the batch's
  explicit Flatten(int from = 1, int to = -1) : from_(from), to_(to) {}
  Tensor forward(const Tensor& x) const { return flatten(x, from_, to_); }
  MIXTAPE_FIELDS()

 private:
  int from_, to_;
};
struct Identity : Module<Identity> {
  Tensor forward(const Tensor& x) const { return x; }
  MIXTAPE_FIELDS()
};
// Dimension dim becomes the given ones.
struct Unflatten : Module<Unflatten> {
  Unflatten(int dim, const Shape& sizes) : dim_(dim), sizes_(sizes) {}
  Tensor forward(const Tensor& x) const {
    const int dim = wrap_dim(dim_, x.rank());
    Shape shape;
    for (int d = 0; d < dim; ++d) shape.push_back(x.size(d));
    for (const int64_t size : sizes_) shape.push_back(size);
    for (int d = dim + 1; d < x.rank(); ++d) shape.push_back(x.size(d));
    return reshape(x, shape);
  }
  MIXTAPE_FIELDS()

 private:
  int dim_;
  Shape sizes_;
};
// [n, c f f, h, w] -> [n, c, h f, w f]
struct PixelShuffle : Module<PixelShuffle> {
  explicit PixelShuffle(int64_t factor) : factor_(factor) {}
  Tensor forward(const Tensor& x) const { return pixel_shuffle(x, factor_); }
  MIXTAPE_FIELDS()

 private:
  int64_t factor_;
};
// Images [n, c, h, w] as many times larger.
struct Upsample : Module<Upsample> {
  explicit Upsample(Size2 factor, const InterpolateOptions& o = {}) : factor_(factor), options_(o) {
    const Scope scope("Upsample");
    check(factor.h > 0 && factor.w > 0, "a factor of {} x {}", factor.h, factor.w);
  }
  Tensor forward(const Tensor& x) const {
    return interpolate(x, {x.size(-2) * factor_.h, x.size(-1) * factor_.w}, options_);
  }
  MIXTAPE_FIELDS()

 private:
  Size2 factor_;
  InterpolateOptions options_;
};

}  // namespace mixtape::nn
