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

// Whether a derivative is the same everywhere: a number, not a function.
template <class F>
concept ConstantA = requires {
  double(F::da);
};
template <class F>
concept ConstantB = requires {
  double(F::db);
};

template <class F, class T>
MIXTAPE_HD T derivative_a(T a, T b, T c) {
  if constexpr (ConstantA<F>)
    return T(F::da);
  else
    return F::da(a, b, c);
}
template <class F, class T>
MIXTAPE_HD T derivative_b(T a, T b, T c) {
  if constexpr (ConstantB<F>)
    return T(F::db);
  else
    return F::db(a, b, c);
}

// Whether the result of a binary op is bool.
template <class F>
concept Predicate = !ConstantA<F> && !requires(float x) {
  F::da(x, x, x);
};

// A constant in the type that an op is computed in.
template <class T>
MIXTAPE_HD T number(double x) {
  if constexpr (std::is_same_v<T, Whole>)
    return Whole(convert_to<int64_t>(x));
  else
    return T(x);
}

template <class F>
constexpr Domain domain_of() {
  if constexpr (requires { F::domain; })
    return F::domain;
  else
    return {};
}

}  // namespace mixtape::kernels
