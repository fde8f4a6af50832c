#pragma once
// An op to be timed on the device, forward or one of its gradients, with what it takes to check it
// on the CPU: the same op of fewer rows.

#include "autograd/ops.h"
#include "bench/gpu/report.h"

namespace mixtape::bench {

using Tensors = std::vector<Tensor>;

struct OpCase {
  std::string name;
  DType dtype = f32;
  int64_t rows = 1;  // of the inputs that are timed
  std::function<Tensors(int64_t rows, DType)> inputs;
  std::function<Tensor(const Tensors&)> op;
  double work = 0;  // bytes or operations per row
  Figure::Kind kind = Figure::Kind::Bytes;
  std::vector<size_t> wrt = {};  // the inputs whose gradients are timed; none: the op itself
  double input_bytes = 0;        // per row, to take as many sets as the cache cannot hold
  int64_t few = 5;               // rows that are checked
  DType reference = f64;         // dtype on the CPU
  double tolerance = 0;          // 0: what the dtype allows
};

void measure(Report& report, const OpCase& c);

}  // namespace mixtape::bench
