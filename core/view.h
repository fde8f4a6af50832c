#pragma once
// View: a kernel's argument for a tensor. Plain data, passed by value into a CUDA launch.

#include "core/device.h"
#include "core/dtype.h"
#include "core/layout.h"

namespace mixtape::internal {

struct View {
  void* data = nullptr;  // the first element; layout.offset is 0
  DType dtype = f32;
  Layout layout;

  explicit operator bool() const { return data != nullptr; }  // an optional input that is present
  const Shape& shape() const { return layout.shape; }
  const Shape& strides() const { return layout.strides; }
  int64_t size() const { return layout.shape.size(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace mixtape::internal
