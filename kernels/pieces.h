#pragma once
// Division rounded up, and rounding up to a multiple.

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::kernels {

MIXTAPE_HD constexpr auto pieces(auto n, auto size) { return (n + size - 1) / size; }
MIXTAPE_HD constexpr auto up(auto n, auto to) { return pieces(n, to) * to; }

}  // namespace mixtape::kernels
