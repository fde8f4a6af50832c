// Pools of volumes, made of those of images: a pool of planes and then one along depth. Also the
// windows of images.

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// pool2d of planes, then along depth, for which each plane is a line. Between them f16 and bf16 are
// f32, so that results and gradients are rounded once.
template <class F>
Tensor pool_volume(const Tensor& x, const F& pool2d) {
  if (x.rank() == 4) return squeeze(pool_volume(unsqueeze(x, 0), pool2d), 0);
  check_batch(x, 5);
  const Tensor in = is_half(x.dtype()) ? cast(x, f32) : x;
  const Tensor y = pool2d(flatten(in, 0, 1), false);  // [n c, d, h', w']
  const int64_t h = y.size(2), w = y.size(3);
  const Tensor z = pool2d(reshape(y, {y.size(0), 1, y.size(1), h * w}), true);
  return cast(reshape(z, {x.size(0), x.size(1), z.size(2), h, w}), x.dtype());
}
Tensor pool_windows(const Tensor& x, Size3 window, const Pool3dOptions& o,
                    Tensor (*pool)(const Tensor& x, Size2 window, const PoolOptions& options)) {
  check(o.stride.d >= 0, "the stride of planes must be >= 0, got {}", o.stride.d);
  return pool_volume(x, [&](const Tensor& t, bool depth) {
    const Size2 along(window.d, 1), step(o.stride.d > 0 ? o.stride.d : window.d, 1);
    return pool(
        t, depth ? along : window.plane(),
        PoolOptions{.stride = depth ? step : o.stride.plane(),
                    .padding = depth ? Size2(o.padding.d, 0) : o.padding.plane(),
                    .dilation = depth ? Size2(o.dilation.d, 1) : o.dilation.plane(),
                    .ceil_mode = o.ceil_mode,
                    .count_include_pad = o.count_include_pad,
                    .divisor_override = depth && o.divisor_override ? 1 : o.divisor_override});
  });
}

void check_windows(Size2 window, const UnfoldOptions& o) {
  for (const int d : {0, 1})
    check(window[d] > 0 && o.stride[d] > 0 && o.dilation[d] > 0 &&
              countable({window[d], o.stride[d], o.dilation[d], o.padding[d]}),
          "window, stride and dilation must be > 0, padding >= 0, all below 2^31, got {}, {}, {} "
          "and {}",
          window[d], o.stride[d], o.dilation[d], o.padding[d]);
}

// Kernels that each take one window element of one channel: [c kh kw, 1, kh, kw].
Tensor takers(int64_t channels, Size2 window, const Tensor& like) {
  const int64_t size = window.h * window.w;
  const Tensor one = reshape(eye(size, like.dtype(), like.device()), {size, 1, window.h, window.w});
  return repeat(one, {channels, 1, 1, 1});
}

}  // namespace

Tensor max_pool3d(const Tensor& x, Size3 window, const Pool3dOptions& o) {
  const Scope scope("max_pool3d");
  return pool_windows(x, window, o, max_pool2d);
}
Tensor avg_pool3d(const Tensor& x, Size3 window, const Pool3dOptions& o) {
  const Scope scope("avg_pool3d");
  return pool_windows(x, window, o, avg_pool2d);
}
Tensor adaptive_avg_pool3d(const Tensor& x, Size3 size) {
  const Scope scope("adaptive_avg_pool3d");
  return pool_volume(x, [&](const Tensor& t, bool depth) {
    return adaptive_avg_pool2d(t, depth ? Size2(size.d, t.size(3)) : size.plane());
  });
}
Tensor adaptive_max_pool3d(const Tensor& x, Size3 size) {
  const Scope scope("adaptive_max_pool3d");
  return pool_volume(x, [&](const Tensor& t, bool depth) {
    return adaptive_max_pool2d(t, depth ? Size2(size.d, t.size(3)) : size.plane());
  });
}

Tensor interpolate3d(const Tensor& x, Size3 size, const InterpolateOptions& o) {
  const Scope scope("interpolate3d");
  check_real(x);
  const bool linear = o.mode == Interpolation::Trilinear;
  check(linear || o.mode == Interpolation::Nearest || o.mode == Interpolation::Area,
        "the mode must be Nearest, Trilinear or Area, got number {}", int(o.mode));
  check(!o.antialias, "antialiasing is for images");
  check(x.rank() == 5, "the input has shape {}, not [n, c, d, h, w]", x.shape());
  InterpolateOptions of_planes = o;
  if (linear) of_planes.mode = Interpolation::Bilinear;
  return pool_volume(x, [&](const Tensor& t, bool depth) {
    return interpolate(t, depth ? Size2(size.d, t.size(3)) : size.plane(), of_planes);
  });
}

Tensor unfold(const Tensor& x, Size2 window, const UnfoldOptions& o) {
  if (x.rank() == 3) return squeeze(unfold(unsqueeze(x, 0), window, o), 0);
  const Scope scope("unfold");
  check_batch(x, 4);
  check_windows(window, o);
  Tensor y = pad(x, {o.padding.w, o.padding.w, o.padding.h, o.padding.h});
  for (const int d : {0, 1}) {  // [n, c, windows, .., size, ..], taken at steps of the dilation
    const int64_t reach = o.dilation[d] * (window[d] - 1) + 1;
    check(y.size(2 + d) >= reach, "a window over {} elements does not fit into {}", reach,
          y.size(2 + d));
    y = with_f32_gradient(unfold(y, 2 + d, reach, o.stride[d]));
    y = with_f32_gradient(slice(y, -1, 0, reach, o.dilation[d]));
  }
  const Tensor columns = with_f32_gradient(permute(y, {0, 1, 4, 5, 2, 3}));
  return flatten(flatten(columns, 1, 3), 2, 3);
}

Tensor fold(const Tensor& x, Size2 size, Size2 window, const UnfoldOptions& o) {
  if (x.rank() == 2) return squeeze(fold(unsqueeze(x, 0), size, window, o), 0);
  const Scope scope("fold");
  check_windows(window, o);
  check(countable({size.h, size.w}), "sizes must be >= 0 and below 2^31, got {} x {}", size.h,
        size.w);
  const int64_t taps = window.h * window.w;
  int64_t count[2], rest[2];
  for (const int d : {0, 1}) {
    const int64_t space = size[d] + 2 * o.padding[d] - o.dilation[d] * (window[d] - 1) - 1;
    check(space >= 0, "a window of {} x {} does not fit into images of {} x {}", window.h, window.w,
          size.h, size.w);
    count[d] = space / o.stride[d] + 1;
    rest[d] = space % o.stride[d];
  }
  check(x.rank() == 3 && x.size(1) % taps == 0 && x.size(2) == count[0] * count[1],
        "columns of shape {}, not [n, c {}, {}] or without n", x.shape(), taps,
        count[0] * count[1]);
  const int64_t channels = x.size(1) / taps;
  const NoPolicy in_its_own_dtype;  // since it is a sum, not a product
  return conv_transpose2d(reshape(x, {x.size(0), x.size(1), count[0], count[1]}),
                          takers(channels, window, x), {},
                          {.stride = o.stride,
                           .padding = o.padding,
                           .output_padding = {rest[0], rest[1]},
                           .dilation = o.dilation,
                           .groups = channels});
}

Tensor local_response_norm(const Tensor& x, int64_t size, double alpha, double beta, double k) {
  const Scope scope("local_response_norm");
  check_real(x);
  check(x.rank() >= 3, "the input has shape {}, not [n, c, ...]", x.shape());
  check(size > 0, "size must be > 0, got {}", size);
  if (x.numel() == 0) return x;
  const Shape lines{x.size(0), 1, x.size(1), -1};
  const auto responses = [&](const Tensor& a) {
    const Tensor padded = pad(reshape(square(a), lines), {0, 0, size / 2, (size - 1) / 2});
    const Tensor near = reshape(avg_pool2d(padded, {size, 1}, {.stride = 1}), x.shape());
    return a / pow(near * alpha + k, beta);
  };
  return in_wider(responses, x);
}

}  // namespace mixtape
