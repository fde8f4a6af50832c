#pragma once
// Epilogue: what a matrix product or convolution applies to its sums in registers, before they are
// rounded and stored, which saves a pass over memory.

#include "core/view.h"

namespace mixtape::kernels {
using namespace internal;

class Packed;  // kernels/common/packed.h

enum class Activation : int { None, Relu, Gelu, GeluTanh };

// c = activation(alpha a @ b + bias + residual). All members are optional. Convolutions ignore
// alpha, the sums and `packed`.
struct Epilogue {
  double alpha = 1;
  View bias = {};      // [n] or, beside a c of two dimensions, of its shape; may be c: c += a @ b
  View residual = {};  // of c's shape and strides, whose rows are dense; any float dtype
  Activation activation = Activation::None;
  View before = {};  // output: the input of the activation; of c's dtype and layout, both dense
  // Outputs, dense, f32 or f64, for c of two dimensions; at most one of them.
  View row_sums = {};        // [m]: sums of a over k
  View column_sums = {};     // [n]: sums of b over k
  Packed* packed = nullptr;  // b as an earlier product packed it, or where this one leaves it
};

}  // namespace mixtape::kernels
