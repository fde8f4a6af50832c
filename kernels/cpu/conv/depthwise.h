#pragma once
// The gradient of the weights of depthwise convolutions that keep the size of the image, apart from
// the stride.

#include "kernels/kernels.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Returns false, without computing anything, for other convolutions and if this would be slower.
bool depthwise_weight(In x, In dy, const Window&, Out dw, Out db);

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
