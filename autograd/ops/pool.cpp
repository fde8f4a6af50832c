// Pools: the maximum or the mean of each window of an image. 1-d pools run over an image of one
// row.

#include "autograd/ops/resample.h"

namespace mixtape {
using namespace ops;
namespace {

using kernels::Sampling;

// Positions of maxima, as an attribute: they get no gradient, and no policy casts them.
struct Positions {
  Tensor index;
  Samplings windows;  // one maximum in each
};
struct TakeAt;

struct PutAt {  // [n, c, h', w'] -> [n, c, h, w], zero elsewhere
  static constexpr OpInfo info{"put_at"};
  static Tensor forward(Ctx& ctx, const Tensor& y, const Positions& at, const Shape& shape) {
    Tensor x = ctx.output(shape);
    const Tensor yc = y.contiguous();
    ctx.run(kernels::put_at, yc, at.index, at.windows[0], at.windows[1], x);
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
    const Tensor xc = x.contiguous();
    ctx.run(kernels::take_at, xc, at.index, y);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Positions& at) {
    return {call<PutAt>(dy, at, ctx.shape(0))};
  }
};

template <bool adaptive>
struct MaxPool {
  static constexpr OpInfo info{adaptive ? "adaptive_max_pool2d" : "max_pool2d"};
  static Tensor forward(Ctx& ctx, const Tensor& x, const Samplings& s) {
    check_real(x);
    check_counted("planes", {s[0].from, s[1].from});
    Tensor y = ctx.output({x.size(0), x.size(1), s[0].to, s[1].to});
    Tensor index = ctx.output(y.shape(), i32);
    const Tensor xc = x.contiguous();
    ctx.run(kernels::max_pool2d, xc, s[0], s[1], y, index);
    ctx.save_extra(index);
    return y;
  }
  static Grads backward(const Ctx& ctx, const Tensor& dy, const Samplings& s) {
    return {call<PutAt>(dy, Positions{ctx.saved(0), s}, ctx.shape(0))};
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
Sampling windows(int64_t length, int64_t size, const PoolOptions& o, int d) {
  const int64_t padding = o.padding[d];
  Sampling s{.from = length,
             .size = size,
             .stride = o.stride[d] ? o.stride[d] : size,
             .padding = padding,
             .count_padding = o.count_include_pad};
  check(size > 0 && s.stride > 0 && countable({size, s.stride}), "a window of {} with stride {}",
        size, s.stride);
  check(padding >= 0 && padding <= size / 2, "padding {} of a window of {} (at most half)", padding,
        size);
  const int64_t over = o.ceil_mode ? s.stride - 1 : 0;  // overhang of a window at the end
  const int64_t room = length + 2 * padding + over - size;
  check(length > 0 && countable({length}) && room >= 0,
        "a window of {} does not fit into {} + 2 * {}", size, length, padding);
  s.to = room / s.stride + 1;
  if ((s.to - 1) * s.stride >= length + padding) --s.to;  // a window of padding alone
  return s;
}

Samplings windows(const Tensor& x, Size2 size, const PoolOptions& o) {
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w] or [c, h, w]", x.shape());
  return {windows(x.size(2), size[0], o, 0), windows(x.size(3), size[1], o, 1)};
}

Sampling adaptive(int64_t length, int64_t size) {
  check(size > 0 && length > 0, "{} windows over {} elements", size, length);
  return {.kind = Sampling::Kind::Adaptive, .from = length, .to = size};
}

Samplings adaptive(const Tensor& x, Size2 size) {
  check(x.rank() == 4, "the input has shape {}, not [n, c, h, w] or [c, h, w]", x.shape());
  return {adaptive(x.size(2), size[0]), adaptive(x.size(3), size[1])};
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
          .ceil_mode = o.ceil_mode,
          .count_include_pad = o.count_include_pad};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2 size, const PoolOptions& o) {
  if (x.rank() == 3) return squeeze(max_pool2d(unsqueeze(x, 0), size, o), 0);
  const Scope scope(MaxPool2d::info.name);
  return call<MaxPool2d>(x, windows(x, size, o));
}
Tensor avg_pool2d(const Tensor& x, Size2 size, const PoolOptions& o) {
  if (x.rank() == 3) return squeeze(avg_pool2d(unsqueeze(x, 0), size, o), 0);
  const Scope scope(AvgPool2d::info.name);
  return call<AvgPool2d>(x, windows(x, size, o));
}
Tensor adaptive_max_pool2d(const Tensor& x, Size2 size) {
  if (x.rank() == 3) return squeeze(adaptive_max_pool2d(unsqueeze(x, 0), size), 0);
  const Scope scope(AdaptiveMaxPool2d::info.name);
  return call<AdaptiveMaxPool2d>(x, adaptive(x, size));
}
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 size) {
  if (x.rank() == 3) return squeeze(adaptive_avg_pool2d(unsqueeze(x, 0), size), 0);
  const Scope scope(AdaptiveAvgPool2d::info.name);
  return call<AdaptiveAvgPool2d>(x, adaptive(x, size));
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

}  // namespace mixtape
