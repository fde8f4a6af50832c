// One time step of a recurrent layer: the cells of kernels/common/cells.h, element by element. Each
// vector of a row (a gate, say) is an operand of its own.

#include "kernels/common/cells.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

template <class C, class V>
struct Step {
  // Inputs: the gates of x and h, the state. Results: y, the state, what is kept for the gradient.
  template <class... X>
  MIXTAPE_HD Values<V, 2 + C::kept> operator()(X... x) const {
    V in[] = {x...}, keep[C::kept + 1] = {}, state = in[2 * C::gates];
    Values<V, 2 + C::kept> out;
    out.v[0] = C::f(in, in + C::gates, state, keep);
    out.v[1] = state;
    for (int k = 0; k < C::kept; ++k) out.v[2 + k] = keep[k];
    return out;
  }
};

template <class C, class V>
struct StepBack {
  // Inputs: y, dy, dnext, carry, what was kept. Results: carry, the gates of dx and dh.
  template <class... X>
  MIXTAPE_HD Values<V, 1 + 2 * C::gates> operator()(V y, V dy, V dnext, V carry, X... kept) const {
    V keep[] = {kept..., V(0)}, dx[C::gates], dh[C::gates];
    C::df(keep, y, dy + dnext, carry, dx, dh);
    Values<V, 1 + 2 * C::gates> out;
    out.v[0] = carry;
    for (int g = 0; g < C::gates; ++g) {
      out.v[1 + g] = dx[g];
      out.v[1 + C::gates + g] = dh[g];
    }
    return out;
  }
};

// The vectors of the rows of several optional views [b, vectors n], one after the other.
template <int count>
struct Operands {
  View views[count];
  int size = 0;
  void add(const View& v, int vectors, int64_t n) {
    for (int r = 0; r < vectors; ++r) {
      View& part = views[size++] = v;
      if (v) part.data = v.as<char>() + r * n * int64_t(size_of(v.dtype));
      part.layout.shape.dim[1] = n;
    }
  }
};

template <class F, class V, int outs, int ins>
void step(Launch& launch, const char* name, const Operands<outs>& y, const Operands<ins>& x) {
  const View* to[outs];
  Argument from[ins];
  for (int k = 0; k < outs; ++k) to[k] = &y.views[k];
  for (int k = 0; k < ins; ++k) from[k] = {&x.views[k]};
  map_numbers<V>(launch, name, F(), to, from);
}

// Calls f.operator()<C, V>() with the struct of a cell and the type in which a dtype is computed.
template <class F>
void visit_cell(Cell kind, DType t, F f) {
  kernels::visit_cell(kind, [&]<class C>() {
    visit_float_math(t, [&]<class V>() { f.template operator()<C, V>(); });
  });
}

}  // namespace

void cell(Launch& launch, Cell kind, In x, In h, Out state, Out kept, Out y) {
  const int64_t n = y.shape()[1];
  visit_cell(kind, x.dtype, [&]<class C, class V>() {
    Operands<2 + C::kept> out;
    out.add(y, 1, n);
    out.add(state, 1, n);
    out.add(kept, C::kept, n);
    Operands<2 * C::gates + 1> in;
    in.add(x, C::gates, n);
    in.add(h, C::gates, n);
    in.add(state, 1, n);
    step<Step<C, V>, V>(launch, "cell", out, in);
  });
}

void cell_grad(Launch& launch, Cell kind, In kept, In y, In dy, In dnext, Out carry, Out dx,
               Out dh) {
  const int64_t n = y.shape()[1];
  visit_cell(kind, y.dtype, [&]<class C, class V>() {
    Operands<1 + 2 * C::gates> out;
    out.add(carry, 1, n);
    out.add(dx, C::gates, n);
    out.add(dh, C::gates, n);
    Operands<4 + C::kept> in;
    for (const View* v : {&y, &dy, &dnext, &carry}) in.add(*v, 1, n);
    in.add(kept, C::kept, n);
    step<StepBack<C, V>, V>(launch, "cell_grad", out, in);
  });
}

}  // namespace mixtape::kernels::cuda
