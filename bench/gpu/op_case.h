#pragma once
// An op to time on the device, forward or one of its gradients, and to check on the CPU with fewer
// rows.

#include "autograd/ops.h"
#include "bench/gpu/report.h"

namespace mixtape::bench {

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string name;
  DType dtype = f32;
  int64_t rows = 1;  // of the timed inputs
  std::function<Tensors(int64_t rows, DType)> inputs;
  std::function<Tensor(const Tensors&)> op;
  double work = 0;  // bytes or operations per row
  Figure::Kind kind = Figure::Kind::Bytes;
  std::vector<size_t> wrt = {};  // inputs whose gradients are timed; empty: times the op
  double input_bytes = 0;        // per row, to choose more sets than the cache holds
  int64_t few = 5;               // rows to check
  DType reference = f64;         // the CPU's dtype
  double tolerance = 0;          // 0: the dtype's default
};

void measure(Report& report, const OpCase& c);

}  // namespace mixtape::bench
