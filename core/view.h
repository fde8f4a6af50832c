#pragma once
// View: a kernel's argument for a tensor. Plain data, passed by value into a CUDA launch.

#include "core/device.h"
#include "core/dtype.h"
#include "core/layout.h"

namespace mixtape::internal {

struct View {            // does not keep the memory alive
  void* data = nullptr;  // the first element, so layout.offset is 0
  DType dtype = f32;
  Layout layout;

  explicit operator bool() const { return data != nullptr; }  // false for an absent optional input
  const Shape& shape() const { return layout.shape; }         // its sizes
  const Shape& strides() const { return layout.strides; }     // in elements
  int64_t size() const { return layout.shape.size(); }        // the number of elements
  // The first element. T must be the type of dtype, which is not checked.
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace mixtape::internal
