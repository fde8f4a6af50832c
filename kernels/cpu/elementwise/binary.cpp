// c = f(a, b) and c = f(a, scalar), and their gradients.

#include "kernels/common/plus_scaled.h"
#include "kernels/cpu/loops/elements.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

template <class F, class T>
void pairwise(void* const* p, int64_t n, const void*) {
  const T* const a = static_cast<const T*>(p[0]);
  const T* const b = static_cast<const T*>(p[1]);
  auto* const c = static_cast<ResultOf<F, T>*>(p[2]);
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(c + i, F::f(get<T>(a + i), get<T>(b + i)));
}

// dy df/da and dy df/db
template <class F, class T>
void both_gradients(void* const* p, int64_t n, const void*) {
  using L = Vec<math_t<T>>;
  const T* const a = static_cast<const T*>(p[0]);
  const T* const b = static_cast<const T*>(p[1]);
  const T* const c = static_cast<const T*>(p[2]);
  const T* const dy = static_cast<const T*>(p[3]);
  T* const da = static_cast<T*>(p[4]);
  T* const db = static_cast<T*>(p[5]);
  for (int64_t i = 0; i < n; i += L::width) {
    const L x = a ? get<T>(a + i) : L(0), y = b ? get<T>(b + i) : L(0),
            z = c ? get<T>(c + i) : L(0), g = get<T>(dy + i);
    if (da) store(da + i, gradient_a<F>(g, x, y, z));
    if (db) store(db + i, gradient_b<F>(g, x, y, z));
  }
}

// The number in `context` is the second operand or, swapped, the first.
template <class F, bool swapped, class T>
void with_scalar(void* const* p, int64_t n, const void* context) {
  const T* const a = static_cast<const T*>(p[0]);
  auto* const c = static_cast<ResultOf<F, T>*>(p[1]);
  const auto b = number<typename Elements<T>::type>(*static_cast<const double*>(context));
  for (int64_t i = 0; i < n; i += Elements<T>::width) {
    const auto x = get<T>(a + i);
    put(c + i, swapped ? F::f(b, x) : F::f(x, b));
  }
}

template <class F, bool swapped, class T>
void scalar_gradient(void* const* p, int64_t n, const void* context) {
  using L = Vec<math_t<T>>;
  const T* const a = static_cast<const T*>(p[0]);
  const T* const c = static_cast<const T*>(p[1]);
  const T* const dy = static_cast<const T*>(p[2]);
  T* const da = static_cast<T*>(p[3]);
  const L b = number<L>(*static_cast<const double*>(context));
  for (int64_t i = 0; i < n; i += L::width) {
    const L g = get<T>(dy + i), x = a ? get<T>(a + i) : L(0), z = c ? get<T>(c + i) : L(0);
    store(da + i, swapped ? gradient_b<F>(g, b, x, z) : gradient_a<F>(g, x, b, z));
  }
}

template <class F, class T>
void add_scaled(void* const* p, int64_t n, const void* context) {
  const T* const x = static_cast<const T*>(p[0]);
  const T* const a = static_cast<const T*>(p[1]);
  const T* const b = static_cast<const T*>(p[2]);
  T* const y = static_cast<T*>(p[3]);
  const double s = *static_cast<const double*>(context);
  for (int64_t i = 0; i < n; i += Elements<T>::width)
    put(y + i, plus_scaled_of<F>(get<T>(x + i), s, get<T>(a + i), get<T>(b + i)));
}

}  // namespace

void binary(Launch& launch, int op, In a, In b, Out c) {
  for_each_element(launch, {&a, &b, &c}, nullptr, 1, [&](DType dtype) {
    return contiguous_loop_of(BinaryOps{}, op, [&]<class F>() {
      return pick<F>(dtype, []<class T>() -> ContiguousLoop { return &pairwise<F, T>; });
    });
  });
}

void binary_grad(Launch& launch, int op, In a, In b, In c, In dy, Out da, Out db) {
  for_each_element(launch, {&a, &b, &c, &dy, &da, &db}, nullptr, 2, [&](DType dtype) {
    return contiguous_loop_of(BinaryOps{}, op, [&]<class F>() {
      return visit_float(dtype, []<class T>() -> ContiguousLoop {
        if constexpr (Differentiable<F>) return &both_gradients<F, T>;
        return nullptr;
      });
    });
  });
}

void binary_scalar(Launch& launch, int op, In a, double b, bool swapped, Out c) {
  // Compares in double: converted to an integer, 2.5 would equal 2.
  if (c.dtype == boolean && !is_float(a.dtype) && !holds(i64, b)) {
    const View wide{launch.scratch<double>(a.size()), f64, Layout(a.shape())};
    convert(launch, a, wide);
    return binary_scalar(launch, op, wide, b, swapped, c);
  }
  for_each_element(launch, {&a, &c}, &b, 1, [&](DType dtype) {
    ContiguousLoop loop = nullptr;
    visit_scalar_op(op, b, swapped, [&]<class F, bool swaps>() {
      loop = pick<F>(dtype, []<class T>() -> ContiguousLoop { return &with_scalar<F, swaps, T>; });
    });
    return loop;
  });
}

void binary_scalar_grad(Launch& launch, int op, In a, double b, bool swapped, In c, In dy, Out da) {
  for_each_element(launch, {&a, &c, &dy, &da}, &b, 1, [&](DType dtype) {
    ContiguousLoop loop = nullptr;
    visit_scalar_op(op, b, swapped, [&]<class F, bool swaps>() {
      if constexpr (Differentiable<F>)
        visit_float(dtype, [&]<class T>() { loop = &scalar_gradient<F, swaps, T>; });
    });
    return loop;
  });
}

void plus_scaled(Launch& launch, int op, In x, In a, In b, double s, Out y) {
  for_each_element(launch, {&x, &a, &b, &y}, &s, 1, [&](DType dtype) {
    return contiguous_loop_of(BinaryOps{}, op, [&]<class F>() {
      return pick<F>(dtype, []<class T>() -> ContiguousLoop {
        if constexpr (is_in<F>(OpList<Sub, Mul, Div>{})) return &add_scaled<F, T>;
        return nullptr;
      });
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
