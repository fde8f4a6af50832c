#pragma once
// Running products, for rules that need what all other factors make.

#include "autograd/ops.h"

namespace mixtape {

// The product of all other elements along dim, for each; exact where some are zero.
Tensor product_of_others(const Tensor& x, int dim);

}  // namespace mixtape
