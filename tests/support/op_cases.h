#pragma once
// One row per op: inputs it accepts and how to call it. Every generated test (gradients, strides,
// dtypes, empties, autocast, and later devices and benchmarks) runs over these rows, and an op that
// is linked but has no row fails the suite.

#include <cmath>
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
  std::vector<double> values = {};  // these instead, repeated

  bool real() const { return kind != Index && kind != Mask; }
  bool differentiated() const { return kind == Real || kind == Tied; }
};

struct OpCase {
  std::string op;  // the OpInfo::name this row is for
  std::vector<Input> inputs;
  std::function<Tensor(const std::vector<Tensor>&)> run;
  std::string label = {};  // distinguishes rows of one op
  bool differentiable = true;
  double tolerance = 1;           // multiplies the tolerance of the dtype
  std::vector<Shape> empty = {};  // input shapes with a size of zero; none: the op throws
  bool half = true;               // runs in f16 and bf16
  bool composite = false;         // other ops prepare the op's inputs
  bool cpu_only = false;          // its kernel is of the CPU alone: an error on a device
  double step = 1e-6;             // of gradcheck: larger where differences are small
  // The dimension of each input that the broadcasting test repeats from size 1; -1: none. By
  // default the first; none for indices.
  std::vector<int> repeat = {};
  // Input shapes with which a result or a gradient sums 2^12 terms; none: nothing is summed.
  std::vector<Shape> sums = {};
  // An element of the result depends on the elements at its place alone, so that inputs of any one
  // shape will do.
  bool pointwise = false;
  double least = -INFINITY, most = INFINITY;  // the op's range, if others are errors

  std::string name() const { return label.empty() ? op : op + "_" + label; }
};

const std::vector<OpCase>& op_cases();
// Those that run on the default device of a test program, or on a device.
std::vector<OpCase> cases_here();
std::vector<OpCase> device_cases();
// Cases where gradients do not exist or numbers are extreme, and further options: only compared
// with PyTorch. So are functions made of ops (composed.cpp), which most tests of ops run as well.
const std::vector<OpCase>& edge_cases();
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name(); }

// Inputs for a row, the same at every call: reals in `dtype`, exact in f32; leaves if `leaves`.
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves);
std::vector<Tensor> make_inputs(const OpCase& c, DType dtype, bool leaves,
                                const std::vector<Shape>& shapes, uint64_t first_seed = 100);

// The shapes of a row's inputs, and those for the broadcasting test, with size 1 where it repeats.
std::vector<Shape> shapes(const OpCase& c);
std::vector<Shape> reduced_shapes(const OpCase& c);
// A gradient for a result of this shape: fixed numbers in [-1, 1).
Tensor output_gradient(const Tensor& y);
// A checksum of dtypes, shapes and values: true inputs of a reference have the same.
std::string checksum(const std::vector<Tensor>& inputs);

}  // namespace mixtape::tests
