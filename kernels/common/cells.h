#pragma once
// One step of each recurrent cell, for one hidden unit, forward and backward. T is as in
// elementwise.h. The pre-activations of gates come in two parts: x, from the input, and h, from the
// hidden state.

#include "kernels/common/elementwise.h"

namespace mixtape::kernels {

enum class Cell : int { Tanh, Relu, Lstm, Gru };

// The members of a cell:
//   id            its kind
//   gates, kept   the numbers per unit of x and of h, and of factors kept for the gradient
//   f             the new hidden value; updates `state`, which is passed from step to step, and
//                 writes the factors of the gradient to `keep` unless that is null (later they
//                 could not be computed: a gate that was rounded to 1 has lost its derivative)
//   df            dx and dh from dy, the gradient of the new hidden value `y`; updates `carry`, the
//                 gradient of the state. It leaves out the gradient that reaches the last hidden
//                 value through h, which is dh times the weight

struct TanhCell {  // y = tanh(x + h)
  static constexpr Cell id = Cell::Tanh;
  static constexpr int gates = 1, kept = 1;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T&, T* keep) {
    const Bend<T> y = bend(x[0] + h[0]);
    if (keep) keep[0] = y.slope;
    return y.value;
  }
  template <class T>
  MIXTAPE_HD static void df(const T* keep, T, T dy, T&, T* dx, T* dh) {
    dx[0] = dh[0] = dy * keep[0];
  }
};

struct ReluCell {  // y = relu(x + h)
  static constexpr Cell id = Cell::Relu;
  static constexpr int gates = 1, kept = 0;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T&, T*) {
    return Relu::f(x[0] + h[0]);
  }
  template <class T>
  MIXTAPE_HD static void df(const T*, T y, T dy, T&, T* dx, T* dh) {
    dx[0] = dh[0] = passed<Relu>(dy, Relu::d_from_y(y));
  }
};

struct LstmCell {  // gates i, f, g, o; the state is c = f c + i g, and y = o tanh(c)
  static constexpr Cell id = Cell::Lstm;
  static constexpr int gates = 4, kept = 6;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T& state, T* keep) {
    const Shares<T> i = shares(x[0] + h[0]), f = shares(x[1] + h[1]), o = shares(x[3] + h[3]);
    const Bend<T> g = bend(x[2] + h[2]);
    const T before = state;
    state = f.share * before + i.share * g.value;
    const Bend<T> c = bend(state);
    if (keep) {
      keep[0] = g.value * (i.share * i.rest);
      keep[1] = before * (f.share * f.rest);
      keep[2] = i.share * g.slope;
      keep[3] = c.value * (o.share * o.rest);
      keep[4] = o.share * c.slope;
      keep[5] = f.share;
    }
    return o.share * c.value;
  }
  template <class T>
  MIXTAPE_HD static void df(const T* keep, T, T dy, T& carry, T* dx, T* dh) {
    const T dc = carry + dy * keep[4];
    for (int k = 0; k < 3; ++k) dx[k] = dc * keep[k];
    dx[3] = dy * keep[3];
    for (int k = 0; k < gates; ++k) dh[k] = dx[k];
    carry = dc * keep[5];
  }
};

struct GruCell {  // gates r, z, n = tanh(x + r h); the state is y = (1 - z) n + z y
  static constexpr Cell id = Cell::Gru;
  static constexpr int gates = 3, kept = 5;

  template <class T>
  MIXTAPE_HD static T f(const T* x, const T* h, T& state, T* keep) {
    const Shares<T> r = shares(x[0] + h[0]), z = shares(x[1] + h[1]);
    const Bend<T> n = bend(x[2] + r.share * h[2]);
    const T change = n.value - state;
    if (keep) {
      keep[0] = h[2] * (r.share * r.rest);
      keep[1] = -change * (z.share * z.rest);
      keep[2] = z.rest * n.slope;
      keep[3] = r.share;
      keep[4] = z.share;
    }
    return state = state + z.rest * change;
  }
  template <class T>
  MIXTAPE_HD static void df(const T* keep, T, T dy, T& carry, T* dx, T* dh) {
    const T d = dy + carry;
    dx[2] = d * keep[2];
    dh[2] = dx[2] * keep[3];
    dx[0] = dh[0] = dx[2] * keep[0];
    dx[1] = dh[1] = d * keep[1];
    carry = d * keep[4];
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
