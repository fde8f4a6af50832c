#pragma once
// Pooling over sequences [n, c, l] and images [n, c, h, w].

#include "autograd/ops.h"
#include "nn/op_module.h"

namespace mixtape::nn {

Size2 checked_window(std::string_view module, Size2 w);  // both > 0
int64_t checked_window(std::string_view module, int64_t w);

// [n, c, h, w] -> [n, c, h', w']
struct MaxPool2d : OpModule<MaxPool2d, max_pool2d, Size2, PoolOptions> {
  explicit MaxPool2d(Size2 window, const PoolOptions& o = {})
      : OpModule(checked_window("MaxPool2d", window), o) {}
};
// [n, c, h, w] -> [n, c, h', w']
struct AvgPool2d : OpModule<AvgPool2d, avg_pool2d, Size2, PoolOptions> {
  explicit AvgPool2d(Size2 window, const PoolOptions& o = {})
      : OpModule(checked_window("AvgPool2d", window), o) {}
};
// [n, c, l] -> [n, c, l']
struct MaxPool1d : OpModule<MaxPool1d, max_pool1d, int64_t, Pool1dOptions> {
  explicit MaxPool1d(int64_t window, const Pool1dOptions& o = {})
      : OpModule(checked_window("MaxPool1d", window), o) {}
};
// [n, c, l] -> [n, c, l']
struct AvgPool1d : OpModule<AvgPool1d, avg_pool1d, int64_t, Pool1dOptions> {
  explicit AvgPool1d(int64_t window, const Pool1dOptions& o = {})
      : OpModule(checked_window("AvgPool1d", window), o) {}
};
// [n, c, h, w] -> [n, c, size]
struct AdaptiveAvgPool2d : OpModule<AdaptiveAvgPool2d, adaptive_avg_pool2d, Size2> {
  explicit AdaptiveAvgPool2d(Size2 size) : OpModule(size) {}
};
// [n, c, h, w] -> [n, c, size]
struct AdaptiveMaxPool2d : OpModule<AdaptiveMaxPool2d, adaptive_max_pool2d, Size2> {
  explicit AdaptiveMaxPool2d(Size2 size) : OpModule(size) {}
};
// [n, c, l] -> [n, c, size]
struct AdaptiveAvgPool1d : OpModule<AdaptiveAvgPool1d, adaptive_avg_pool1d, int64_t> {
  explicit AdaptiveAvgPool1d(int64_t size) : OpModule(size) {}
};
// [n, c, l] -> [n, c, size]
struct AdaptiveMaxPool1d : OpModule<AdaptiveMaxPool1d, adaptive_max_pool1d, int64_t> {
  explicit AdaptiveMaxPool1d(int64_t size) : OpModule(size) {}
};

}  // namespace mixtape::nn
