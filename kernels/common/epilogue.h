#pragma once
// Epilogue: what a matrix product, or a convolution, does to its sums while it has them at hand,
// before they are rounded and written, so that no pass over memory of its own is needed.

#include "core/view.h"

namespace mixtape::kernels {

enum class Activation : int { None, Relu, Gelu, GeluTanh };

// c = activation(a @ b + bias). All members are optional.
struct Epilogue {
  View bias = {};  // [n] or, beside a c of two dimensions, of its shape; may be c: c += a @ b
  Activation activation = Activation::None;
  View before = {};    // a @ b + bias; of c's dtype and shape, both dense
  View row_sums = {};  // [m] dense, for c of two dimensions: sums of a over k; f32, f64 of f64
};

}  // namespace mixtape::kernels
