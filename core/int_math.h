#pragma once
// Division that rounds up, and rounding up to a multiple.

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::internal {

// The quotient n / size, rounded up; n is not negative.
MIXTAPE_HD constexpr auto ceil_div(auto n, auto size) { return n / size + (n % size > 0); }
// The least multiple of `to` that is at least n, which is not negative.
MIXTAPE_HD constexpr auto round_up(auto n, auto to) { return ceil_div(n, to) * to; }

}  // namespace mixtape::internal

namespace mixtape::kernels {  // which use them everywhere
using mixtape::internal::ceil_div;
using mixtape::internal::round_up;
}  // namespace mixtape::kernels
