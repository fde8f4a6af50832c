#pragma once
// Indexing for rules and functions that know their indices to be i64 and in range.

#include "autograd/ops.h"

namespace mixtape {

// As gather.
Tensor pick(const Tensor& x, int dim, const Tensor& index);
// As index_select.
Tensor pick_slices(const Tensor& x, int dim, const Tensor& index);

}  // namespace mixtape
