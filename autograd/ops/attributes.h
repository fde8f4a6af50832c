#pragma once
// Attributes of ops that are structs, for the ops and for observers that read them
// (Repetition::argument).

#include <array>
#include <optional>

#include "autograd/ops.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"
#include "kernels/kernels.h"

namespace mixtape {
namespace [[gnu::visibility("hidden")]] ops {

// The attributes of a convolution and of both its gradients: window, operand shapes as conv2d sees
// them, and the result's dtype. Shapes of volumes have a dimension of planes before rows.
struct ConvGeometry {
  kernels::Window window;
  Shape input, weight, output;
  Activation activation = Activation::None;  // applied to conv2d's sums
  std::optional<DType> out = {};
  struct Depth {  // the window along planes
    int64_t stride = 1, padding = 0, dilation = 1;
  } depth = {};

  bool of_volumes() const { return weight.rank == 5; }
  // The same without the activation.
  ConvGeometry linear(std::optional<DType> dtype = {}) const {
    ConvGeometry g = *this;
    g.activation = Activation::None;
    g.out = dtype;
    return g;
  }
};

using Samplings = std::array<kernels::Sampling, 2>;  // of rows, of columns

struct AttentionParams {
  bool causal, grouped;
  double scale;
  DropoutMask drop;
};

struct BatchNormParams {
  bool training;
  double momentum, eps;
};

struct RecurrentParams {
  using Plain = bool;
  bool reverse;
  Tensor state = {};  // [b, n], f32 or f64, if asked for: forward leaves a cell's last one here

  explicit RecurrentParams(bool r) : reverse(r) {}
  explicit operator bool() const { return reverse; }
};

// The diagonal as a part of a tensor. (Parts, like BasicIndex, hold each element at most once.)
struct DiagonalOf {
  static constexpr OpInfo view{"diagonal"}, place{"place_diagonal"};
  int64_t offset;
  int a, b;
  internal::Layout of(const internal::Layout& l) const { return diagonal(l, offset, a, b); }
};

// Windows of `size` elements along a dimension, `step` apart.
struct Windows {
  int dim;
  int64_t size, step;
};

// Queries, keys or values of all heads: x [b, t, parts heads d] -> [b, heads, t, d].
struct HeadsOf {
  static constexpr OpInfo view{"split_heads"}, place{"place_heads"};
  static constexpr bool covers = true;  // all parts together
  int64_t parts, heads, index;
  bool batch_first;
  internal::Layout of(const internal::Layout& x) const;
};

// x / max(|x|, eps), by a norm whose dimensions are kept.
struct NormalizeAttributes {
  NormOptions norm;
  double eps;
};

// The cosine of rows, whose lengths count as at least eps.
struct CosineOptions {
  double eps;
  bool wide = false;
};

// The dimension along which elements are added, and the result's shape.
struct ScatterTarget {
  int dim;
  Shape shape;
  std::optional<DType> out = {};
};

// Combines the elements that go to one place along a dimension, with what is there or without.
struct Meeting {
  int dim;
  kernels::Reduce op;
  bool include_self;
};

}  // namespace ops
}  // namespace mixtape
