// Sampling images at points that a network chooses. Composed of other ops: a gather for each of the
// pixels around a point.

#include <algorithm>

#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace ops;
namespace {

// Maps coordinates from -1 to 1 to positions among n pixels; the first pixel's centre is at 0.
Tensor pixels(const Tensor& at, int64_t n, const GridSampleOptions& o) {
  const double low = o.align_corners ? 0 : -0.5, span = double(n) - (o.align_corners ? 1 : 0);
  Tensor p = (at + 1) * (span / 2) + low;
  if (o.padding == PadMode::Reflect && span > 0)
    p = low + span - abs(remainder(p - low, 2 * span) - span);
  return o.padding == PadMode::Constant ? p : clamp(p, 0, double(n - 1));
}

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  const Scope scope("grid_sample");
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
  check(grid.rank() == 4 && grid.size(0) == x.size(0) && grid.size(3) == 2,
        "a grid of shape {} for an input of shape {}: it has to be [n, h', w', 2]", grid.shape(),
        x.shape());
  check_real(x);
  check_real(grid);
  check((x.dtype() == f64) == (grid.dtype() == f64),
        "an input of {} and a grid of {}: both are f64, or neither", x.dtype(), grid.dtype());
  check(o.mode != Interpolation::Bicubic, "mode is Bicubic, not Nearest or Bilinear");
  check(o.padding != PadMode::Circular, "padding is Circular, not Constant, Replicate or Reflect");
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  const int64_t points = grid.size(1) * grid.size(2);
  const auto along = [&](int axis, int64_t size) {
    return pixels(reshape(select(wide(grid), 3, axis), {n, 1, points}), size, o);
  };
  const Tensor px = along(0, w), py = along(1, h), image = reshape(x, {n, c, h * w});
  const auto pixel = [&](const Tensor& ix, const Tensor& iy) {  // 0 outside
    const Tensor inside = logical_and(logical_and(ge(ix, 0), le(ix, double(w - 1))),
                                      logical_and(ge(iy, 0), le(iy, double(h - 1))));
    const auto whole = [&](const Tensor& i) { return cast(where(inside, i, 0), i64); };
    const Tensor index = whole(iy) * double(w) + whole(ix);
    return where(inside, wide(gather(image, 2, expand(index, {n, c, points}))), 0);
  };
  Tensor y;
  if (o.mode == Interpolation::Nearest) {
    y = pixel(round(px), round(py));
  } else {
    const Tensor left = floor(px), top = floor(py), fx = px - left, fy = py - top;
    y = (1 - fy) * ((1 - fx) * pixel(left, top) + fx * pixel(left + 1, top)) +
        fy * ((1 - fx) * pixel(left, top + 1) + fx * pixel(left + 1, top + 1));
  }
  return reshape(cast(y, x.dtype()), {n, c, grid.size(1), grid.size(2)});
}

Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners) {
  const Scope scope("affine_grid");
  check(size.rank == 4, "the images have shape {}, not [n, c, h, w]", size);
  check(theta.shape() == Shape({size[0], 2, 3}), "theta has shape {}, not [{}, 2, 3]",
        theta.shape(), size[0]);
  const int64_t h = size[2], w = size[3];
  const Tensor t = wide(theta);
  const auto centres = [&](int64_t n) {  // of n pixels, from -1 to 1
    const double span = align_corners ? double(std::max<int64_t>(n - 1, 1)) : double(n);
    const Tensor i = cast(arange(0, double(n), 1, i64, t.device()), t.dtype());
    return n > 1 || !align_corners ? (i * 2 + (align_corners ? 0 : 1)) / span - 1 : i;
  };
  const Tensor points = stack({expand(centres(w), {h, w}), expand(unsqueeze(centres(h), 1), {h, w}),
                               ones({h, w}, t.dtype(), t.device())},
                              -1);
  const Tensor moved = matmul(reshape(points, {h * w, 3}), t.t(), {.out = t.dtype()});
  return reshape(moved, {size[0], h, w, 2});
}

}  // namespace mixtape
