// c = f(a, b), their gradients, and x + s f(a, b). A scalar replaces an absent operand.

#include "kernels/common/plus_scaled.h"
#include "kernels/cuda/elementwise/elementwise.cuh"

namespace mixtape::kernels::cuda {
using namespace internal;
namespace {

template <class F, class V>
struct Pairwise {
  MIXTAPE_HD auto operator()(V a, V b) const { return F::f(a, b); }
};

// dy df/da and dy df/db, or 0 if not needed.
template <class F, class V>
struct Gradients {
  bool a, b;
  MIXTAPE_HD Values<V, 2> operator()(V x, V y, V z, V dy) const {
    return {{a ? gradient_a<F>(dy, x, y, z) : V(0), b ? gradient_b<F>(dy, x, y, z) : V(0)}};
  }
};

template <class F, class V>
struct PlusScaled {
  double s;
  MIXTAPE_HD V operator()(V x, V a, V b) const { return plus_scaled_of<F>(x, s, a, b); }
};

template <class F>
void run(Launch& launch, DType dtype, const Argument& a, const Argument& b, Out c) {
  visit_math(dtype, [&]<class V>() {
    using R = std::conditional_t<Predicate<F>, bool, V>;
    if constexpr (Takes<F, V>)
      map_numbers<V, R>(launch, F::info.name.data(), Pairwise<F, V>(), {&c}, {a, b});
  });
}

template <class F>
void run_gradients(Launch& launch, DType dtype, const Argument& a, const Argument& b, In c, In dy,
                   Out da, Out db) {
  if constexpr (Differentiable<F>)
    visit_float_math(dtype, [&]<class V>() {
      map_numbers<V>(launch, F::info.name.data(), Gradients<F, V>{bool(da), bool(db)}, {&da, &db},
                     {a, b, {&c}, {&dy}});
    });
}

const View absent;

// Functions that no layer of a network is made of.
using CostlyOps = OpList<Remainder, Fmod, Atan2, LogAddExp2>;

}  // namespace

template <class F, class V>
constexpr bool is_costly<Pairwise<F, V>> = is_in<F>(CostlyOps());
template <class F, class V>
constexpr bool is_costly<Gradients<F, V>> = std::is_same_v<F, Pow> || is_in<F>(CostlyOps());

void binary(Launch& launch, int op, In a, In b, Out c) {
  visit_op(BinaryOps{}, op, [&]<class F>() { run<F>(launch, a.dtype, {&a}, {&b}, c); });
}

void binary_grad(Launch& launch, int op, In a, In b, In c, In dy, Out da, Out db) {
  const DType t = operand_dtype(a, b, dy, da ? da.dtype : db.dtype);
  visit_op(BinaryOps{}, op,
           [&]<class F>() { run_gradients<F>(launch, t, {&a}, {&b}, c, dy, da, db); });
}

void binary_scalar(Launch& launch, int op, In a, double b, bool swapped, Out c) {
  // An integer tensor is compared with 2.5 in f64: 2.5 must not become 2.
  const DType t = c.dtype == boolean && !is_float(a.dtype) && !holds(i64, b) ? f64 : a.dtype;
  const Argument x{&a}, scalar{&absent, b};
  visit_scalar_op(op, b, swapped, [&]<class F, bool>() {
    run<F>(launch, t, swapped ? scalar : x, swapped ? x : scalar, c);
  });
}

void binary_scalar_grad(Launch& launch, int op, In a, double b, bool swapped, In c, In dy, Out da) {
  const DType t = operand_dtype(a, a, dy, da.dtype);
  const Argument x{&a}, scalar{&absent, b};
  visit_scalar_op(op, b, swapped, [&]<class F, bool swaps>() {
    if constexpr (swaps)
      run_gradients<F>(launch, t, scalar, x, c, dy, absent, da);
    else
      run_gradients<F>(launch, t, x, scalar, c, dy, da, absent);
  });
}

void plus_scaled(Launch& launch, int op, In x, In a, In b, double s, Out y) {
  visit_op(BinaryOps{}, op, [&]<class F>() {
    if constexpr (std::is_same_v<F, Sub> || std::is_same_v<F, Mul> || std::is_same_v<F, Div>)
      visit_math(x.dtype, [&]<class V>() {
        map_numbers<V>(launch, "plus_scaled", PlusScaled<F, V>{s}, {&y}, {{&x}, {&a}, {&b}});
      });
  });
}

}  // namespace mixtape::kernels::cuda
