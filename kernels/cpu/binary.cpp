// c = f(a, b) and c = f(a, scalar): floats on SIMD lanes, integers as Whole.

#include "kernels/cpu/simd.h"
#include "kernels/cpu/strips.h"
#include "kernels/elementwise.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {
namespace {

// f over n elements, where a(i) and b(i) give element i, or lanes from i on.
template <class F, class Tc, class A, class B>
[[gnu::always_inline]] inline void apply(Tc* c, int64_t n, int width, A a, B b) {
  for (int64_t i = 0; i < n; i += width) {
    if constexpr (std::is_class_v<decltype(a(i))> && !std::is_same_v<decltype(a(i)), Whole>) {
      store(c + i, F::f(a(i), b(i)));
    } else {
      c[i] = static_cast<Tc>(F::f(a(i), b(i)));
    }
  }
}

template <class F, class T, class Tc>
void pairwise(void* const* p, int64_t n, const void*) {
  const T* const a = static_cast<const T*>(p[0]);
  const T* const b = static_cast<const T*>(p[1]);
  Tc* const c = static_cast<Tc*>(p[2]);
  if constexpr (std::is_integral_v<T>) {
    apply<F>(
        c, n, 1, [=](int64_t i) { return Whole(a[i]); }, [=](int64_t i) { return Whole(b[i]); });
  } else {
    using L = Lanes<math_t<T>>;
    apply<F>(
        c, n, L::width, [=](int64_t i) -> L { return load(a + i); },
        [=](int64_t i) -> L { return load(b + i); });
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
  const auto run = [&](int width, auto x, auto y) {
    if (s.swapped)
      apply<F>(c, n, width, y, x);
    else
      apply<F>(c, n, width, x, y);
  };
  if constexpr (std::is_integral_v<T>) {
    // Comparing 2 with 2.5 must not compare 2 with 2.
    if (is_predicate<F> && s.value != std::trunc(s.value))
      return run(
          1, [=](int64_t i) { return static_cast<double>(a[i]); },
          [=](int64_t) { return s.value; });
    const Whole b(convert_to<int64_t>(s.value));
    run(
        1, [=](int64_t i) { return Whole(a[i]); }, [=](int64_t) { return b; });
  } else {
    using L = Lanes<math_t<T>>;
    const auto x = [=](int64_t i) -> L { return load(a + i); };
    if constexpr (std::is_same_v<F,
                                 Pow>) {  // the two powers that matter, without the library's pow
      if (!s.swapped && s.value == 2) return apply<Mul>(c, n, L::width, x, x);
      if (!s.swapped && s.value == 3)
        return apply<Mul>(c, n, L::width, x, [=](int64_t i) -> L { return x(i) * x(i); });
    }
    const L b = static_cast<math_t<T>>(s.value);
    run(L::width, x, [=](int64_t) -> L { return b; });
  }
}

// The instance of Make for element type `a` and, where the result is not bool, output type `c`.
template <class F, template <class, class, class> class Make>
Strip pick(DType a, DType c) {
  if constexpr (is_predicate<F>) {
    return visit(a, []<class T>() -> Strip { return Make<F, T, bool>::strip; });
  } else {
    if (is_float(a))
      return visit_float(a, c, []<class T, class Tc>() -> Strip { return Make<F, T, Tc>::strip; });
    return visit(a, []<class T>() -> Strip {
      if constexpr (std::is_integral_v<T>)
        return Make<F, T, T>::strip;
      else
        return nullptr;
    });
  }
}
template <class F, class T, class Tc>
struct Pairwise {
  static constexpr Strip strip = &pairwise<F, T, Tc>;
};
template <class F, class T, class Tc>
struct WithScalar {
  static constexpr Strip strip = &with_scalar<F, T, Tc>;
};

template <template <class, class, class> class Make, class... F>
Strip strip_of(OpList<F...>, int op, DType a, DType c) {
  static constexpr Strip (*table[])(DType, DType) = {&pick<F, Make>...};
  return table[op](a, c);
}

}  // namespace

void binary(Launch& launch, int op, In a, In b, Out c) {
  for_strips(launch, {&a, &b, &c}, strip_of<Pairwise>(BinaryOps{}, op, a.dtype, c.dtype));
}

void binary_scalar(Launch& launch, int op, In a, double b, bool swapped, Out c) {
  const Scalar scalar{b, swapped};
  for_strips(launch, {&a, &c}, strip_of<WithScalar>(BinaryOps{}, op, a.dtype, c.dtype), &scalar);
}

}  // namespace mixtape::kernels::cpu
