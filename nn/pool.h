#pragma once
// Pooling over sequences [n, c, l] and images [n, c, h, w].

#include <array>
#include <tuple>
#include <typeinfo>

#include "autograd/ops.h"
#include "nn/op_module.h"

namespace mixtape::nn {

int64_t checked_window(const std::type_info& module, int64_t w);  // > 0
Size2 checked_window(const std::type_info& module, Size2 w);      // both > 0
Size3 checked_window(const std::type_info& module, Size3 w);      // all > 0

// Stride and padding may be given by name, as in MaxPool2d(3, {.stride = 2}), or as numbers.
template <class Derived, class Size, class Options,
          Tensor (*op)(const Tensor& x, Size window, const Options& options)>
struct WindowPool : OpModule<Derived, op, Size, Options> {
  explicit WindowPool(Size window, const Options& o = {})
      : WindowPool::OpModule(checked_window(typeid(Derived), window), o) {}
  WindowPool(Size window, Size stride, Size padding = 0)
      : WindowPool(window, Options{.stride = stride, .padding = padding}) {}
  // A window in braces, {2, 3}, is no other pool of window 2 and stride 3.
  template <size_t n>
    requires(n == sizeof(Size) / sizeof(int64_t) && n > 1)
  explicit WindowPool(const int64_t (&window)[n], const Options& o = {})
      : WindowPool(std::make_from_tuple<Size>(std::to_array(window)), o) {}
};
// [n, c, h, w] -> [n, c, h', w']
struct MaxPool2d : WindowPool<MaxPool2d, Size2, PoolOptions, max_pool2d> {
  using WindowPool::WindowPool;
};
// [n, c, h, w] -> [n, c, h', w']
struct AvgPool2d : WindowPool<AvgPool2d, Size2, PoolOptions, avg_pool2d> {
  using WindowPool::WindowPool;
};
// [n, c, l] -> [n, c, l']
struct MaxPool1d : WindowPool<MaxPool1d, int64_t, Pool1dOptions, max_pool1d> {
  using WindowPool::WindowPool;
};
// [n, c, l] -> [n, c, l']
struct AvgPool1d : WindowPool<AvgPool1d, int64_t, Pool1dOptions, avg_pool1d> {
  using WindowPool::WindowPool;
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
