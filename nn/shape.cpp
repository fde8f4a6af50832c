#include "nn/shape.h"

namespace mixtape::nn {
using namespace internal;

Upsample::Upsample(const UpsampleOptions& o) : options_(o) {
  const Scope scope("Upsample");
  check(o.size.has_value() != o.scale_factor.has_value(),
        "size is {} and scale_factor is {}: one of them has to be", o.size ? "given" : "not given",
        o.scale_factor ? "given" : "not given");
  const Size2 given = o.size ? *o.size : *o.scale_factor;
  check(given.h > 0 && given.w > 0 && (given.h | given.w) < int64_t{1} << 31,
        "{} must be > 0 and below 2^31, got {} x {}", o.size ? "size" : "scale_factor", given.h,
        given.w);
}

Tensor Upsample::forward(const Tensor& x) const {
  const auto& [size, factor, mode, align_corners] = options_;
  const int64_t rows = x.size(x.rank() == 3 ? -1 : -2);  // as columns, of a line
  return interpolate(x, size ? *size : Size2(rows * factor->h, x.size(-1) * factor->w),
                     {.mode = mode, .align_corners = align_corners});
}

}  // namespace mixtape::nn
