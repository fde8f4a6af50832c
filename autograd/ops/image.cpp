// Images: pools (1-d ones over an image of one row), interpolation, sampling, pixel shuffling.

#include <algorithm>
#include <cmath>

#include "autograd/ops/attributes.h"
#include "autograd/ops/checks.h"
#include "autograd/ops/rows.h"
#include "core/int_math.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

using kernels::Sampling;

// Weighted sums over rectangles of an image, which are linear. The gradient is the transpose, the
// same op in the other direction, for images in the same order (an image of one pixel has both
// orders). Name is a struct with the names of both directions.
template <class Name, bool transposed = false>
struct Resample {  // x [n, c, h, w]
  static constexpr OpInfo info{transposed ? Name::gradient : Name::forward, Precision::Native};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Samplings& s, MemoryFormat order) {
    check_real(x);
    check_counted("planes", {s[0].from, s[1].from});
    check_counted("planes", {s[0].to, s[1].to});
    const auto length = [&](int d) { return transposed ? s[d].from : s[d].to; };
    Tensor y = image(ctx, {x.size(0), x.size(1), length(0), length(1)}, order);
    ctx.run(kernels::resample, x.contiguous(order), s[0], s[1], transposed, y);
    return y;
  }
  static Grads backward(const Ctx&, const Tensor& dy, const Samplings& s, MemoryFormat order) {
    return {call<Resample<Name, !transposed>>(dy, s, order)};
  }
};

// Positions of maxima, as an attribute: they get no gradient, and no policy casts them.
struct Positions {
  Tensor index;
  Samplings windows;  // one maximum in each
  MemoryFormat order;
};
struct TakeAt;

struct PutAt {  // [n, c, h', w'] -> [n, c, h, w], zero elsewhere
  static constexpr OpInfo info{"put_at"};
  static Tensor forward(Ctx& ctx, const Tensor& y, const Positions& at, const Shape& shape) {
    Tensor x = image(ctx, shape, at.order);
    ctx.run(kernels::put_at, y.contiguous(at.order), at.index, at.windows[0], at.windows[1], x);
    return x;
  }
  static Grads backward(const Ctx&, const Tensor& dx, const Positions& at, const Shape&) {
    return {call<TakeAt>(dx, at)};
  }
};

struct TakeAt {
  static constexpr OpInfo info{"take_at"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Positions& at) {
    Tensor y = ctx.output(at.index.shape());
    ctx.run(kernels::take_at, x.contiguous(), at.index.contiguous(), y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Positions& at) {
    return {call<PutAt>(dy, at, ctx.shape(0))};
  }
};

// The maxima and their positions, i32.
std::pair<Tensor, Tensor> maxima(Ctx& ctx, const Tensor& x, const Samplings& s,
                                 MemoryFormat order) {
  check_real(x);
  check_counted("planes", {s[0].from, s[1].from});
  Tensor y = image(ctx, {x.size(0), x.size(1), s[0].to, s[1].to}, order), index = y.like(i32);
  ctx.run(kernels::max_pool2d, x.contiguous(order), s[0], s[1], y, index);
  return {y, index};
}

struct MaxPoolIndices {
  static constexpr OpInfo info{"max_pool2d_indices"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Samplings& s, MemoryFormat order) {
    return cast(maxima(ctx, x, s, order).second, i64);
  }
};

template <bool adaptive>
struct MaxPool {
  static constexpr OpInfo info{adaptive ? "adaptive_max_pool2d" : "max_pool2d"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Samplings& s, MemoryFormat order) {
    const auto [y, index] = maxima(ctx, x, s, order);
    ctx.save_extra(index);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Samplings& s, MemoryFormat order) {
    return {call<PutAt>(dy, Positions{ctx.saved(0), s, order}, ctx.shape(0))};
  }
};

struct AvgPoolName {
  static constexpr std::string_view forward = "avg_pool2d", gradient = "avg_pool2d_gradient";
};
struct AdaptiveAvgPoolName {
  static constexpr std::string_view forward = "adaptive_avg_pool2d",
                                    gradient = "adaptive_avg_pool2d_gradient";
};
using MaxPool2d = MaxPool<false>;
using AdaptiveMaxPool2d = MaxPool<true>;
using AvgPool2d = Resample<AvgPoolName>;
using AdaptiveAvgPool2d = Resample<AdaptiveAvgPoolName>;

// Along direction d: 0 rows, 1 columns.
int64_t stride_of(const PoolOptions& o, int64_t elements, int d) {
  return o.stride[d] ? o.stride[d] : elements;
}
// A dilated window has the elements in between as well.
int64_t reach_of(const PoolOptions& o, int64_t elements, int d) {
  return o.dilation[d] * (elements - 1) + 1;
}
Sampling windows(int64_t length, int64_t elements, const PoolOptions& o, int d) {
  const int64_t padding = o.padding[d], stride = stride_of(o, elements, d);
  check(elements > 0 && stride > 0 && countable({elements, stride}),
        "window and stride must be > 0 and together below 2^63, got {} and {}", elements, stride);
  check(o.dilation[d] > 0 && countable({o.dilation[d]}),
        "dilation must be > 0 and below 2^31, got {}", o.dilation[d]);
  const int64_t size = reach_of(o, elements, d), divisor = o.divisor_override.value_or(1);
  check(divisor > 0, "divisor_override must be > 0, got {}", divisor);
  Sampling s{.from = length,
             .size = size,
             .stride = stride,
             .padding = padding,
             .count_padding = o.count_include_pad,
             .fixed_divisor = !o.divisor_override ? 0
                              : d == 0            ? 1
                                                  : divisor};
  check(padding >= 0 && padding <= size / 2,
        "padding must be from 0 to half of the window, got {} of {}", padding, size);
  const int64_t over = o.ceil_mode ? s.stride - 1 : 0;  // overhang of a window at the end
  const bool counts = length > 0 && countable({length});
  const int64_t room = counts ? length + 2 * padding + over - size : -1;
  check(room >= 0, "a window of {} does not fit into {} + 2 * {}", size, length, padding);
  s.to = room / s.stride + 1;
  if ((s.to - 1) * s.stride >= length + padding) --s.to;  // a window of padding alone
  return s;
}

Sampling adaptive(int64_t length, int64_t size) {
  check(size > 0 && length > 0, "windows and elements must be > 0, got {} over {}", size, length);
  return {.kind = Sampling::Kind::Adaptive, .from = length, .to = size};
}

// The elements of dilated windows side by side, so that windows which adjoin have the same maxima.
// In place of an element outside of the image stands another one of the window.
struct DilatedWindows {
  Tensor images;                // [..., h' kh, w' kw]
  std::array<Tensor, 2> place;  // the row and the column of each in the image

  DilatedWindows(const Tensor& x, Size2 size, const PoolOptions& o) : images(x) {
    check(x.rank() == 3 || x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
    for (const int d : {0, 1}) {
      const int64_t n = x.size(d - 2), by = o.dilation[d];
      const Sampling s = windows(n, size[d], o, d);
      std::vector<int64_t> from;
      for (int64_t i = 0; i < s.to; ++i) {
        const int64_t start = i * s.stride - s.padding,
                      first = start < 0 ? ceil_div(-start, by) : 0,
                      last = std::min(size[d] - 1, (n - 1 - start) / by);
        check(first <= last, "a window of {} elements, {} apart, has none of {}", size[d], by, n);
        for (int64_t k = 0; k < size[d]; ++k)
          from.push_back(start + std::clamp(k, first, last) * by);
      }
      place[size_t(d)] = from_data(from).to(x.device());
      images = with_f32_gradient(
          index_select_unchecked(images, images.rank() + d - 2, place[size_t(d)]));
    }
  }
};
bool is_dilated(const PoolOptions& o) { return o.dilation.h != 1 || o.dilation.w != 1; }

// The op over along(length, d) of rows and columns; an image may come without n.
template <class Op, class Windows>
Tensor pool(const Tensor& x, const Windows& along) {
  if (x.rank() == 3) return squeeze(pool<Op>(unsqueeze(x, 0), along), 0);
  const Scope scope(Op::info.name);
  check_batch(x, 4);
  return call<Op>(x, Samplings{along(x.size(2), 0), along(x.size(3), 1)}, order_of(x));
}

// A line as an image of one row, and the options of its windows.
Tensor image_of_line(const Tensor& x) {
  check(x.rank() == 3 || x.rank() == 2, "the input has shape {}, not [n, c, l] or [c, l]",
        x.shape());
  return unsqueeze(x, -2);
}
PoolOptions in_one_row(const Pool1dOptions& o) {
  return {.stride = {1, o.stride},
          .padding = {0, o.padding},
          .dilation = {1, o.dilation},
          .ceil_mode = o.ceil_mode,
          .count_include_pad = o.count_include_pad,
          .divisor_override = o.divisor_override};
}

struct InterpolateName {
  static constexpr std::string_view forward = "interpolate", gradient = "interpolate_gradient";
};
using Interpolate = Resample<InterpolateName>;

// A filter for making lines smaller by `scale`: each pixel of the result is a weighted mean of all
// elements below the filter, which is `scale` elements wide in each direction, as in PyTorch and
// Pillow. It is a triangle or, if cubic, Keys' cubic convolution with slope -1/2 at 1.
struct Antialias {
  int64_t taps;               // elements per element of the result, some of weight 0
  std::vector<int64_t> from;  // [to, taps]
  std::vector<double> weight;

  explicit Antialias(const Sampling& s) {
    const bool cubic = s.kind == Sampling::Kind::Cubic;
    const int64_t n = s.from, to = s.to;
    const double scale = s.align_corners ? (to > 1 ? double(n - 1) / double(to - 1) : 0)
                         : s.step > 0    ? s.step
                                         : double(n) / double(to),
                 width = std::max(scale, 1.0), reach = (cubic ? 2 : 1) * width;
    taps = std::min<int64_t>(n, 2 * int64_t(std::ceil(reach)) + 1);
    for (int64_t i = 0; i < to; ++i) {
      const double centre = scale * (double(i) + 0.5);
      const int64_t begin = std::max<int64_t>(0, int64_t(centre - reach + 0.5)),
                    end = std::min(n, int64_t(centre + reach + 0.5));
      const size_t first = weight.size();
      double total = 0;
      for (int64_t k = 0; k < taps; ++k) {
        const double far = std::abs(double(begin + k) - centre + 0.5) / width;
        const double w = begin + k >= end ? 0 : cubic ? keys(far) : std::max(0.0, 1 - far);
        from.push_back(std::min(begin + k, n - 1));
        weight.push_back(w);
        total += w;
      }
      for (size_t k = first; k < weight.size(); ++k) weight[k] /= total;
    }
  }
  static double keys(double d) {
    if (d >= 2) return 0;
    return d < 1 ? (1.5 * d - 2.5) * d * d + 1 : ((-0.5 * d + 2.5) * d - 4) * d + 2;
  }

  // Along dimension `dim` of images.
  Tensor operator()(const Tensor& x, int dim) const {
    const auto n = int64_t(from.size()) / taps;
    const Tensor each =
        index_select_unchecked(x, dim, from_data(from).to(x.device()));  // to * taps
    const Tensor w = reshape(from_data(weight).to(x.device()).to(x.dtype()),
                             spliced({1, 1, 1, 1}, dim, 1, {n, taps}));
    return sum(unflatten(each, dim, {n, taps}) * w, {dim + 1});
  }
};

void check_images(const Tensor& x) {
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
}

// Maps coordinates from -1 to 1 to positions among n pixels; the first pixel's centre is at 0.
Tensor pixels(const Tensor& at, int64_t n, const GridSampleOptions& o) {
  const double low = o.align_corners ? 0 : -0.5, span = double(n) - (o.align_corners ? 1 : 0);
  Tensor p = (at + 1) * (span / 2) + low;
  if (o.padding == PadMode::Reflect && span > 0)
    p = low + span - abs(remainder(p - low, 2 * span) - span);
  if (o.padding == PadMode::Constant) return p;
  const double last = double(n - 1);  // from where points have no slope, as in PyTorch
  return where(logical_and(gt(p, 0), lt(p, last)), p, clamp(p.detach(), 0, last));
}

// Positions along an axis: the pixel before each and its distance, or the nearest pixel. Those of
// points outside are at most `margin` pixels away from the image, and so is the next pixel.
struct Before {
  Tensor pixel, distance;

  Before(const Tensor& p, int64_t size, Interpolation mode) {
    const bool nearest = mode == Interpolation::Nearest;
    const Tensor first = nearest ? nan_to_num(round(p), -margin) : floor(p);
    pixel = cast(clamp(first, -margin, double(size)), i64);
    if (!nearest) distance = p - first;
  }
  Tensor weight(int next) const { return next ? distance : 1 - distance; }

  static constexpr double margin = 2;
};

// interpolate() of images, with the factors in place of the sizes' ratios; 0: none.
Tensor interpolated(const Tensor& x, Size2 size, const InterpolateOptions& o,
                    const std::array<double, 2>& factors) {
  check_images(x);
  check(o.mode != Interpolation::Trilinear, "mode is Trilinear, which interpolate3d takes");
  const bool smooth = o.mode == Interpolation::Bilinear || o.mode == Interpolation::Bicubic;
  check(smooth || !o.align_corners, "align_corners is for Bilinear and Bicubic");
  check(smooth || !o.antialias, "antialiasing is for Bilinear and Bicubic");
  if (o.mode == Interpolation::Area) return adaptive_avg_pool2d(x, size);
  using Kind = Sampling::Kind;
  const auto along = [&](int d) {
    const int64_t n = x.size(2 + d);
    check(size[d] > 0 && n > 0, "sizes must be > 0, got {} elements to resize to {}", n, size[d]);
    const bool whole = double(n) * factors[d] == double(size[d]);
    return Sampling{.kind = o.mode == Interpolation::Nearest    ? Kind::Nearest
                            : o.mode == Interpolation::Bilinear ? Kind::Linear
                                                                : Kind::Cubic,
                    .from = n,
                    .to = size[d],
                    .align_corners = o.align_corners,
                    .step = factors[d] > 0 && !whole ? 1 / factors[d] : 0};
  };
  const Samplings lines{along(0), along(1)};
  if (!o.antialias) return call<Interpolate>(x, lines, order_of(x));
  check_real(x);
  check_counted("planes", {size.h, size.w});
  Tensor y = wide(x);
  for (const int d : {1, 0}) y = Antialias(lines[d])(y, 2 + d);
  return cast(y, x.dtype());
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 size, const PoolOptions& o) {
  const Scope scope(MaxPool2d::info.name);
  check(!o.divisor_override, "divisor_override is for means");
  if (is_dilated(o)) return max_pool2d(DilatedWindows(x, size, o).images, size);
  return pool<MaxPool2d>(x, [&](int64_t n, int d) { return windows(n, size[d], o, d); });
}
Sorted max_pool2d_with_indices(const Tensor& x, Size2 size, const PoolOptions& o) {
  const Scope scope("max_pool2d_with_indices");
  check(!o.divisor_override, "divisor_override is for means");
  if (is_dilated(o)) {
    const DilatedWindows spread(x, size, o);
    const auto [y, at] = max_pool2d_with_indices(spread.images, size);
    const double columns = double(spread.images.size(-1));
    return {y, take(spread.place[0], floor_divide(at, columns)) * double(x.size(-1)) +
                   take(spread.place[1], remainder(at, columns))};
  }
  const Tensor at =
      pool<MaxPoolIndices>(x, [&](int64_t n, int d) { return windows(n, size[d], o, d); });
  return {unflatten(gather(flatten(x, -2), -1, flatten(at, -2)), -1, {at.size(-2), at.size(-1)}),
          at};
}
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Size2 window, const PoolOptions& o,
                    std::optional<Size2> size) {
  const Scope scope("max_unpool2d");
  check(x.rank() == 3 || x.rank() == 4, "the input has shape {}, not [n, c, h, w]", x.shape());
  check_shape(indices, "the tensor of indices", x.shape());
  const auto length = [&](int d) {
    const int64_t count = x.size(d - 2),
                  least = (count - 1) * stride_of(o, window[d], d) - 2 * o.padding[d] +
                          reach_of(o, window[d], d),
                  n = size ? (*size)[d] : least, has = windows(n, window[d], o, d).to;
    check(has == count, "images of {} elements have {} windows, the input has {} maxima", n, has,
          count);
    return n;
  };
  const int64_t h = length(0), w = length(1);
  check_counted("planes", {h, w});
  const Tensor maxima = flatten(x, -2);
  const Tensor planes = zeros(with_size(maxima.shape(), -1, h * w), x.dtype(), x.device());
  return unflatten(scatter(planes, -1, flatten(indices, -2), maxima), -1, {h, w});
}
Tensor avg_pool2d(const Tensor& x, Size2 size, const PoolOptions& o) {
  const Scope scope(AvgPool2d::info.name);
  check(!is_dilated(o), "dilation is for maxima");
  return pool<AvgPool2d>(x, [&](int64_t n, int d) { return windows(n, size[d], o, d); });
}
Tensor adaptive_max_pool2d(const Tensor& x, Size2 size) {
  return pool<AdaptiveMaxPool2d>(x, [&](int64_t n, int d) { return adaptive(n, size[d]); });
}
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 size) {
  return pool<AdaptiveAvgPool2d>(x, [&](int64_t n, int d) { return adaptive(n, size[d]); });
}
Tensor max_pool1d(const Tensor& x, int64_t size, const Pool1dOptions& o) {
  const Scope scope("max_pool1d");
  return squeeze(max_pool2d(image_of_line(x), {1, size}, in_one_row(o)), -2);
}
Tensor avg_pool1d(const Tensor& x, int64_t size, const Pool1dOptions& o) {
  const Scope scope("avg_pool1d");
  return squeeze(avg_pool2d(image_of_line(x), {1, size}, in_one_row(o)), -2);
}
Tensor adaptive_max_pool1d(const Tensor& x, int64_t size) {
  const Scope scope("adaptive_max_pool1d");
  return squeeze(adaptive_max_pool2d(image_of_line(x), {1, size}), -2);
}
Tensor adaptive_avg_pool1d(const Tensor& x, int64_t size) {
  const Scope scope("adaptive_avg_pool1d");
  return squeeze(adaptive_avg_pool2d(image_of_line(x), {1, size}), -2);
}

Tensor interpolate(const Tensor& x, Size2 size, const InterpolateOptions& o) {
  const Scope scope(Interpolate::info.name);
  check(!o.scale_factor, "both a size and a scale_factor are given");
  if (x.rank() == 3 && size.h == size.w)
    return squeeze(interpolated(image_of_line(x), {1, size.w}, o, {}), 2);
  return interpolated(x, size, o, {});
}

Tensor interpolate(const Tensor& x, const InterpolateOptions& o) {
  const Scope scope(Interpolate::info.name);
  check(o.scale_factor.has_value(), "neither a size nor a scale_factor is given");
  const double factor = *o.scale_factor;
  const auto size_of = [&](int d) {
    const double size = std::floor(double(x.size(d)) * factor);
    check(size >= 1 && size < 0x1p31, "scale_factor times {} must be >= 1 and below 2^31, got {}",
          x.size(d), double(x.size(d)) * factor);
    return int64_t(size);
  };
  if (x.rank() == 3)
    return squeeze(interpolated(image_of_line(x), {1, size_of(-1)}, o, {0, factor}), 2);
  return interpolated(x, {size_of(-2), size_of(-1)}, o, {factor, factor});
}

// Channel (c, i, j) holds the pixels at row i and column j of every square of f x f.
Tensor pixel_shuffle(const Tensor& x, int64_t f) {
  if (x.rank() == 3) return squeeze(pixel_shuffle(unsqueeze(x, 0), f), 0);
  const Scope scope("pixel_shuffle");
  check_images(x);
  check(f > 0 && f <= x.size(1) / f && x.size(1) % (f * f) == 0,
        "{} channels do not divide into squares of {} x {}", x.size(1), f, f);
  const int64_t n = x.size(0), c = x.size(1) / (f * f), h = x.size(2), w = x.size(3);
  return reshape(permute(reshape(x, {n, c, f, f, h, w}), {0, 1, 4, 2, 5, 3}), {n, c, h * f, w * f});
}

Tensor pixel_unshuffle(const Tensor& x, int64_t f) {
  if (x.rank() == 3) return squeeze(pixel_unshuffle(unsqueeze(x, 0), f), 0);
  const Scope scope("pixel_unshuffle");
  check_images(x);
  check(f > 0 && x.size(2) % f == 0 && x.size(3) % f == 0,
        "{} x {} pixels do not divide into squares of {} x {}", x.size(2), x.size(3), f, f);
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2) / f, w = x.size(3) / f;
  const Tensor apart = permute(reshape(x, {n, c, h, f, w, f}), {0, 1, 3, 5, 2, 4});
  return reshape(apart, {n, c * f * f, h, w});  // (whose product reshape() has checked)
}

Tensor channel_shuffle(const Tensor& x, int64_t groups) {
  const Scope scope("channel_shuffle");
  check(x.rank() >= 3, "the input has shape {}, not [n, c, ...]", x.shape());
  check(groups > 0 && x.size(1) % groups == 0, "{} channels do not divide into {} groups",
        x.size(1), groups);
  const Tensor apart = unflatten(x, 1, {groups, x.size(1) / groups});
  return flatten(transpose(apart, 1, 2), 1, 2);
}

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& o) {
  const Scope scope("grid_sample");
  check_images(x);
  check(grid.rank() == 4 && grid.size(0) == x.size(0) && grid.size(3) == 2,
        "the grid for an input of shape {1} must be [n, h', w', 2], got {0}", grid.shape(),
        x.shape());
  check_real(x);
  check_real(grid);
  check((x.dtype() == f64) == (grid.dtype() == f64),
        "input and grid must both be f64 or neither, got {} and {}", x.dtype(), grid.dtype());
  check(o.mode != Interpolation::Bicubic, "mode is Bicubic, not Nearest or Bilinear");
  check(o.padding != PadMode::Circular, "padding is Circular, not Constant, Replicate or Reflect");
  const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
  check(h > 0 && w > 0, "an input of shape {} has no pixels", x.shape());
  const int64_t points = grid.size(1) * grid.size(2);
  const auto along = [&](int axis, int64_t size) {
    return pixels(reshape(select(wide(grid), 3, axis), {n, 1, points}), size, o);
  };
  const Before column(along(0, w), w, o.mode), row(along(1, h), h, o.mode);
  // Points outside read zeros around the image.
  constexpr int64_t m = Before::margin;
  const int64_t width = w + 2 * m;
  const Tensor image = flatten(pad(wide(x), {m, m, m, m}), 2, 3),
               first = row.pixel * double(width) + column.pixel;
  const auto value = [&](int down, int right) {
    const Tensor index = first + double((m + down) * width + m + right);
    return gather_unchecked(image, 2, expand(index, {n, c, points}));
  };
  const auto weighted = [&](int down, int right) {
    return value(down, right) * (row.weight(down) * column.weight(right));
  };
  const Tensor y = o.mode == Interpolation::Nearest
                       ? value(0, 0)
                       : weighted(0, 0) + weighted(0, 1) + weighted(1, 0) + weighted(1, 1);
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
