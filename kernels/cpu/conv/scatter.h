#pragma once
// The gradient of a convolution's input, or a transposed convolution, of large strides.

#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// As conv2d_input(). Returns false, without computing anything, if conv.cpp is faster.
bool scatter_input(Launch& launch, In dy, In w, In bias, const Window& window, Out dx);

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
