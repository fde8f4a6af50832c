#pragma once
// Best: running maxima and where they were found.

#include "kernels/cpu/simd/simd.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// Running maxima and their positions: one window per lane.
template <class T>
struct Best {
  using Vector = typename Vec<T>::Vector;
  using Positions = typename detail::Vector<T>::integer;
  using Position = std::decay_t<decltype(Positions{}[0])>;
  Vector value;
  Positions position;

  // Takes an element that is larger, or the first NaN; `other` comes later in row-major order.
  MIXTAPE_ALWAYS_INLINE void meet(const Vector& other, const Positions& at) {
    take(~(other <= value) & (value == value), other, at);
  }
  // The same if `other` may come earlier.
  MIXTAPE_ALWAYS_INLINE void meet_any(const Vector& other, const Positions& at) {
    const Positions larger = ~(other <= value) & (value == value),
                    equal = (other == value) | ((other != other) & (value != value));
    take(larger | (equal & (at < position)), other, at);
  }

 private:
  MIXTAPE_ALWAYS_INLINE void take(const Positions& wins, const Vector& other, const Positions& at) {
    value = wins ? other : value;
    position = wins ? at : position;
  }
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
