#pragma once
// Every elementwise op: its name, its numerics, its formula and derivatives as static functions of
// a type T that is float, double, a SIMD lane, Whole for integers or, in derivatives, an expression
// on the tape. So write with + - * /, T(constant), comparisons, select and the functions of
// scalar.h only. The ops are in activation.h, unary.h and binary.h; here is what may be asked of
// them.

#include "kernels/binary.h"
#include "kernels/unary.h"

namespace mixtape::kernels {

// Position of an op in its list: how one translation unit names a functor to another.
template <class Op, class... Ops>
constexpr int index_in(OpList<Ops...>) {
  static_assert((std::is_same_v<Op, Ops> || ...), "not in this list");
  int i = 0;
  (void)((std::is_same_v<Op, Ops> ? true : (++i, false)) || ...);
  return i;
}

// Whether the backward pass of F keeps x; otherwise it keeps y.
template <class F>
concept NeedsX = requires(float x) {
  F::d_from_x(x);
};

template <class F, class T>
MIXTAPE_HD T derivative(T v) {
  if constexpr (NeedsX<F>)
    return F::d_from_x(v);
  else
    return F::d_from_y(v);
}

// Whether the result of a binary op is bool.
template <class F>
inline constexpr bool is_predicate = !requires(float x) {
  F::da(x, x, x);
};

template <class F>
constexpr Domain domain_of() {
  if constexpr (requires { F::domain; })
    return F::domain;
  else
    return {};
}

}  // namespace mixtape::kernels
