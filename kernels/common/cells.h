#pragma once
// One step of each recurrent cell, for one hidden unit, forward and backward. T is as in
// elementwise.h. The pre-activations of gates come in two parts: x, from the input, and h, from the
// hidden state.

#include "kernels/common/elementwise.h"

namespace mixtape::kernels {

enum class Cell : int { Tanh, Relu, Lstm, Gru };

// The members of a cell:
//   id            its kind
//   gates, kept   the numbers per unit of x and of h, and of values kept for the gradient
//   f             the new hidden value; updates `state`, which is passed from step to step, and
//                 writes what the gradient needs to `keep`
//   df            dx and dh from dy, the gradient of the new hidden value `y`; `before` is the
//                 state before the step; updates `carry`, the gradient of the state. The gradient
//                 of the last hidden value by way of h is not included: it is dh times the weight

template <class F, Cell cell>
struct PlainCell {  // y = f(x + h)
  static constexpr Cell id = cell;
  static constexpr int gates = 1, kept = 0;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T&, T*) {
    return F::f(x[0] + h[0]);
  }
  template <class T>
  MIXTAPE_HD static void df(const T*, T, T y, T dy, T&, T* dx, T* dh) {
    dx[0] = dh[0] = passed<F>(dy, F::d_from_y(y));
  }
};

using TanhCell = PlainCell<Tanh, Cell::Tanh>;
using ReluCell = PlainCell<Relu, Cell::Relu>;

struct LstmCell {  // gates i, f, g, o; the state is c = f c + i g, and y = o tanh(c)
  static constexpr Cell id = Cell::Lstm;
  static constexpr int gates = 4, kept = 5;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T& state, T* keep) {
    keep[0] = Sigmoid::f(x[0] + h[0]);
    keep[1] = Sigmoid::f(x[1] + h[1]);
    keep[2] = Tanh::f(x[2] + h[2]);
    keep[3] = Sigmoid::f(x[3] + h[3]);
    state = keep[4] = keep[1] * state + keep[0] * keep[2];
    return keep[3] * Tanh::f(state);
  }
  template <class T>
  MIXTAPE_HD static void df(const T* keep, T before, T, T dy, T& carry, T* dx, T* dh) {
    const T i = keep[0], f = keep[1], g = keep[2], o = keep[3], t = Tanh::f(keep[4]);
    const T dc = carry + dy * o * Tanh::d_from_y(t);
    dx[0] = dc * g * Sigmoid::d_from_y(i);
    dx[1] = dc * before * Sigmoid::d_from_y(f);
    dx[2] = dc * i * Tanh::d_from_y(g);
    dx[3] = dy * t * Sigmoid::d_from_y(o);
    for (int k = 0; k < gates; ++k) dh[k] = dx[k];
    carry = dc * f;
  }
};

struct GruCell {  // gates r, z, n = tanh(x + r h); the state is y = (1 - z) n + z y
  static constexpr Cell id = Cell::Gru;
  static constexpr int gates = 3, kept = 4;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T& state, T* keep) {
    keep[0] = Sigmoid::f(x[0] + h[0]);
    keep[1] = Sigmoid::f(x[1] + h[1]);
    keep[2] = Tanh::f(x[2] + keep[0] * h[2]);
    keep[3] = h[2];
    return state = keep[2] + keep[1] * (state - keep[2]);
  }
  template <class T>
  MIXTAPE_HD static void df(const T* keep, T before, T, T dy, T& carry, T* dx, T* dh) {
    const T r = keep[0], z = keep[1], n = keep[2];
    const T d = dy + carry;
    dx[2] = d * (T(1) - z) * Tanh::d_from_y(n);
    dh[2] = dx[2] * r;
    dx[0] = dh[0] = dx[2] * keep[3] * Sigmoid::d_from_y(r);
    dx[1] = dh[1] = d * (before - n) * Sigmoid::d_from_y(z);
    carry = d * z;
  }
};

// Calls f.operator()<C>() with the struct of a cell.
template <class F>
decltype(auto) visit_cell(Cell cell, F&& f) {
  switch (cell) {
    case Cell::Tanh:
      return f.template operator()<TanhCell>();
    case Cell::Relu:
      return f.template operator()<ReluCell>();
    case Cell::Lstm:
      return f.template operator()<LstmCell>();
    default:
      return f.template operator()<GruCell>();
  }
}

}  // namespace mixtape::kernels
