#pragma once
// Declarations of the mathematics that optimizers use, for scalars, without <cmath>, which would
// take 5 % of the time to compile <mixtape.h>. Definitions that need it are in
// kernels/common/scalar.h.

#include <concepts>

#include "core/half.h"  // MIXTAPE_HD

namespace mixtape::kernels {

namespace math {
// (Defined in scalar.h.)
template <std::floating_point T>
MIXTAPE_HD T abs(T x);
template <std::floating_point T>
MIXTAPE_HD T floor(T x);
template <std::floating_point T>
MIXTAPE_HD T sqrt(T x);
template <std::floating_point T>
MIXTAPE_HD T pow(T x, T y);
template <std::floating_point T>
MIXTAPE_HD T fma(T x, T y, T z);

template <class T>
MIXTAPE_HD constexpr T select(bool condition, T a, T b) {
  return condition ? a : b;
}
}  // namespace math
using namespace math;

// The larger and the smaller of two numbers, or the one that is NaN.
MIXTAPE_HD constexpr auto maximum(auto a, auto b) { return select(a != a, a, select(a > b, a, b)); }
MIXTAPE_HD constexpr auto minimum(auto a, auto b) { return select(a != a, a, select(a < b, a, b)); }

}  // namespace mixtape::kernels
