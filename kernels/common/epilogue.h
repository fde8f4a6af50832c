#pragma once
// Epilogue: what a matrix product or convolution applies to its sums in registers, before they are
// rounded and stored, which saves a pass over memory.

#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

enum class Activation : int { None, Relu, Gelu, GeluTanh };

// c = activation(a @ b + bias + residual). All members are optional.
struct Epilogue {
  View bias = {};      // [n] or, beside a c of two dimensions, of its shape; may be c: c += a @ b
  View residual = {};  // of c's shape and strides, whose rows are dense; any float dtype
  Activation activation = Activation::None;
  View before = {};    // output: what is activated; of c's dtype and layout, both dense
  View row_sums = {};  // output [m], dense, for c of two dimensions: sums of a over k; f32 or f64
};

}  // namespace mixtape::kernels
