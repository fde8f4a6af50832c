// c = f(a, b) and c = f(a, scalar), and their gradients.

#include "kernels/cpu/elements.h"
#include "kernels/cpu/rows.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

template <class F, class T, class Tc>
void pairwise(void* const* p, int64_t n, const void*) {
  const T* const a = static_cast<const T*>(p[0]);
  const T* const b = static_cast<const T*>(p[1]);
  Tc* const c = static_cast<Tc*>(p[2]);
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(c + i, F::f(get<T>(a + i), get<T>(b + i)));
}

// dy df/da and dy df/db. S: of the operands, D: of c and dy, O: of the gradients.
template <class F, class S, class D, class O>
void both_gradients(void* const* p, int64_t n, const void*) {
  using L = Lanes<math_t<S>>;
  const S* const a = static_cast<const S*>(p[0]);
  const S* const b = static_cast<const S*>(p[1]);
  const D* const c = static_cast<const D*>(p[2]);
  const D* const dy = static_cast<const D*>(p[3]);
  O* const da = static_cast<O*>(p[4]);
  O* const db = static_cast<O*>(p[5]);
  for (int64_t i = 0; i < n; i += L::width) {
    const L x = a ? get<S>(a + i) : L(0), y = b ? get<S>(b + i) : L(0),
            z = c ? get<S>(c + i) : L(0), g = get<S>(dy + i);
    if (da) store(da + i, passed<F>(g, derivative_a<F>(x, y, z)));
    if (db) store(db + i, passed<F>(g, derivative_b<F>(x, y, z)));
  }
}

// The two powers that matter, without the library's pow.
template <int n>
struct Power : Pow {
  MIXTAPE_HD static auto f(auto a, auto) { return n == 2 ? a * a : a * a * a; }
  MIXTAPE_HD static auto da(auto a, auto b, auto) { return n == 2 ? b * a : b * a * a; }
};

struct Scalar {
  double value;
  bool swapped;
};

template <class F, class T, class Tc>
void with_scalar(void* const* p, int64_t n, const void* context) {
  const T* const a = static_cast<const T*>(p[0]);
  Tc* const c = static_cast<Tc*>(p[1]);
  const Scalar s = *static_cast<const Scalar*>(context);
  if constexpr (std::is_integral_v<T> && Predicate<F>)
    if (s.value != std::trunc(s.value)) {  // comparing 2 with 2.5 must not compare 2 with 2
      for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(a[i]);
        c[i] = s.swapped ? F::f(s.value, x) : F::f(x, s.value);
      }
      return;
    }
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
  using L = Lanes<math_t<S>>;
  const S* const a = static_cast<const S*>(p[0]);
  const D* const c = static_cast<const D*>(p[1]);
  const D* const dy = static_cast<const D*>(p[2]);
  O* const da = static_cast<O*>(p[3]);
  const Scalar s = *static_cast<const Scalar*>(context);
  const auto b = number<L>(s.value);
  const auto run = [&](auto derivative) {
    for (int64_t i = 0; i < n; i += L::width) {
      const L x = a ? get<S>(a + i) : L(0), z = c ? get<S>(c + i) : L(0);
      store(da + i, passed<F>(get<S>(dy + i), derivative(x, z)));
    }
  };
  if (s.swapped)
    run([=](L x, L z) { return derivative_b<F>(b, x, z); });
  else
    run([=](L x, L z) { return derivative_a<F>(x, b, z); });
}

template <class F, class T, class Ty>
void add_scaled(void* const* p, int64_t n, const void* context) {
  const T* const x = static_cast<const T*>(p[0]);
  const T* const a = static_cast<const T*>(p[1]);
  const T* const b = static_cast<const T*>(p[2]);
  Ty* const y = static_cast<Ty*>(p[3]);
  const auto s = number<typename Elements<T>::type>(*static_cast<const double*>(context));
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(y + i, get<T>(x + i) + s * F::f(get<T>(a + i), get<T>(b + i)));
}

struct Pairwise {
  template <class F>
  static Strip of(DType a, DType c) {
    return pick<F>(a, c, []<class T, class Tc>() -> Strip { return &pairwise<F, T, Tc>; });
  }
};
struct WithScalar {
  template <class F>
  static Strip of(DType a, DType c) {
    return pick<F>(a, c, []<class T, class Tc>() -> Strip { return &with_scalar<F, T, Tc>; });
  }
};
struct PlusScaled {
  template <class F>
  static Strip of(DType x, DType y) {
    if constexpr (std::is_same_v<F, Sub> || std::is_same_v<F, Mul> || std::is_same_v<F, Div>)
      return pick<F>(x, y, []<class T, class Ty>() -> Strip { return &add_scaled<F, T, Ty>; });
    else
      return nullptr;
  }
};
struct BothGradients {
  template <class F>
  static Strip of(DType a, DType dy, DType da) {
    Strip strip = nullptr;
    if constexpr (!Predicate<F>)
      visit_gradient(a, dy, da,
                     [&]<class S, class D, class O>() { strip = &both_gradients<F, S, D, O>; });
    return strip;
  }
};
struct ScalarGradient {
  template <class F>
  static Strip of(DType a, DType dy, DType da) {
    Strip strip = nullptr;
    if constexpr (!Predicate<F>)
      visit_gradient(a, dy, da,
                     [&]<class S, class D, class O>() { strip = &scalar_gradient<F, S, D, O>; });
    return strip;
  }
};

template <class Pick, class... DTypes>
Strip scalar_strip(int op, const Scalar& s, DTypes... dtypes) {
  if (op == index_in<Pow>(BinaryOps{}) && !s.swapped) {
    if (s.value == 2) return Pick::template of<Power<2>>(dtypes...);
    if (s.value == 3) return Pick::template of<Power<3>>(dtypes...);
  }
  return strip_of<Pick>(BinaryOps{}, op, dtypes...);
}

// The dtype of the operands, which may be absent: beside them, gradients are as narrow or f32.
DType operand_dtype(In a, In b, In dy, DType gradient) {
  return a ? a.dtype : b ? b.dtype : is_narrow(dy.dtype) ? dy.dtype : gradient;
}

}  // namespace

void binary(Launch& launch, int op, In a, In b, Out c) {
  for_strips(launch, {&a, &b, &c}, strip_of<Pairwise>(BinaryOps{}, op, a.dtype, c.dtype));
}

void binary_grad(Launch& launch, int op, In a, In b, In c, In dy, Out da, Out db) {
  const DType gradient = da ? da.dtype : db.dtype;
  const Strip strip = strip_of<BothGradients>(BinaryOps{}, op, operand_dtype(a, b, dy, gradient),
                                              dy.dtype, gradient);
  for_strips(launch, {&a, &b, &c, &dy, &da, &db}, strip, nullptr, 2);
}

void binary_scalar(Launch& launch, int op, In a, double b, bool swapped, Out c) {
  const Scalar scalar{b, swapped};
  for_strips(launch, {&a, &c}, scalar_strip<WithScalar>(op, scalar, a.dtype, c.dtype), &scalar);
}

void binary_scalar_grad(Launch& launch, int op, In a, double b, bool swapped, In c, In dy, Out da) {
  const Scalar scalar{b, swapped};
  const Strip strip = scalar_strip<ScalarGradient>(op, scalar, operand_dtype(a, a, dy, da.dtype),
                                                   dy.dtype, da.dtype);
  for_strips(launch, {&a, &c, &dy, &da}, strip, &scalar);
}

void plus_scaled(Launch& launch, int op, In x, In a, In b, double s, Out y) {
  for_strips(launch, {&x, &a, &b, &y}, strip_of<PlusScaled>(BinaryOps{}, op, x.dtype, y.dtype), &s);
}

}  // namespace mixtape::kernels::cpu
