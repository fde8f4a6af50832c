#pragma once
// Pooling over sequences [n, c, l] and images [n, c, h, w].

#include "autograd/ops.h"
#include "core/check.h"
#include "nn/op_module.h"

namespace mixtape::nn {

// [n, c, h, w] -> [n, c, h', w']
struct MaxPool2d : Module<MaxPool2d> {
  explicit MaxPool2d(Size2 window, const PoolOptions& o = {}) : window_(window), options_(o) {
    const Scope scope("MaxPool2d");
    check(window.h > 0 && window.w > 0, "a window of {} x {}", window.h, window.w);
  }
  Tensor forward(const Tensor& x) const { return max_pool2d(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  Size2 window_;
  PoolOptions options_;
};
// [n, c, h, w] -> [n, c, h', w']
struct AvgPool2d : Module<AvgPool2d> {
  explicit AvgPool2d(Size2 window, const PoolOptions& o = {}) : window_(window), options_(o) {
    const Scope scope("AvgPool2d");
    check(window.h > 0 && window.w > 0, "a window of {} x {}", window.h, window.w);
  }
  Tensor forward(const Tensor& x) const { return avg_pool2d(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  Size2 window_;
  PoolOptions options_;
};
// [n, c, l] -> [n, c, l']
struct MaxPool1d : Module<MaxPool1d> {
  explicit MaxPool1d(int64_t window, const Pool1dOptions& o = {}) : window_(window), options_(o) {
    const Scope scope("MaxPool1d");
    check(window > 0, "a window of {}", window);
  }
  Tensor forward(const Tensor& x) const { return max_pool1d(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  int64_t window_;
  Pool1dOptions options_;
};
// [n, c, l] -> [n, c, l']
struct AvgPool1d : Module<AvgPool1d> {
  explicit AvgPool1d(int64_t window, const Pool1dOptions& o = {}) : window_(window), options_(o) {
    const Scope scope("AvgPool1d");
    check(window > 0, "a window of {}", window);
  }
  Tensor forward(const Tensor& x) const { return avg_pool1d(x, window_, options_); }
  MIXTAPE_FIELDS()

 private:
  int64_t window_;
  Pool1dOptions options_;
};
// [n, c, h, w] -> [n, c, size]
struct AdaptiveAvgPool2d : OpModule<AdaptiveAvgPool2d, adaptive_avg_pool2d> {
  explicit AdaptiveAvgPool2d(Size2 size) : OpModule(size) {}
};
// [n, c, h, w] -> [n, c, size]
struct AdaptiveMaxPool2d : OpModule<AdaptiveMaxPool2d, adaptive_max_pool2d> {
  explicit AdaptiveMaxPool2d(Size2 size) : OpModule(size) {}
};
// [n, c, l] -> [n, c, size]
struct AdaptiveAvgPool1d : OpModule<AdaptiveAvgPool1d, adaptive_avg_pool1d> {
  explicit AdaptiveAvgPool1d(int64_t size) : OpModule(size) {}
};
// [n, c, l] -> [n, c, size]
struct AdaptiveMaxPool1d : OpModule<AdaptiveMaxPool1d, adaptive_max_pool1d> {
  explicit AdaptiveMaxPool1d(int64_t size) : OpModule(size) {}
};

}  // namespace mixtape::nn
