#pragma once
// Division that rounds up, and rounding up to a multiple.

#include <type_traits>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::internal {

// The quotient n / size, rounded up; n is not negative. Nothing overflows: the unsigned type has
// the sum of any two signed numbers.
MIXTAPE_HD constexpr auto ceil_div(auto n, auto size) {
  using T = decltype(n / size);
  if constexpr (std::is_unsigned_v<T>) {
    return n / size + (n % size > 0);
  } else {
    using U = std::make_unsigned_t<T>;
    return T((U(n) + U(size) - 1) / U(size));
  }
}
// The least multiple of `to` that is at least n, which is not negative.
MIXTAPE_HD constexpr auto round_up(auto n, auto to) { return ceil_div(n, to) * to; }

}  // namespace mixtape::internal

namespace mixtape::kernels {  // which use them everywhere
using mixtape::internal::ceil_div;
using mixtape::internal::round_up;
}  // namespace mixtape::kernels
