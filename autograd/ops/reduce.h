#pragma once
// Sums that other ops are made of: with a chosen result dtype, for rules that want a gradient in
// f32 from narrow terms, and the reductions of losses.

#include "autograd/ops.h"

namespace mixtape {

struct ReduceOptions {
  uint32_t dims = 0;              // bit d: dimension d is reduced
  std::optional<DType> out = {};  // dtype of the result
};
ReduceOptions reduce_options(const Dims& dims, int rank);  // no dims: all
// Keeps reduced dimensions with size 1.
Tensor sum_to(const Tensor& x, const ReduceOptions& options);
// What a loss makes of the losses of single elements.
Tensor reduce_losses(const Tensor& each, Reduction reduction);

}  // namespace mixtape
