// Resizing images: interpolation, and channels rearranged into pixels.

#include "autograd/ops/resample.h"

namespace mixtape {
using namespace ops;
namespace {

using kernels::Sampling;

struct InterpolateName {
  static constexpr std::string_view forward = "interpolate", gradient = "interpolate_gradient";
};
using Interpolate = Resample<InterpolateName>;

void check_images(const Tensor& x) {
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
}

}  // namespace

Tensor interpolate(const Tensor& x, Size2 size, const InterpolateOptions& o) {
  const Scope scope(Interpolate::info.name);
  check_images(x);
  check(o.mode != Interpolation::Nearest || !o.align_corners,
        "nearest neighbours with aligned corners (only the other modes have a choice)");
  using Kind = Sampling::Kind;
  const Kind kind = o.mode == Interpolation::Nearest    ? Kind::Nearest
                    : o.mode == Interpolation::Bilinear ? Kind::Linear
                                                        : Kind::Cubic;
  const auto along = [&](int d) {
    check(size[d] > 0 && x.size(2 + d) > 0, "from {} elements to {}", x.size(2 + d), size[d]);
    return Sampling{
        .kind = kind, .from = x.size(2 + d), .to = size[d], .align_corners = o.align_corners};
  };
  return call<Interpolate>(x, Samplings{along(0), along(1)});
}

// Channel (c, i, j) holds the pixels at row i and column j of every square of f x f.
Tensor pixel_shuffle(const Tensor& x, int64_t f) {
  const Scope scope("pixel_shuffle");
  check_images(x);
  check(f > 0 && f <= x.size(1) && x.size(1) % (f * f) == 0,
        "{} channels do not divide into squares of {} x {}", x.size(1), f, f);
  const int64_t n = x.size(0), c = x.size(1) / (f * f), h = x.size(2), w = x.size(3);
  return reshape(permute(reshape(x, {n, c, f, f, h, w}), {0, 1, 4, 2, 5, 3}), {n, c, h * f, w * f});
}

Tensor pixel_unshuffle(const Tensor& x, int64_t f) {
  const Scope scope("pixel_unshuffle");
  check_images(x);
  check(f > 0 && x.size(2) % f == 0 && x.size(3) % f == 0,
        "{} x {} pixels do not divide into squares of {} x {}", x.size(2), x.size(3), f, f);
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2) / f, w = x.size(3) / f;
  return reshape(permute(reshape(x, {n, c, h, f, w, f}), {0, 1, 3, 5, 2, 4}), {n, c * f * f, h, w});
}

}  // namespace mixtape
