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
  enum Kind { Real, Constant, Index, Mask };
  Shape shape;
  double low = -2, high = 2;
  Kind kind = Real;  // Constant: real, but not differentiated. Index: i64 in [low, high)
  double away = 0;   // keeps this far from zero, where the op has a kink
};

struct OpCase {
  std::string op;  // the OpInfo::name this row is for
  std::vector<Input> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::string label = {};  // tells rows of one op apart
  bool differentiable = true;
  bool second_order = true;
  double tolerance = 1;           // multiplies the tolerance of the dtype
  std::vector<Shape> empty = {};  // input shapes with a size of zero; none: the op refuses them
  bool narrow = true;             // runs in f16 and bf16
  bool composite = false;         // its op gets what other ops make of the inputs

  std::string name() const { return label.empty() ? op : op + "_" + label; }
};

const std::vector<OpCase>& op_cases();
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name(); }

// Inputs for a row, the same at every call: reals in `dtype`, leaves if `leaves`.
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves);
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes);

}  // namespace mixtape::tests
