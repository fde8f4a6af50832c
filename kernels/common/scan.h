#pragma once
// Pairs of numbers that scans along a line compose; each pair describes a run of steps.
// compose(first, then) describes one run after the other, nothing() a run of no steps.

#include <limits>

#include "kernels/common/scalar.h"

namespace mixtape::kernels {

template <class T>
struct Pair {
  T a, b;
};

// y = a y + b; without a it is a sum, without b a product.
template <bool has_factor, bool has_term>
struct Linear {
  static constexpr bool has_a = has_factor, has_b = has_term;
  template <class T>
  MIXTAPE_HD static Pair<T> nothing() {
    return {T(1), T(0)};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> step(T a, T b, int64_t) {
    return {a, b};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> compose(Pair<T> first, Pair<T> then) {
    if constexpr (!has_a) return {then.a, then.b + first.b};
    return {then.a * first.a, has_b ? then.a * first.b + then.b : then.b};
  }
  template <class T>
  MIXTAPE_HD static T result(Pair<T> p) {
    return has_b ? p.b : p.a;
  }
};

// The largest number, or the smallest, and its position: the last of equals; NaN wins.
template <bool largest>
struct Extreme {
  static constexpr bool has_a = false, has_b = true;
  template <class T>
  MIXTAPE_HD static Pair<T> nothing() {
    return {T(0), T(-1)};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> step(T, T x, int64_t i) {
    return {x, T(i)};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> compose(Pair<T> first, Pair<T> then) {
    if (then.b < T(0)) return first;
    const bool beats = largest ? then.a >= first.a : then.a <= first.a;
    return first.b < T(0) || then.a != then.a || (first.a == first.a && beats) ? then : first;
  }
  template <class T>
  MIXTAPE_HD static T result(Pair<T> p) {
    return p.b;
  }
};

// log(sum of exp(x)): the largest x, and the sum relative to it.
struct LogSumExp {
  static constexpr bool has_a = false, has_b = true;
  template <class T>
  MIXTAPE_HD static Pair<T> nothing() {
    return {T(-std::numeric_limits<double>::infinity()), T(0)};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> step(T, T x, int64_t) {
    return {x, T(1)};
  }
  template <class T>
  MIXTAPE_HD static Pair<T> compose(Pair<T> first, Pair<T> then) {
    const T most = first.a > then.a || first.a != first.a ? first.a : then.a;
    const T before = first.a == most ? first.b : first.b * exp(first.a - most);
    return {most, before + (then.a == most ? then.b : then.b * exp(then.a - most))};
  }
  template <class T>
  MIXTAPE_HD static T result(Pair<T> p) {
    return p.a + log(p.b);
  }
};

}  // namespace mixtape::kernels
