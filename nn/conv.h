#pragma once
// Convolution and pooling over images [n, c, h, w].

#include <cmath>

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/init.h"
#include "nn/module.h"

namespace mixtape::nn {

// Rows and columns: {3, 5}, or 3 for both.
struct Size2 {
  int64_t h, w;
  Size2(int64_t both) : h(both), w(both) {}
  Size2(int64_t h, int64_t w) : h(h), w(w) {}
  operator std::array<int64_t, 2>() const { return {h, w}; }
};

struct ConvOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// [n, in, h, w] -> [n, out, h', w']. Weight and bias start uniform within 1 / sqrt(in / groups *
// kernel).
struct Conv2d : Module<Conv2d> {
  Tensor weight;  // [out, in / groups, kh, kw]
  Tensor bias;    // [out], or none

  Conv2d(int64_t in, int64_t out, Size2 kernel, const ConvOptions& o = {})
      : options_{o.stride, o.padding, o.dilation, o.groups} {
    const Scope scope("Conv2d");
    check(in > 0 && out > 0, "channels must be positive: in {}, out {}", in, out);
    check(kernel.h > 0 && kernel.w > 0, "a kernel of {} x {}", kernel.h, kernel.w);
    check(o.stride.h > 0 && o.stride.w > 0, "a stride of {} x {}", o.stride.h, o.stride.w);
    check(o.dilation.h > 0 && o.dilation.w > 0, "a dilation of {} x {}", o.dilation.h,
          o.dilation.w);
    check(o.padding.h >= 0 && o.padding.w >= 0, "a padding of {} x {}", o.padding.h, o.padding.w);
    check(o.groups > 0 && in % o.groups == 0 && out % o.groups == 0,
          "{} and {} channels do not divide into {} groups", in, out, o.groups);
    weight = parameter(empty({out, in / o.groups, kernel.h, kernel.w}));
    init::kaiming_uniform_(weight, {.a = std::sqrt(5.0)});
    if (!o.bias) return;
    const double bound = 1 / std::sqrt(static_cast<double>(init::fan(weight).in));
    bias = parameter(empty({out}));
    init::uniform_(bias, -bound, bound);
  }
  Tensor forward(const Tensor& x) const { return conv2d(x, weight, bias, options_); }
  MIXTAPE_FIELDS(weight, bias)

 private:
  Conv2dOptions options_;
};

struct MaxPoolOptions {
  Size2 stride = 0;  // 0: the window's size
  Size2 padding = 0;
};

struct MaxPool2d : Module<MaxPool2d> {
  explicit MaxPool2d(Size2 window, const MaxPoolOptions& o = {})
      : window_(window), options_{o.stride, o.padding} {
    const Scope scope("MaxPool2d");
    check(window.h > 0 && window.w > 0, "a window of {} x {}", window.h, window.w);
  }
  Tensor forward(const Tensor& x) const { return max_pool2d(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  Size2 window_;
  PoolOptions options_;
};

}  // namespace mixtape::nn
