// c = f(a, b) and c = f(a, scalar), and their gradients.

#include "kernels/common/plus_scaled.h"
#include "kernels/cpu/loops/elements.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

template <class F, class T, class Tc>
void pairwise(void* const* p, int64_t n, const void*) {
  const T* const a = static_cast<const T*>(p[0]);
  const T* const b = static_cast<const T*>(p[1]);
  Tc* const c = static_cast<Tc*>(p[2]);
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(c + i, F::f(get<T>(a + i), get<T>(b + i)));
}

// dy df/da and dy df/db. Dtypes: S of the operands, D of c and dy, O of the gradients.
template <class F, class S, class D, class O>
void both_gradients(void* const* p, int64_t n, const void*) {
  using L = Vec<math_t<S>>;
  const S* const a = static_cast<const S*>(p[0]);
  const S* const b = static_cast<const S*>(p[1]);
  const D* const c = static_cast<const D*>(p[2]);
  const D* const dy = static_cast<const D*>(p[3]);
  O* const da = static_cast<O*>(p[4]);
  O* const db = static_cast<O*>(p[5]);
  for (int64_t i = 0; i < n; i += L::width) {
    const L x = a ? get<S>(a + i) : L(0), y = b ? get<S>(b + i) : L(0),
            z = c ? get<S>(c + i) : L(0), g = get<S>(dy + i);
    if (da) store(da + i, gradient_a<F>(g, x, y, z));
    if (db) store(db + i, gradient_b<F>(g, x, y, z));
  }
}

struct Scalar {
  double value;
  bool swapped;
};

template <class F, class T, class Tc>
void with_scalar(void* const* p, int64_t n, const void* context) {
  const T* const a = static_cast<const T*>(p[0]);
  Tc* const c = static_cast<Tc*>(p[1]);
  const Scalar s = *static_cast<const Scalar*>(context);
  const auto b = number<typename Elements<T>::type>(s.value);
  const auto run = [&](auto f) {
    for (int64_t i = 0; i < n; i += Elements<T>::width) put(c + i, f(get<T>(a + i)));
  };
  if (s.swapped)
    run([=](auto x) { return F::f(b, x); });
  else
    run([=](auto x) { return F::f(x, b); });
}

template <class F, class S, class D, class O>
void scalar_gradient(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<S>>;
  const S* const a = static_cast<const S*>(p[0]);
  const D* const c = static_cast<const D*>(p[1]);
  const D* const dy = static_cast<const D*>(p[2]);
  O* const da = static_cast<O*>(p[3]);
  const Scalar s = *static_cast<const Scalar*>(context);
  const auto b = number<L>(s.value);
  const auto run = [&](auto gradient) {
    for (int64_t i = 0; i < n; i += L::width) {
      const L x = a ? get<S>(a + i) : L(0), z = c ? get<S>(c + i) : L(0);
      store(da + i, gradient(get<S>(dy + i), x, z));
    }
  };
  if (s.swapped)
    run([=](L g, L x, L z) { return gradient_b<F>(g, b, x, z); });
  else
    run([=](L g, L x, L z) { return gradient_a<F>(g, x, b, z); });
}

template <class F, class T, class Ty>
void add_scaled(void* const* p, int64_t n, const void* context) {
  const T* const x = static_cast<const T*>(p[0]);
  const T* const a = static_cast<const T*>(p[1]);
  const T* const b = static_cast<const T*>(p[2]);
  Ty* const y = static_cast<Ty*>(p[3]);
  const double s = *static_cast<const double*>(context);
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(y + i, plus_scaled_of<F>(get<T>(x + i), s, get<T>(a + i), get<T>(b + i)));
}

}  // namespace

void binary(Launch& launch, int op, In a, In b, Out c) {
  const ContiguousLoop loop = contiguous_loop_of(BinaryOps{}, op, [&]<class F>() {
    return pick<F>(a.dtype, c.dtype,
                   []<class T, class Tc>() -> ContiguousLoop { return &pairwise<F, T, Tc>; });
  });
  for_each_contiguous(launch, {&a, &b, &c}, loop);
}

void binary_grad(Launch& launch, int op, In a, In b, In c, In dy, Out da, Out db) {
  const DType gradient = da ? da.dtype : db.dtype;
  ContiguousLoop loop = nullptr;
  visit_op(BinaryOps{}, op, [&]<class F>() {
    if constexpr (Differentiable<F>)
      visit_float(operand_dtype(a, b, dy, gradient), dy.dtype, gradient,
                  [&]<class S, class D, class O>() { loop = &both_gradients<F, S, D, O>; });
  });
  for_each_contiguous(launch, {&a, &b, &c, &dy, &da, &db}, loop, nullptr, 2);
}

void binary_scalar(Launch& launch, int op, In a, double b, bool swapped, Out c) {
  // Compares in double: converted to an integer, 2.5 would equal 2.
  if (c.dtype == boolean && !is_float(a.dtype) && !holds(i64, b)) {
    const View wide{launch.scratch<double>(a.size()), f64, Layout(a.shape())};
    convert(launch, a, wide);
    return binary_scalar(launch, op, wide, b, swapped, c);
  }
  const Scalar scalar{b, swapped};
  ContiguousLoop loop = nullptr;
  visit_scalar_op(op, b, swapped, [&]<class F>() {
    loop = pick<F>(a.dtype, c.dtype,
                   []<class T, class Tc>() -> ContiguousLoop { return &with_scalar<F, T, Tc>; });
  });
  for_each_contiguous(launch, {&a, &c}, loop, &scalar);
}

void binary_scalar_grad(Launch& launch, int op, In a, double b, bool swapped, In c, In dy, Out da) {
  const Scalar scalar{b, swapped};
  ContiguousLoop loop = nullptr;
  visit_scalar_op(op, b, swapped, [&]<class F>() {
    if constexpr (Differentiable<F>)
      visit_float(operand_dtype(a, a, dy, da.dtype), dy.dtype, da.dtype,
                  [&]<class S, class D, class O>() { loop = &scalar_gradient<F, S, D, O>; });
  });
  for_each_contiguous(launch, {&a, &c, &dy, &da}, loop, &scalar);
}

void plus_scaled(Launch& launch, int op, In x, In a, In b, double s, Out y) {
  const ContiguousLoop loop = contiguous_loop_of(BinaryOps{}, op, [&]<class F>() -> ContiguousLoop {
    if constexpr (std::is_same_v<F, Sub> || std::is_same_v<F, Mul> || std::is_same_v<F, Div>)
      return pick<F>(x.dtype, y.dtype,
                     []<class T, class Ty>() -> ContiguousLoop { return &add_scaled<F, T, Ty>; });
    else
      return nullptr;
  });
  for_each_contiguous(launch, {&x, &a, &b, &y}, loop, &s);
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
