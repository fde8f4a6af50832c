#pragma once
// Elements: elementwise kernels compute floats as lanes, and integers one at a time as Whole.

#include "kernels/common/elementwise.h"
#include "kernels/cpu/loops/contiguous_loop.h"
#include "kernels/cpu/simd/simd_special.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// The type in which elements of type T are computed, and how many at a time.
template <class T>
struct Elements {
  using type = Vec<math_t<T>>;
  static constexpr int64_t width = type::width;
};
template <std::integral T>
struct Elements<T> {
  using type = Whole;
  static constexpr int64_t width = 1;
};

// Loads the elements at p; a smaller type than T is converted.
template <class T, class S>
MIXTAPE_ALWAYS_INLINE typename Elements<T>::type get(const S* p) {
  if constexpr (std::is_same_v<T, bool>)
    return Whole(*reinterpret_cast<const uint8_t*>(p));  // g++ 12 makes no vectors of !bool
  else if constexpr (std::is_integral_v<T>)
    return Whole(*p);
  else
    return load<S, math_t<T>>(p);
}
template <class S, class V>
MIXTAPE_ALWAYS_INLINE void put(S* p, V v) {
  if constexpr (requires { store(p, v); })
    store(p, v);
  else
    *p = static_cast<S>(v);
}

// Calls make.operator()<T, To>() with an op's input and output types.
template <class F, class Make>
ContiguousLoop pick(DType in, DType out, Make make) {
  if constexpr (Predicate<F>) {
    return visit(in,
                 [&]<class T>() -> ContiguousLoop { return make.template operator()<T, bool>(); });
  } else {
    if (is_float(in))
      return visit_float(in, out, [&]<class T, class To>() -> ContiguousLoop {
        if constexpr (!OnlyIntegers<F>) return make.template operator()<T, To>();
        return nullptr;
      });
    return visit(in, [&]<class T>() -> ContiguousLoop {
      if constexpr (TakesIntegers<F> && is_integer(dtype_of<T>()))
        return make.template operator()<T, T>();
      else
        return nullptr;
    });
  }
}

// Calls choose.operator()<F>() with the op at this position of a list.
template <class Ops, class Choose>
ContiguousLoop contiguous_loop_of(Ops ops, int op, Choose choose) {
  ContiguousLoop loop = nullptr;
  visit_op(ops, op, [&]<class F>() { loop = choose.template operator()<F>(); });
  return loop;
}

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
