#pragma once
// The gradient of the weights of depthwise convolutions whose results are as wide as what they see,
// but for the stride.

#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {

// Computes it and returns true, or false where it is another convolution, or slower here.
bool depthwise_weight(In x, In dy, const Window&, Out dw, Out db);

}  // namespace mixtape::kernels::cpu
