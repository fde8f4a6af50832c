#pragma once
// One row per op: inputs it accepts and how to call it. Every generated test (gradients, strides,
// dtypes, empties, autocast, and later devices and benchmarks) runs over these rows, and an op that
// is linked but has no row fails the suite.

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "autograd/ops.h"

namespace mixtape::tests {

struct Input {
  // Constant: real, but not differentiated. Index: i64 in [low, high). Tied: whole reals, so that
  // some are equal.
  enum Kind { Real, Constant, Index, Mask, Tied };
  Shape shape;
  double low = -2, high = 2;
  Kind kind = Real;
  double away = 0;                  // keeps this far from zero, where the op has a kink
  std::vector<double> values = {};  // these instead, over and over

  bool real() const { return kind != Index && kind != Mask; }
  bool differentiated() const { return kind == Real || kind == Tied; }
};

struct OpCase {
  std::string op;  // the OpInfo::name this row is for
  std::vector<Input> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::string label = {};  // tells rows of one op apart
  bool differentiable = true;
  double tolerance = 1;           // multiplies the tolerance of the dtype
  std::vector<Shape> empty = {};  // input shapes with a size of zero; none: the op refuses them
  bool half = true;               // runs in f16 and bf16
  bool composite = false;         // its op gets what other ops make of the inputs
  double step = 1e-6;             // of gradcheck: larger where rounding would drown differences
  // The dimension of each input that the test of broadcasts repeats from size 1; -1: none. By
  // default the first, and none of indices.
  std::vector<int> repeat = {};

  std::string name() const { return label.empty() ? op : op + "_" + label; }
};

const std::vector<OpCase>& op_cases();
// Where gradients do not exist or numbers are extreme, and options beyond those of the rows: only
// compared with PyTorch.
const std::vector<OpCase>& edge_cases();
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name(); }

// Inputs for a row, the same at every call: reals in `dtype`, of values that f32 holds exactly;
// leaves if `leaves`.
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves);
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes);

// The shapes of a row's inputs, those of the test of broadcasts: size 1 where it repeats.
std::vector<Shape> shapes(const OpCase& c);
std::vector<Shape> reduced_shapes(const OpCase& c);
// A gradient for a result of this shape: fixed numbers in [-1, 1).
Tensor output_gradient(const Tensor& y);
// Of dtypes, shapes and values: tells whether inputs are those that a reference was made of.
std::string checksum(const std::vector<Tensor>& inputs);

}  // namespace mixtape::tests
